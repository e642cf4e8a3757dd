"""How many descriptors a runner takes, and whether it may have them."""

import resource

from protocol.errors import Refused

FILES_A_RANK = 8
"""Descriptors that the runner holds for a rank: two pipes, a pidfd, two files of output with an index each, and one."""

OWN_FILES = 64
"""And for itself: its link, lock, log and loop, and what it opens to spawn and to look at processes."""


def check_open_files(ranks: int) -> None:
    """Raises Refused where this process may not hold as many descriptors as a runner of so many ranks takes.

    supd and its runners have the same limit: both raise theirs to the hard one, which runners inherit.
    """
    limit, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], OWN_FILES + FILES_A_RANK * ranks
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise Refused(
            "F205",
            f"{ranks} ranks take up to {needed} open files on a node, and the hard limit there is {limit}",
            hint="start supd with a higher one (ulimit -Hn, LimitNOFILE= in its unit), or lower nproc_per_node",
        )

"""Whether the state folder is the one that its journal was made in, or a copy: that must not pass for the original."""

import os
import shutil
from pathlib import Path

import structlog

from protocol.errors import Refused
from supervisor.daemon.journal import Journal
from supervisor.daemon.moving import MOVED

log = structlog.get_logger()

INODE_BITS = 63
"""SQLite's integers are signed (https://www.sqlite.org/datatype3.html), inode numbers are not."""


async def see_that_it_is_our_own(state_dir: Path, journal: Journal, *, is_moving: bool = False) -> None:
    """Bind the journal to its folder, by the folder's inode; before anything else is read of its runners.

    A copy (or a folder that was put back from one) becomes a node of its own: with a new identity, and without the
    runners of the original, of which it can prove nothing. A folder that is moved on its file system stays itself;
    devices are not looked at, since their numbers change over boots. Raises Refused; also where the coordinator
    `is_moving` here: then it is another node's journal in place of our own, and not next to it.
    """
    inode = os.stat(state_dir).st_ino & ((1 << INODE_BITS) - 1)
    bound = await journal.folder()
    if bound is None:
        return await journal.bind(inode)
    if bound == inode:
        return
    if is_moving:
        what = f"the journal in {state_dir} is of another state folder"
        hint = (
            f"put it into {state_dir / MOVED}, and back what was here: this node knows its runners by its own journal"
        )
        raise Refused("F311", what, hint=hint)
    # Their locks first: they are free here, whether or not the runners live, and what is free is swept away.
    try:
        shutil.rmtree(state_dir / "runners")
    except FileNotFoundError:
        pass
    except OSError as exc:
        hint = "it is a copy of another state folder: remove that folder in it"
        raise Refused("F034", f"cannot begin in {state_dir}: {exc}", hint=hint) from exc
    forgotten = await journal.begin_anew(inode)
    hint = "this supd is a node of its own now; where the original is gone for good, see docs/operations.md, A fleet"
    log.warning("state_copied", state=str(state_dir), not_ours=[runner.incarnation for runner in forgotten], hint=hint)

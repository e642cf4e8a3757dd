"""What is told of the rank whose failure has ended the job, behind the line that says how it ended."""

from collections.abc import Iterator
from pathlib import Path

from protocol.messages.control import Incident
from protocol.text import one_line
from supervisor.front.log_dir import rank_folder
from supervisor.front.output import is_shown
from supervisor.suprun.plan import LaunchPlan
from supervisor.suprun.values import STDERR


def last_words(plan: LaunchPlan, incident: Incident | None, node: str, kept: Path | None) -> Iterator[str]:
    """What it raised; the end of its errors, where the console of this `node` has not shown them; and which files of
    this node, in the folder `kept`, have all of it."""
    if incident is None:
        return
    if incident.error is not None and incident.error.raised:
        yield f"rank {incident.rank} raised {one_line(incident.error.raised)}"
    if incident.node != node or incident.local_rank is None:
        return
    folder = None if kept is None else rank_folder(kept, incident.generation, incident.local_rank)
    if incident.error is not None and folder is not None:
        yield f"{folder / 'error.json'} has its call stack"
    if is_shown(plan, incident.local_rank, STDERR):
        return
    if incident.stderr_tail:
        yield f"the last lines of rank {incident.rank}'s errors:"
        for line in incident.stderr_tail:
            yield f"  {one_line(line.decode(errors='replace'))}"
    if folder is not None:
        yield f"{folder / 'stderr.log'} has all of them"

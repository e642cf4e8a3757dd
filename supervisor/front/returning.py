"""The node that coordinates was away and is back, with nothing of what it knew: what its own ranks were, it can prove.

Its earlier suprun is gone, and with it whatever that had started (the tie of a guard). Others cannot know, so that a
run that goes on without it would wait for its proof: it is looked for here.
"""

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from protocol.errors import Refused
from supervisor.daemon.node import Node
from supervisor.shell import tree

if TYPE_CHECKING:
    from supervisor.daemon.hosted import Hosted

LOOK_S = 0.5


async def give_up_old_ranks(hosted: "Hosted", node: Node, name: str) -> None:
    """Until cancelled: say of runners that may be alive on this node, and are not, that they are gone."""
    while True:
        awaited = [runner for runner in hosted.jobs.runners_on(name) if not node.has_runner(runner)]
        # Refused: it answers after all, or this supd is about to prove its end. OSError: /proc cannot be read.
        with contextlib.suppress(Refused, OSError):
            if awaited and not await asyncio.to_thread(_live, awaited):
                await hosted.nodes.declare_lost(name, "suprun")
        await asyncio.sleep(LOOK_S)


def _live(incarnations: list[str]) -> bool:
    """Whether anything of these runners is on this machine: a guard, or a process with the marker."""
    if any(tree.marked(incarnation) for incarnation in incarnations):
        return True
    names = {os.fsencode(incarnation) for incarnation in incarnations}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if not names.isdisjoint(file.read().split(b"\0")):
                return True
    return False

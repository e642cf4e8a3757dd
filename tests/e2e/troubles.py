"""What befalls a node or the network between nodes, for as long as a `with` block; and what ends it."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from scripts.hosts.namespaces import Ends, Host, both_ways
from tests.e2e.threes import kill, parent_of

if TYPE_CHECKING:
    from tests.e2e.losses import Stage

Trouble = Callable[["Stage"], AbstractContextManager[None]]
Find = Callable[["Stage", str], list[int]]
"""The pids of some process of a node."""


def worker(stage: "Stage", node: str) -> list[int]:
    """A node's ranks."""
    return stage.ranks(node)


def runner(stage: "Stage", node: str) -> list[int]:
    """The parent of a node's ranks."""
    return sorted({parent_of(pid) for pid in stage.ranks(node)})


def guard(stage: "Stage", node: str) -> list[int]:
    """The runner's twin, which is its parent."""
    return [parent_of(pid) for pid in runner(stage, node)]


def supd(stage: "Stage", node: str) -> list[int]:
    """A node's supd, which on the host has the coordinator in it."""
    process = stage.fleet[node].process
    assert process is not None
    return [process.pid]


def everything(stage: "Stage", node: str) -> list[int]:
    """All processes of a node, whosever they are."""
    return in_network(stage.fleet.hosts.of[node])


def in_network(host: Host) -> list[int]:
    """All processes in a host's network but the one that keeps it, by pid."""
    wanted = os.readlink(f"/proc/{host.pid}/ns/net")
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if pid != host.pid and os.readlink(f"/proc/{pid}/ns/net") == wanted:
                found.append(pid)
    return sorted(found)


def killed(find: Find, node: str) -> Trouble:
    """SIGKILL; a supd is started again at the end."""

    @contextlib.contextmanager
    def trouble(stage: "Stage") -> Iterator[None]:
        kill(*find(stage, node))
        yield
        stage.launch_the_dead()

    return trouble


def stopped(find: Find, node: str) -> Trouble:
    """SIGSTOP, and SIGCONT at the end. What has gone meanwhile stays so."""

    @contextlib.contextmanager
    def trouble(stage: "Stage") -> Iterator[None]:
        pids = find(stage, node)
        try:
            _signal(pids, signal.SIGSTOP)
            yield
        finally:
            _signal(pids, signal.SIGCONT)

    return trouble


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def path(ends: Iterable[Ends], **how: str | float) -> Trouble:
    """These paths are disturbed (scripts/hosts/switch.py, Path), and whole at the end."""
    ends = list(ends)

    @contextlib.contextmanager
    def trouble(stage: "Stage") -> Iterator[None]:
        try:
            stage.fleet.hosts.set_paths(ends, **how)
            yield
        finally:
            stage.fleet.hosts.heal()

    return trouble


def between(some: str, others: str, **how: str | float) -> Trouble:
    """What each of some nodes and each of the others send each other; a node is one letter."""
    return path(both_ways(some, others), **how)


def stepped(node: str, seconds: int) -> Trouble:
    """A node's time of day is stepped, and back at the end."""

    @contextlib.contextmanager
    def trouble(stage: "Stage") -> Iterator[None]:
        clock = stage.clocks[node]
        try:
            clock.step(seconds)
            yield
        finally:
            clock.step(0)

    return trouble

"""What a runner sees of its ranks: the progress they show, and what a process is doing that shows none."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from protocol.member_events import NOTHING, Sample
from protocol.messages.member import StallState
from supervisor.runner.beats import Pages
from supervisor.runner.progress import Progress
from supervisor.shell import tree
from supervisor.shell.files import read_small

STATUS_BYTES_MAX = 8192

NO_PAGE = Sample(count=1, is_done=True, remark="no heartbeat page could be made")
"""Of a rank that may beat, for all we know: it counts as begun, and no limit can pass."""

_STATES = {"T": StallState.STOPPED, "t": StallState.STOPPED, "D": StallState.UNINTERRUPTIBLE}


def samples(ranks: Iterable[int], source: str, pages: Pages, progress: Progress) -> dict[int, Sample]:
    """What these ranks show now, by `progress.source`. Quick: nothing here waits for a disk."""
    shown = progress.look()
    if source not in ("auto", "client"):
        return {rank: shown.get(rank, NOTHING) for rank in ranks}
    return {rank: _sample(pages, rank, shown.get(rank, NOTHING)) for rank in ranks}


def _sample(pages: Pages, rank: int, shown: Sample) -> Sample:
    """Beats win over what is shown elsewhere; that adds what no beat can tell, and any news of it is a sign, too."""
    beat = pages.read(rank)
    if shown == NOTHING and not pages.path(rank):
        return NO_PAGE
    if beat is None or not (beat.count or beat.phase or beat.is_done):
        return shown
    step = shown.step if beat.step is None else beat.step
    count = max(beat.count, 1) + shown.count
    remark = "" if beat.is_done else shown.remark
    return replace(shown, count=count, step=step, phase=beat.phase, is_done=beat.is_done, remark=remark)


def states(beaters: Mapping[int, int]) -> dict[int, StallState]:
    """What the processes of ranks do that beat, else their main processes; `beaters` is that of processes()."""
    found = processes(beaters)
    return {
        main: StallState.GONE if process is None else _STATES.get(process.state, StallState.ALIVE)
        for main, process in found.items()
    }


def processes(beaters: Mapping[int, int]) -> dict[int, tree.Process | None]:
    """By the main process of each rank the live one that beats; None: it is gone. Reads the process table at most once.

    `beaters`: by main process the pid that beats (0: none has), in its own pid namespace. It is one of the rank's: a
    child of a wrapper script is below the main process, or at least in its session.
    """
    is_wrapped = any(pid not in (0, main) for main, pid in beaters.items())
    table = tree.processes() if is_wrapped else {}
    return {main: _process(main, pid, table) for main, pid in beaters.items()}


def _process(main: int, pid: int, table: dict[int, tree.Process]) -> tree.Process | None:
    if pid in (0, main):
        process = tree.look(main)
        return process if process is not None and process.is_alive else None
    own = [*tree.descendants(main, table), *(p for p in table.values() if p.session == main)]
    named = (p for p in own if p.pid == pid), (p for p in own if _inner_pid(p.pid) == pid)
    return next((p for found in named for p in found if p.is_alive), None)


def _inner_pid(pid: int) -> int | None:
    """Its pid in its own namespace (proc_pid_status(5), NSpid)."""
    status = read_small(Path(f"/proc/{pid}/status"), STATUS_BYTES_MAX) or b""
    _, found, rest = status.partition(b"\nNSpid:")
    return int(rest.split(b"\n", 1)[0].split()[-1]) if found else None

"""What a runner sees of its ranks."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.job import ProgressTable
from protocol.member_events import Sample
from protocol.messages.member import StallState
from supervisor.runner.beats import Pages
from supervisor.runner.progress import Progress
from supervisor.runner.sight import NO_PAGE, processes, samples, states
from supervisor.shell import tree
from supervisor.worker.beat import Writer
from tests.runner.processes import end, present, wait_until

PATTERN = r"step (?P<step>\d+) of (?P<total>\d+) loss (?P<loss>\S+)"


# --- progress --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    made = Pages(tmp_path / "shm/supd-1000/f00d")
    yield made
    made.remove()


async def seen(pages: Pages, source: str, *, beats: bool, line: bytes = b"") -> dict[int, Sample]:
    """Ranks 0 and 1; rank 0 does what is said."""
    await pages.create(0, [0, 1])
    progress = Progress(ProgressTable(source=source, log_pattern=PATTERN), 2)
    if beats:
        Writer(pages.path(0)).beat(7)
    if line and (tap := progress.tap(0, "out")) is not None:
        tap(line)
    return samples([0, 1], source, pages, progress)


LINE = b"step 6 of 50 loss 0.5\n"
BEAT, OF_LINE = Sample(count=1, step=7), Sample(count=1, step=6, total_steps=50, loss=0.5)


@pytest.mark.parametrize(
    ("source", "beats", "line", "expected"),
    [
        ("auto", False, b"", Sample()),
        ("auto", True, b"", BEAT),
        ("auto", False, LINE, OF_LINE),
        ("auto", True, LINE, Sample(count=2, step=7, total_steps=50, loss=0.5)),  # a beat, and what it cannot tell
        ("client", True, LINE, BEAT),
        ("client", False, LINE, Sample()),
        ("log", True, LINE, OF_LINE),
        ("log", True, b"", Sample()),
        ("none", True, LINE, Sample()),
    ],
)
async def test_what_a_rank_shows_is_taken_from_where_the_job_says(
    pages: Pages, source: str, beats: bool, line: bytes, expected: Sample
) -> None:
    assert await seen(pages, source, beats=beats, line=line) == {0: expected, 1: Sample()}


async def test_a_rank_that_says_it_is_done_is_not_one_that_nothing_is_seen_of(pages: Pages) -> None:
    """Its heartbeat is expected of it again in the next generation."""
    await pages.create(0, [0])
    progress = Progress(ProgressTable(log_pattern=PATTERN), 1)
    tap = progress.tap(0, "out")
    assert tap is not None
    tap(b"no step\n" * 100)
    writer = Writer(pages.path(0))
    writer.beat(7)
    assert samples([0], "auto", pages, progress)[0].remark != ""
    writer.done()
    sample = samples([0], "auto", pages, progress)[0]
    assert (sample.is_done, sample.is_unseen) == (True, False)


async def test_any_news_of_a_rank_is_a_sign_also_once_it_has_beaten(pages: Pages) -> None:
    """W1: a loop that beats once an epoch and prints each step."""
    await pages.create(0, [0])
    progress = Progress(ProgressTable(log_pattern=PATTERN), 1)
    tap = progress.tap(0, "out")
    assert tap is not None
    Writer(pages.path(0)).beat(7)
    shown = [samples([0], "auto", pages, progress)[0]]
    for _ in range(2):
        tap(LINE)
        shown.append(samples([0], "auto", pages, progress)[0])
    assert [(sample.step, sample.count) for sample in shown] == [(7, 1), (7, 2), (7, 3)]


@pytest.mark.parametrize("source", ["auto", "client"])
async def test_a_page_that_could_not_be_made_is_told_and_never_a_hang(source: str) -> None:
    assert samples([0], source, Pages(None), Progress(ProgressTable(), 1)) == {0: NO_PAGE}


async def test_what_is_shown_elsewhere_needs_no_page() -> None:
    progress = Progress(ProgressTable(log_pattern=PATTERN), 1)
    tap = progress.tap(0, "out")
    assert tap is not None
    tap(LINE)
    assert samples([0], "auto", Pages(None), progress) == {0: OF_LINE}
    assert samples([0], "log", Pages(None), Progress(ProgressTable(), 1)) == {0: Sample()}


# --- processes -------------------------------------------------------------------------------------------------------

WRAPPER = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=len(sys.argv) > 1)
print(child.pid, flush=True)
child.wait()
print("ended", flush=True)
sys.stdin.read()
"""


def state_of(main: int, beater_pid: int) -> str:
    return states({main: beater_pid})[main]


VFORK = "#include <unistd.h>\nint main(void) { if (vfork() == 0) { sleep(1000); _exit(0); } return 0; }\n"
"""A parent waits in the kernel for its vforked child."""


@pytest.fixture
def wrapper() -> Iterator[tuple[subprocess.Popen[bytes], tree.Process]]:
    """A main process and its child, as a wrapper script and the program below it."""
    main = subprocess.Popen(
        [sys.executable, "-c", WRAPPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert main.stdout is not None
    child = present(int(main.stdout.readline()))
    yield main, child
    end([child])
    main.kill()
    main.communicate(timeout=15)


Wrapper = tuple[subprocess.Popen[bytes], tree.Process]


def test_a_live_process_is_told_from_one_that_is_stopped(wrapper: Wrapper) -> None:
    main, child = wrapper
    assert state_of(main.pid, main.pid) == "alive"
    os.kill(main.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(main.pid, main.pid) == "stopped")
    assert state_of(main.pid, 0) == "stopped"  # nobody has beaten: it is the main process that counts
    assert state_of(main.pid, child.pid) == "alive"
    os.kill(main.pid, signal.SIGCONT)
    wait_until(lambda: state_of(main.pid, main.pid) == "alive")


def test_a_program_below_a_wrapper_is_looked_at_itself_and_gone_when_it_has_ended(wrapper: Wrapper) -> None:
    main, child = wrapper
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(main.pid, child.pid) == "stopped")
    os.kill(child.pid, signal.SIGKILL)
    assert main.stdout is not None
    assert main.stdout.readline() == b"ended\n"
    assert state_of(main.pid, child.pid) == "gone"
    assert state_of(main.pid, main.pid) == "alive"


def test_ranks_with_a_wrapper_and_without_are_looked_at_together(wrapper: Wrapper) -> None:
    """One look at the process table, however many of them hang."""
    main, child = wrapper
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(main.pid, child.pid) == "stopped")
    assert states({main.pid: child.pid, os.getpid(): 0, child.pid: child.pid}) == {
        main.pid: StallState.STOPPED,
        os.getpid(): StallState.ALIVE,
        child.pid: StallState.STOPPED,
    }


def test_a_process_that_has_ended_and_was_not_reaped_is_gone(wrapper: Wrapper) -> None:
    main, child = wrapper
    end([child])
    main.kill()
    wait_until(lambda: state_of(main.pid, main.pid) == "gone")


def test_a_process_of_somebody_else_is_never_taken_for_the_one_that_beats(wrapper: Wrapper) -> None:
    """A pid from the page may mean anything: the worker writes it."""
    main, _ = wrapper
    assert processes({main.pid: os.getpid()}) == {main.pid: None}
    assert processes({main.pid: 1}) == {main.pid: None}
    assert processes({main.pid: 2**32 - 1}) == {main.pid: None}


def test_a_process_that_waits_in_the_kernel_is_told_as_such(tmp_path: Path) -> None:
    program = tmp_path / "waits"
    subprocess.run(["cc", "-x", "c", "-", "-o", program], input=VFORK.encode(), check=True)
    main = subprocess.Popen([program], start_new_session=True)
    try:
        wait_until(lambda: state_of(main.pid, main.pid) == "uninterruptible")
    finally:
        end([p for p in tree.processes().values() if p.session == main.pid])
        main.wait(timeout=15)

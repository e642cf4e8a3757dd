"""The writer, in this process and as real ranks have it."""

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.worker import page
from supervisor.worker.beat import Writer
from supervisor.worker.page import Beat
from tests.worker.conftest import Run

Shown = Callable[[], Beat]


class Index:
    """What numpy's and torch's whole numbers are to us."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


class Hostile:
    """Raises whatever is done to it."""

    def __index__(self) -> int:
        raise RuntimeError("a tensor with several elements")


@pytest.fixture
def writer(page_file: Path) -> Writer:
    return Writer(str(page_file))


# --- what is shown -----------------------------------------------------------------------------------------------


def test_a_beat_changes_the_count_and_shows_step_and_process(writer: Writer, shown: Shown) -> None:
    writer.beat(3)
    first = shown()
    assert (first.step, first.pid, first.phase, first.is_done) == (3, os.getpid(), "", False)
    writer.beat(4)
    assert (shown().count, shown().step) == (first.count + 1, 4)


def test_a_beat_without_a_step_leaves_step_and_phase_as_they_are(writer: Writer, shown: Shown) -> None:
    writer.beat(3)
    writer.phase("eval")
    before = shown().count
    writer.beat()
    assert (shown().count, shown().step, shown().phase) == (before + 1, 3, "eval")


def test_a_phase_lasts_until_the_next_one_or_the_next_beat_with_a_step(writer: Writer, shown: Shown) -> None:
    writer.phase("compile")
    assert (shown().phase, shown().count) == ("compile", 1)
    writer.phase("warm up")
    assert (shown().phase, shown().count) == ("warm up", 2)
    writer.beat(0)
    assert (shown().phase, shown().step) == ("", 0)
    writer.phase("checkpoint")
    writer.phase("")
    assert shown().phase == ""


def test_a_with_block_brings_back_the_phase_before_however_it_ends(writer: Writer, shown: Shown) -> None:
    def fail() -> None:
        with writer.phase("checkpoint"):
            assert shown().phase == "checkpoint"
            raise ZeroDivisionError

    with writer.phase("eval"):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert shown().phase == "eval"
    assert shown().phase == ""


def test_done_is_taken_back_by_whatever_comes_after_it(writer: Writer, shown: Shown) -> None:
    for call in (lambda: writer.beat(1), writer.beat, lambda: writer.phase("eval")):
        before = shown().count
        writer.done()
        assert shown().is_done
        assert shown().count == before + 1
        call()
        assert not shown().is_done
        assert shown().count == before + 2


@pytest.mark.parametrize("step", [Index(9), 9, True + 8])
def test_whatever_can_be_used_as_an_index_is_a_step(writer: Writer, shown: Shown, step: object) -> None:
    writer.beat(step)
    assert shown().step == 9


@pytest.mark.parametrize("step", ["9", 9.5, -1, 2**63, Hostile(), Index(2**70), [], float("nan")])
def test_a_step_that_makes_no_sense_is_left_out_and_the_beat_counts(writer: Writer, shown: Shown, step: object) -> None:
    writer.beat(step)
    assert (shown().count, shown().step) == (1, None)


def test_a_name_that_makes_no_sense_is_left_out(writer: Writer, shown: Shown) -> None:
    with writer.phase(None):  # type: ignore[arg-type]
        assert (shown().count, shown().phase) == (0, "")
    writer.phase("\udcff" + "é" * 40)
    assert shown().phase == "?" + "é" * 15


# --- where there is nothing to write to --------------------------------------------------------------------------


NO_PAGES = {
    "empty": b"",
    "cut short": page.blank()[:-1],
    "too long": page.blank() + b"\0",
    "a later version": page.blank().replace(b"supd\1", b"supd\2"),
}


@pytest.mark.parametrize("content", NO_PAGES.values(), ids=list(NO_PAGES))
def test_what_is_no_page_that_we_know_is_left_alone(page_file: Path, content: bytes) -> None:
    page_file.write_bytes(content)
    use_all(Writer(str(page_file)))
    assert page_file.read_bytes() == content


@pytest.mark.parametrize("path", ["", "/no/such/file", "/", "/dev/null", "a\0b"])
def test_outside_supd_nothing_happens(path: str) -> None:
    use_all(Writer(path))


def use_all(writer: Writer) -> None:
    """Every call, twice."""
    for step in range(2):
        writer.beat(step)
        writer.beat()
        with writer.phase("eval"):
            writer.beat()
        writer.done()


# --- several that beat -------------------------------------------------------------------------------------------


def test_threads_may_beat_at_once_and_no_beat_gets_lost_for_good(writer: Writer, shown: Shown) -> None:
    def beat_often() -> None:
        for step in range(1000):
            writer.beat(step)

    threads = [threading.Thread(target=beat_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.beat(5000)
    assert (shown().count, shown().step) == (4001, 5000)


def test_a_forked_child_is_silent_while_its_parent_lives(run: Run, shown: Shown) -> None:
    done = run("""
import os, supd
supd.beat(1)
supd.phase("eval")
if os.fork() == 0:
    supd.beat(100)
    supd.phase("load")
    supd.done()
    os._exit(0)
os.wait()
supd.beat()
""")
    assert done.returncode == 0, done.stderr
    assert (shown().count, shown().step, shown().phase, shown().is_done) == (3, 1, "eval", False)


def test_a_child_that_is_started_is_silent_while_the_one_that_beats_lives(run: Run, shown: Shown) -> None:
    done = run("""
import subprocess, sys, supd
supd.beat(1)
subprocess.run([sys.executable, "-c", "import supd; supd.beat(100); supd.phase('eval'); supd.done()"], check=True)
supd.beat(2)
""")
    assert done.returncode == 0, done.stderr
    assert (shown().count, shown().step, shown().phase, shown().is_done) == (2, 2, "", False)


def test_two_programs_in_turn_beat_one_after_the_other(run: Run, shown: Shown) -> None:
    assert run("import supd; supd.beat(1); supd.phase('checkpoint')").returncode == 0
    first = shown()
    assert run("import supd; supd.beat()").returncode == 0
    assert (shown().count, shown().step, shown().phase) == (first.count + 1, 1, "")
    assert shown().pid not in (0, first.pid)


def test_a_process_that_has_ended_and_was_not_reaped_owns_nothing(run: Run, shown: Shown) -> None:
    done = run("""
import os, subprocess, sys
first = subprocess.Popen([sys.executable, "-c", "import supd; supd.beat(1)"])
os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
import supd
supd.beat(2)
first.wait()
""")
    assert done.returncode == 0, done.stderr
    assert shown().step == 2


def test_a_program_that_replaces_itself_beats_on(run: Run, shown: Shown) -> None:
    done = run("""
import os, sys, supd
supd.beat(1)
os.execv(sys.executable, [sys.executable, "-c", "import supd; supd.beat(2)"])
""")
    assert done.returncode == 0, done.stderr
    assert (shown().count, shown().step) == (2, 2)


def test_a_program_that_closes_every_descriptor_beats_on_and_keeps_those_it_opens(run: Run, shown: Shown) -> None:
    done = run("""
import os, supd
supd.beat(1)
os.closerange(3, 64)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
if os.fork() == 0:
    supd.beat(9)
    os._exit(0)
os.wait()
supd.beat(2)
for file in files:
    os.fstat(file)
""")
    assert done.returncode == 0, done.stderr
    assert (shown().count, shown().step) == (2, 2)


def test_a_child_goes_on_in_place_of_a_parent_that_has_ended(run: Run, shown: Shown) -> None:
    done = run("""
import os, struct, supd
supd.beat(1)
if os.fork() == 0:
    owner = None
    while owner != os.getpid():
        supd.beat(2)                    # for a second at most, once the parent has ended
        owner, = struct.unpack("<I", open(os.environ["SUPD_HEARTBEAT"], "rb").read()[24:28])
    print(os.getpid())
""")
    assert done.returncode == 0, done.stderr
    assert (shown().pid, shown().step) == (int(done.stdout), 2)


@pytest.mark.parametrize("count", [2**63 - 1, 2**64 - 1])
def test_whatever_another_writer_has_left_in_the_page_a_beat_goes_on_from_it(
    writer: Writer, shown: Shown, page_file: Path, count: int
) -> None:
    """Fields are unsigned, and somebody else's program may have written them."""
    page_file.write_bytes(struct.pack("<4sIQqII32s", b"supd", 1, count, 3, 2**32 - 1, 0, b""))
    writer.beat(5)
    assert (shown().count, shown().step, shown().pid) == ((count + 1) & (2**63 - 1), 5, os.getpid())
    writer.done()
    assert shown().is_done

"""What asyncio's own child handling trips over, driven through the real thing; and output that must not be lost.

The traps: StreamReader's line limit of 64 KiB, `wait()` that returns only when every pipe is closed (CPython
gh-119710), and a SIGCHLD that the parent had ignored.
"""

import signal
import sys

import pytest

from tests.e2e.jobs import command_job, finished, output
from tests.e2e.supd import Supd

MIB = 1 << 20
NEVER = '[restart]\npolicy = "never"\n'


def text(word: bytes, size: int) -> bytes:
    """What workers/writer.py writes to a stream."""
    return b"".join(b"%s-%07d " % (word, n) for n in range(size // 12 + 1))[:size]


def test_a_line_of_1_mib_without_an_end_arrives_byte_for_byte(supd: Supd) -> None:
    followed = supd.supctl("start", str(supd.job("long", "writer.py", str(MIB), "0", nproc=1)), "--follow")
    assert output(supd, "long", stream="out") == text(b"out", MIB)
    assert output(supd, "long", stream="err") == text(b"err", MIB)
    for stream in ("out", "err"):
        line = text(stream.encode(), MIB).decode()
        shown = supd.supctl("logs", "long", "-r", "0", "--stream", stream, "--no-prefix", "-n", "all").stdout
        assert shown.splitlines()[0] == line
        assert line in followed.stdout


@pytest.mark.parametrize("last", ["exit 0", "exit 5", "kill -9 $$"])
def test_an_end_is_told_although_a_grandchild_holds_the_pipes(supd: Supd, last: str) -> None:
    """The grandchild is in a session of its own, so that no signal to a group reaches it."""
    script = f"setsid sleep 300 & echo said; {last}"
    state = "succeeded" if last == "exit 0" else "failed"
    tables = f'{NEVER}[stop]\ngrace = "1s"'
    status, [rank] = finished(supd, command_job(supd, "held", ["sh", "-c", script], tables=tables), state)
    assert rank["shell_code"] == {"exit 0": 0, "exit 5": 5, "kill -9 $$": 137}[last]
    assert output(supd, status["run"]) == b"said\n"
    assert supd.survivors() == []


def test_exit_codes_are_seen_where_supd_was_started_with_sigchld_ignored(supd: Supd) -> None:
    ignores = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    supd.kill(signal.SIGTERM)
    supd.start(argv=(sys.executable, "-c", ignores))
    _, ranks = finished(supd, command_job(supd, "codes", ["sh", "-c", "exit 6"], tables=NEVER), "failed")
    assert [r["exit_code"] for r in ranks] == [6]


@pytest.mark.parametrize("end", [9, 11])
def test_all_that_a_killed_rank_wrote_is_in_its_files(supd: Supd, end: int) -> None:
    job = supd.job("killed", "writer.py", str(300_001), str(-end), nproc=2, tables=NEVER)
    status, ranks = finished(supd, job, "failed")
    first = status["incident"]["rank"]
    assert ranks[first]["shell_code"] == 128 + end
    assert output(supd, status["run"], first, "out") == text(b"out", 300_001)
    assert output(supd, status["run"], first, "err").startswith(text(b"err", 300_001))

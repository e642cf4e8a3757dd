"""How late a line is: from the `print` of a rank on one node to the terminal of a follower on another."""

import contextlib
import os
import pty
import py_compile
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from common import Quiet
from fleets import SupdFleet
from sides import LIMIT_S, now_s

_LINE = re.compile(rb"at ([0-9.]+)\r?\n")


def lateness(commands: Path, lines: int, every_s: float, quiet: Quiet) -> list[float]:
    """Seconds of each line, in order; the rank is on the second of two nodes, the follower is at the first."""
    fleet = SupdFleet(commands, 2, 'nnodes = 1\nnodes = ["n1"]')
    try:
        return _measure(fleet, lines, every_s, quiet)
    finally:
        fleet.close()


def _measure(fleet: SupdFleet, lines: int, every_s: float, quiet: Quiet) -> list[float]:
    py_compile.compile(str(Path(__file__).with_name("log_worker.py")), str(fleet.worker), doraise=True)
    go = fleet.folder / "go"
    fleet.env |= {"BENCH_GO": str(go), "BENCH_LINES": str(lines), "BENCH_EVERY_S": str(every_s)}
    fleet.start(1)
    fleet.first_lines(1)
    quiet.wait()
    with _terminal(fleet) as fd:
        late_s: list[float] = []
        seen = b""
        while b"ready" not in seen:
            seen += os.read(fd, 1 << 16)
        go.touch()
        until_s = now_s() + lines * every_s + LIMIT_S
        rest = b""
        while len(late_s) < lines and now_s() < until_s:
            rest += os.read(fd, 1 << 16)
            read_s = now_s()
            end = 0
            for found in _LINE.finditer(rest):
                late_s.append(read_s - float(found[1]))
                end = found.end()
            rest = rest[end:]
    return late_s


@contextlib.contextmanager
def _terminal(fleet: SupdFleet) -> Iterator[int]:
    """Our end of the terminal of a follower of rank 0."""
    ours, terminal = pty.openpty()
    command = [str(fleet.commands / "supctl"), "logs", "-f", "bench", "-r", "0"]
    follower = subprocess.Popen(
        command, env=fleet.env, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, start_new_session=True
    )
    os.close(terminal)
    try:
        yield ours
    finally:
        follower.terminate()
        follower.wait(LIMIT_S)
        os.close(ours)

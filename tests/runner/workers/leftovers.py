"""A subreaper with three mains below it that asks for leftovers; it fails where the answer is wrong.

Orphans come to the nearest subreaper: a process of its own, so that pytest adopts nothing.
"""

import ctypes
import os
import subprocess
import sys

sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

from supervisor.shell import tree

STRAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stray.py")


def start(kind: str) -> int:
    """The pid of a main, whose strays have said theirs."""
    main = subprocess.Popen([sys.executable, STRAY, kind], stdout=subprocess.PIPE, start_new_session=True)
    for _ in range(1 if kind == "sleeper" else 2):
        name, pid = main.stdout.readline().split()
        pids[name.decode()] = int(pid)
    return main.pid


def left(live_mains: list[int], helpers: list[int]) -> set[int]:
    return {process.pid for process in tree.leftovers(os.getpid(), live_mains, helpers)}


assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
pids: dict[str, int] = {}
try:
    first, second, helper = start("orphan"), start("daemon"), start("sleeper")
    assert left([first, second], [helper]) == {pids["daemon"]}, "an orphan in its main's session is its rank's"
    assert left([second], [helper]) == {first, pids["orphan"], pids["daemon"]}
    assert left([], []) == {first, second, helper, pids["orphan"], pids["daemon"]}
finally:
    assert tree.kill_all(lambda: tree.descendants(os.getpid(), tree.processes())) == []

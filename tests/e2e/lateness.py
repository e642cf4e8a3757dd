"""How long a machine keeps its processes waiting: times of some hundred milliseconds mean nothing where it does.

The lease allows for 0.4 s until a process that is to kill has killed, and for as much until an answer is back by way of
a witness. Where a few milliseconds of work wait for a processor for half as long, nobody can hold such times.
"""

import threading
import time
from types import TracebackType
from typing import Self

from supervisor.shell.clock import boot_s

WORK_S, EVERY_S = 0.005, 0.1
LATE_S = 0.2


class Lateness:
    """For the length of a `with` block: works a little, again and again, and sees how long that takes."""

    def __init__(self) -> None:
        self.worst_s = 0.0  # of one piece of work: how much longer it took than on a processor of its own
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lateness", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        due_s = boot_s() + EVERY_S
        while not self._is_over.wait(max(0.0, due_s - boot_s())):
            _work()
            self.worst_s = max(self.worst_s, boot_s() - due_s - WORK_S)
            due_s = boot_s() + EVERY_S


def _work() -> None:
    until_s = time.thread_time() + WORK_S
    while time.thread_time() < until_s:
        pass

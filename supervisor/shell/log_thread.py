"""Standard error by way of a thread: whoever logs never waits for the disk that takes the lines."""

import contextlib
import queue
import threading
from typing import TextIO

import structlog

from supervisor.shell.clock import boot_s

log = structlog.get_logger()

LINES_MAX = 1000
"""What may wait for the disk; lines beyond it are lost, and counted."""


class LogThread:
    """A file for `set_up_log`, which hands in a line at a time, under a lock of its own."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._begun = ""  # a line that has not ended
        self._lost = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="own-log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        self._begun += text
        if not self._begun.endswith("\n"):
            return
        line, self._begun = self._begun, ""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            with self._counting:
                self._lost += 1

    def flush(self) -> None:
        """Each line is written through as it comes."""

    def close(self, patience_s: float) -> None:
        """Write what is left; blocks for at most `patience_s`."""
        until_s = boot_s() + patience_s
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=patience_s)
            self._thread.join(max(0.0, until_s - boot_s()))

    def _run(self) -> None:
        is_closing = False
        while not (is_closing and self._lines.empty()):
            line = self._lines.get()
            if line is None:
                is_closing = True
            else:
                with contextlib.suppress(OSError):  # a full disk costs the line
                    self._file.write(line)
                    self._file.flush()
            if self._lost and (is_closing or self._lines.qsize() < LINES_MAX // 2):
                self._tell_lost()

    def _tell_lost(self) -> None:
        with self._counting:
            lost, self._lost = self._lost, 0
        log.warning("log_lines_lost", lines=lost)  # by way of the queue, too

"""The last lines of a stream, kept in memory: a failed rank's last words, without asking the disk."""

from collections import deque

from protocol.messages.member import TAIL_BYTES_MAX, TAIL_LINES_MAX

LINES_MAX = 20
MORE_LINES_MAX = TAIL_LINES_MAX  # stacks of several threads
LINE_BYTES_MAX = TAIL_BYTES_MAX


class LastLines:
    """Fed with a stream's bytes as they come; gives its last lines, 20 of them, each at most its first 2000 bytes."""

    def __init__(self) -> None:
        self._lines_max = LINES_MAX
        self._lines: deque[bytes] = deque(maxlen=LINES_MAX)
        self._unfinished = bytearray()

    def keep_more(self) -> None:
        """From now on keep MORE_LINES_MAX lines."""
        self._lines_max = MORE_LINES_MAX
        self._lines = deque(self._lines, MORE_LINES_MAX)

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        # More breaks than these only make lines that would be pushed out at once.
        *ended, unfinished = data.rsplit(b"\n", self._lines_max + 1)
        for line in ended:
            self._extend(line)
            self._lines.append(bytes(self._unfinished))
            self._unfinished.clear()
        self._extend(unfinished)

    def _extend(self, data: bytes) -> None:
        self._unfinished += data[: LINE_BYTES_MAX - len(self._unfinished)]

    def get(self) -> tuple[bytes, ...]:
        """The lines, oldest first, without their newlines; bytes behind the last newline count as a line."""
        lines = (*self._lines, bytes(self._unfinished)) if self._unfinished else tuple(self._lines)
        return lines[-self._lines_max :]

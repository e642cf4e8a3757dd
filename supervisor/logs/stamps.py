"""Time stamps in front of the lines of a file, for jobs that ask for them (`[logs] timestamps`)."""

from collections.abc import Sequence

from supervisor.shell.clock import utc_text, wall_s


class Stamper:
    """Puts in front of each line of one stream when its first byte was read."""

    def __init__(self) -> None:
        self._stamp = b""
        self._mid_line = False

    def stamp(
        self, data: bytes | bytearray, marks: Sequence[tuple[int, float]]
    ) -> tuple[bytes | bytearray, list[tuple[int, float]]]:
        """`data` with its stamps, and where in that `marks` are: which say from which byte of `data` on what was read
        when (s since 1970)."""
        stamped = bytearray()
        moved: list[tuple[int, float]] = []
        at = 0
        for mark, read_s in marks:
            self._add(stamped, data[at:mark])
            at = mark
            moved.append((len(stamped), read_s))
            self._stamp = _stamp(read_s)
        self._add(stamped, data[at:])
        return stamped, moved

    def _add(self, stamped: bytearray, data: bytes | bytearray) -> None:
        if not data:
            return
        stamp = self._stamp or _stamp(wall_s())
        if not self._mid_line:
            stamped += stamp
        self._mid_line = not data.endswith(b"\n")
        stamped += data.replace(b"\n", b"\n" + stamp)
        if not self._mid_line:
            del stamped[-len(stamp) :]


def _stamp(time_s: float) -> bytes:
    return f"{utc_text(time_s)} ".encode()

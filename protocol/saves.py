"""The safe points of a generation: when a checkpoint was seen by any of its runners. Pure."""

from protocol.messages.member import Renewal


class Saves:
    """Counted as reports come in. Several runners see the same checkpoint, on a disk that they share, one after the
    other: who is later has seen no other one."""

    def __init__(self, *, is_begun_here: bool) -> None:
        """`is_begun_here`: nothing was seen before. Else the first report of a runner tells what it has seen so far."""
        self.count = 0
        self.step: int | None = None  # of the last one
        self._is_begun_here = is_begun_here
        self._told: dict[str, tuple[int, int | None]] = {}  # node -> saves and step, as its runner has told last

    def see(self, node: str, renewal: Renewal) -> None:
        """A report of a runner of this generation."""
        first = (0, None) if self._is_begun_here else (renewal.saves, renewal.saved_step)
        saves, before = self._told.get(node, first)
        step = renewal.saved_step
        self._told[node] = renewal.saves, step
        if renewal.saves <= saves:
            return
        is_echo = step is not None and self.step is not None and step <= self.step and step != before
        if not is_echo:
            self.count, self.step = self.count + 1, step

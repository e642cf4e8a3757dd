"""The end of one node's part: which of several stops holds, and when its signals are due. Pure."""

from protocol import lifecycle
from protocol.dataclass import dataclass
from protocol.job import StopTable
from protocol.member_events import Announce
from protocol.messages.member import Stop


@dataclass(frozen=False)
class Stopping:
    """Of one generation; boot-time seconds."""

    table: StopTable
    stop: Stop | None = None  # the tightest one so far
    term_at_s: float = 0.0  # when `stop.signal` is due by it
    kill_at_s: float | None = None  # when SIGKILL is due by it; None: nobody has asked for an end

    def begin(self) -> None:
        """Another generation, which nobody has stopped yet."""
        self.stop = self.kill_at_s = None

    def tighten(self, stop: Stop, now_s: float) -> lifecycle.StopRequested | None:
        """What is asked of the ranks by it; None: it says nothing new.

        A second stop can only bring the end nearer; only `now`, `is_answered` and a shorter `pre_wait_s` cut the
        pre-wait short.
        """
        request = self._request(stop)
        term_at_s = now_s + (request.pre_wait_s if request.pre_signal else 0.0)
        if self.kill_at_s is not None:
            term_at_s = min(term_at_s, self.term_at_s)
        kill_at_s = now_s if request.now else max(now_s, term_at_s) + request.grace_s
        if self.kill_at_s is not None and kill_at_s >= self.kill_at_s:
            return None
        self.stop, self.term_at_s, self.kill_at_s = stop, term_at_s, kill_at_s
        return request

    def ended(self, now_s: float) -> float:
        """All ranks have ended: until when what they have left behind may live."""
        if self.kill_at_s is None:
            self.term_at_s, self.kill_at_s = now_s, now_s + self.table.grace_s
        return self.kill_at_s

    def announce(self, generation: int) -> list[Announce]:
        """Tell the ranks of a planned stop, before its first signal."""
        if self.stop is None or self.kill_at_s is None or not self.stop.reason or self.stop.now:
            return []
        return [Announce(generation, self.stop.reason, self.term_at_s, self.kill_at_s)]

    def _request(self, stop: Stop) -> lifecycle.StopRequested:
        table = self.table
        grace_s = table.grace_s if stop.grace_s is None else stop.grace_s
        pre_wait_s = table.pre_wait_s if stop.pre_wait_s is None else stop.pre_wait_s
        if stop.is_answered:
            pre_wait_s = 0.0
        return lifecycle.stop_request(table.pre_signal, pre_wait_s, table.signal, grace_s, now=stop.now)

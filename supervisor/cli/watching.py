"""Looking on at a run for as long as it takes, over restarts of supd: nothing that was taken comes again, and nothing
is left out."""

import time
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from protocol.errors import SupdError
from protocol.exit_code import ExitCode
from protocol.messages.control import ControlReply, EventRecord, LogChunk, LogPlace, Statuses, Watch
from supervisor.cli.client import Client, ConnectionLost
from supervisor.shell.clock import boot_s

TICK_S = 1.0

RETRY_MIN_S, RETRY_MAX_S = 0.1, 1.0
"""Between two attempts to reach supd again."""

FORGOTTEN_S = 30.0
"""A supd that has lost its journal hears of its runs from their runners: for so long it may not know one."""

MAY_COME_BACK = ("C001", "C002", "C004", "F110")


class Watching:
    """The replies to a Watch. One that follows is asked anew, from where it was, whenever supd has gone away and come
    back: what was asked for first has to have been answered, and then only the end of the run ends it."""

    def __init__(self, client: Client, tell: Callable[[str], None], request: Watch) -> None:
        """`tell` is given a line when supd goes away, and one when it is back."""
        self.is_lost = False
        self._client = client
        self._tell = tell
        # Only a snapshot tells whether a stream that ends has ended with its run, or with supd.
        self._request = replace(request, snapshots=True) if request.follow else request
        self._after_event = request.after_event
        self._places: dict[tuple[int, int, str], int] = {}  # of each stream, how much was taken
        self._generation = -1  # the newest of which something was taken …
        self._first: int | None = None  # … and the one that there was at first
        self._is_over = False
        self._has_heard = False
        self._lost_at_s = 0.0

    def replies(self) -> Iterator[ControlReply | None]:
        """All of them as they come; None whenever nothing came for `TICK_S`, and while supd is away. A reply counts as
        taken once the next one is asked for. Raises as `Client.ask` does."""
        if not self._request.follow:
            yield from self._client.stream(self._request, TICK_S)
            return
        pause_s = RETRY_MIN_S
        while True:
            try:
                for reply in self._client.stream(self._next_request(), TICK_S):
                    if reply is not None:
                        self._hear()
                        pause_s = RETRY_MIN_S
                    yield reply
                    self._take(reply)
                if self._is_over:
                    return
                self._lose(ConnectionLost(self._client.address))  # supd is ending; the run is not
            except SupdError as exc:
                if not self._may_come_back(exc):
                    raise
                self._lose(exc)
            time.sleep(pause_s)  # noqa: TID251  # there is nothing to wait on: the socket is not there
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            yield None

    def _next_request(self) -> Watch:
        """What was asked for first, or what of it was not taken yet."""
        if not self._has_heard:
            return self._request
        places = self._places or {(self._first or 0, 0, "out"): 0}  # `known` says that nothing older is wanted
        known = tuple(LogPlace(generation=g, rank=r, stream=s, offset=at) for (g, r, s), at in places.items())
        logs = self._request.logs
        return replace(
            self._request,
            after_event=self._after_event,
            known=() if logs is None else known,
            logs=None if logs is None else replace(logs, tail_lines=None),
        )

    def _take(self, reply: ControlReply | None) -> None:
        match reply:
            case LogChunk(generation=generation):
                if generation > self._generation:
                    self._generation = generation
                    self._places = {place: at for place, at in self._places.items() if self._may_go_on(place[0])}
                if self._may_go_on(generation):
                    self._places[generation, reply.rank, reply.stream] = reply.offset + len(reply.data)
            case EventRecord(id=number):
                self._after_event = max(self._after_event, number)
            case Statuses(runs=[run, *_]):
                self._is_over = run.is_final
                if self._first is None:
                    self._first = run.generation or 0
            case _:
                pass

    def _may_go_on(self, generation: int) -> bool:
        """One generation comes after the other, but for what a node has kept that did not answer meanwhile."""
        return generation >= self._generation - 1

    def _may_come_back(self, exc: SupdError) -> bool:
        if not self._has_heard:
            return False
        if exc.exit_code == ExitCode.NOT_FOUND:
            return self.is_lost and boot_s() - self._lost_at_s < FORGOTTEN_S
        return exc.code in MAY_COME_BACK

    def _lose(self, exc: SupdError) -> None:
        if not self.is_lost:
            self.is_lost, self._lost_at_s = True, boot_s()
            self._tell(f"… waiting for supd to be back: {exc}")

    def _hear(self) -> None:
        self._has_heard = True
        if self.is_lost:
            self.is_lost = False
            self._tell("… supd is back")

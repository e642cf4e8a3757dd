"""What happens to the run, as the node that coordinates tells it; also where that one goes and comes back."""

import asyncio
from collections.abc import Callable

from protocol.errors import Refused
from protocol.messages.control import EventRecord, RunStatus, Statuses, Watch, decode_reply
from supervisor.daemon.relay import HostAway
from supervisor.front.console import Console
from supervisor.front.meeting import Meeting
from supervisor.shell.clock import boot_s

AGAIN_S = 0.2
TELL_S = 5.0

AWAY_S = 1.0
"""A node that does not answer for so long is told of: at its start it takes a moment to listen."""


class Watching:
    """Follows one run."""

    def __init__(
        self,
        run: str,
        meeting: Meeting,
        console: Console,
        on_status: Callable[[RunStatus], None],
        on_event: Callable[[EventRecord], None],
    ) -> None:
        self._run = run
        self._meeting = meeting
        self._console = console
        self._on_status = on_status
        self._on_event = on_event
        self._after = -1
        self._told_wait = ""
        self._is_spare = False
        self.status: RunStatus | None = None  # the newest one
        self._leaves = False
        self._has_left = asyncio.Event()

    def leave(self) -> None:
        """From now on the run's end is not waited for, once it goes on without this node."""
        self._leaves = True
        self._see_whether_left()

    def give_up(self) -> None:
        """The run's end is not waited for any more."""
        self._has_left.set()

    async def outcome(self) -> RunStatus | None:
        """The run at its end; None where this node has left it, or where that cannot be known any more."""
        async with asyncio.TaskGroup() as group:
            followed = group.create_task(self._follow(), name="follow")
            left = group.create_task(self._has_left.wait(), name="left")
            await asyncio.wait((followed, left), return_when=asyncio.FIRST_COMPLETED)
            is_left = not followed.done()
            followed.cancel()
            left.cancel()
        return None if is_left else followed.result()

    def _see_whether_left(self) -> None:
        if self._leaves and self.status is not None and self._meeting.node not in self.status.nodes:
            self._has_left.set()

    async def _follow(self) -> RunStatus | None:
        away_s: float | None = None
        is_told = False
        while self.status is None or not self.status.is_final:
            watch = Watch(run=self._run, follow=True, snapshots=True, events=True, after_event=self._after)
            try:
                await self._meeting.ask(watch, self._heed)
            except (HostAway, Refused) as exc:
                away_s = boot_s() if away_s is None else away_s
                if boot_s() - away_s > AWAY_S and not is_told:
                    is_told = True
                    self._console.tell(f"the node that coordinates is away, the ranks go on: {exc}")
            else:
                away_s, is_told = None, False
            if away_s is not None and self._meeting.is_deserted(away_s):
                return None
            await asyncio.sleep(AGAIN_S)
        return self.status

    async def _heed(self, frame: bytes) -> None:
        match decode_reply(frame):
            case Statuses(runs=(status,)):
                self.status = status
                self._on_status(status)
                self._see_whether_left()
                self._tell_wait(status)
                self._tell_spare(status)
            case EventRecord() as event:
                self._after = event.id
                self._on_event(event)
            case _:
                pass  # nothing else was asked for

    def _tell_wait(self, status: RunStatus) -> None:
        wait = status.waiting_for if status.state in ("pending", "restarting") else ""
        if wait and wait != self._told_wait and status.wait_left_s is not None and status.wait_left_s > TELL_S:
            self._console.tell(f"waiting for {wait}")
        self._told_wait = wait

    def _tell_spare(self, status: RunStatus) -> None:
        is_spare = self._meeting.is_spare(status) and not self._leaves
        if is_spare and not self._is_spare:
            count = len(status.nodes)
            self._console.tell(f"the job runs on all {count} nodes that it takes: this one waits, as a spare")
        self._is_spare = is_spare

"""Signals: the first one ends the job gracefully, the second one at once, the third one suprun itself."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from protocol.errors import SupdError
from supervisor.front.console import Console
from supervisor.shell import tree
from supervisor.shell.clock import boot_s
from supervisor.shell.guarding import parent_pidfd
from supervisor.suprun.plan import LaunchPlan

if TYPE_CHECKING:
    from supervisor.front.meeting import Meeting
    from supervisor.front.watching import Watching

AGAIN_S = 0.2

AWAY_S = 1.0
"""The node that coordinates may be out of reach for so long, or half of the grace, before this node's ranks are ended
without it."""

ASK_S = 5.0
"""How long it may take to answer, and no longer than half of the grace."""

LEAST_ASK_S = 0.5

NOW_S = 3.0
"""Within that ranks are killed at the second signal, whether it answers or not."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Stopping:
    """Acts on the signals of a plan. Made in the task that is cancelled where there is no run to be stopped yet."""

    def __init__(self, plan: LaunchPlan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._own = asyncio.current_task()
        self._signal = signal.SIGINT  # the only one that cancels us unheard: asyncio's
        self._count = 0
        self._is_orphan = False  # and was not sent a signal since
        self._task: asyncio.Task[None] | None = None
        self.is_over = False
        self.has_left = False  # this node alone ends
        self.is_cut_off = False  # and so it does where the node that coordinates cannot be told
        self.meeting: Meeting | None = None
        self.watching: Watching | None = None

    @property
    def code(self) -> int:
        """Of a suprun that was ended by the signal."""
        return 128 + self._signal

    def listen(self) -> None:
        """From now on."""
        loop = asyncio.get_running_loop()
        for name in self._plan.signals:
            number = signal.Signals[name]
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup(1) has it
                loop.add_signal_handler(number, self._on_signal, number)
        for number in PASSED_ON:
            if number.name not in self._plan.signals:
                loop.add_signal_handler(number, self._pass_on, number)

    def end_with(self, parent: int) -> None:
        """End when that process, our parent, has: its step is over then, and it may pass no signal on to us."""
        if not parent:  # it is outside of our container
            return
        pidfd = parent_pidfd(parent)
        if pidfd is None:
            self._on_orphaned()
        else:
            asyncio.get_running_loop().add_reader(pidfd, self._on_orphaned, pidfd)

    def end(self) -> None:
        """suprun ends now, with the code it has: Slurm, say, ends all tasks of a step once one has ended."""
        loop = asyncio.get_running_loop()
        for number in (*(signal.Signals[name] for name in self._plan.signals), *PASSED_ON):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        """The run is over."""
        self.is_over = True
        if self._task is not None:
            self._task.cancel()

    def _pass_on(self, number: signal.Signals) -> None:
        """A warning of the cluster is for the ranks: those of this node have it, as they would without us."""
        count = 0
        if self.watching is not None and self.meeting is not None and (status := self.watching.status) is not None:
            marker = f"SUPD_RUN={status.run}".encode()
            for rank in status.rank_list:
                if rank.node == self.meeting.node and rank.pid is not None:
                    with contextlib.suppress(OSError):
                        count += _send(rank.pid, number, marker)
        self._console.tell(f"{number.name} is passed on: {count} ranks of this node have it")

    def _on_orphaned(self, pidfd: int | None = None) -> None:
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        if not self._count:
            self._console.tell("the process that started suprun has ended")
            self._on_signal(signal.SIGTERM)
            self._is_orphan = True

    def _on_signal(self, number: signal.Signals) -> None:
        if self._is_orphan:  # both were sent it
            self._is_orphan = False
            return
        self._count += 1
        self._signal = number
        if self.watching is None or self.is_over:
            assert self._own is not None
            self._own.cancel()
        elif self._count == 1:
            self._task = self._begin(self._stop(number), "stop")
        elif self._count == 2:
            self._task = self._begin(self._stop(number, now=True), "stop-now")
        else:
            os._exit(self.code)  # the guard ends what is left

    def _begin(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        if self._task is not None:
            self._task.cancel()
        return asyncio.get_running_loop().create_task(work, name=name)  # its owner is this object

    async def _stop(self, number: signal.Signals, *, now: bool = False) -> None:
        """Have the job stopped, or this node left out of it: by the node that coordinates, if it is reached in time."""
        assert self.meeting is not None
        least, most = self._plan.nnodes
        self.has_left = least < most and not self.meeting.is_host
        limit_s = NOW_S if now else self._plan.grace_s
        silent_until_s, until_s = boot_s() + min(ASK_S, limit_s / 2), boot_s() + limit_s
        patient_until_s = boot_s() + min(AWAY_S, limit_s / 2)
        if now and (self.has_left or self.is_cut_off):
            return self._end_without_it(number)
        if not now:
            what = "this node leaves" if self.has_left else "the job is stopped"
            again = "; Ctrl-C again: now" if number is signal.SIGINT else ""
            self._console.tell(f"{number.name}: {what}, SIGKILL in {self._plan.grace_s:g} s{again}")
        while why := await self._trouble(number, until_s if self.is_cut_off else silent_until_s, now=now):
            if self.is_cut_off and (boot_s() >= until_s or not _own_ranks()):
                return self._end_without_it(number)
            if boot_s() >= patient_until_s and not self.is_cut_off:
                self.is_cut_off = True
                self._console.tell(f"the node that coordinates is not reached: {why}; this node's ranks are ended")
                for rank in _own_ranks():
                    tree.signal_process(rank, signal.SIGTERM)
            await asyncio.sleep(AGAIN_S)
        self.is_cut_off = False
        if now:
            self._console.tell(f"{number.name} again: the ranks are killed")
        else:
            await self._count_down(until_s)

    async def _trouble(self, number: signal.Signals, until_s: float, *, now: bool) -> str:
        """Tell the node that coordinates; returns what is in the way, or "" once it knows."""
        assert self.meeting is not None
        try:
            async with asyncio.timeout(max(LEAST_ASK_S, min(ASK_S, until_s - boot_s()))):
                if not self.has_left:
                    await self.meeting.stop(number.name, now=now)
                    return ""
                await self.meeting.leave(number.name)
        except SupdError as exc:
            return str(exc)
        except TimeoutError:
            return "it says nothing"
        if self.watching is not None:
            self.watching.leave()
        return ""

    def _end_without_it(self, number: signal.Signals) -> None:
        """End this node; the guard ends what is left of the ranks."""
        assert self.watching is not None
        self.is_cut_off = True
        if ranks := _own_ranks():
            for rank in ranks:
                tree.signal_process(rank, signal.SIGKILL)
            self._console.tell(f"{number.name}: this node's ranks are killed")
        self.watching.give_up()

    async def _count_down(self, until_s: float) -> None:
        while (left_s := until_s - boot_s()) > 0:
            if sys.stderr.isatty():
                self._console.show(f"SIGKILL in {left_s:.0f} s")
            await asyncio.sleep(1.0)


def _own_ranks() -> list[tree.Process]:
    """What lives below the runner, which is below its guard, a child of ours: nobody has to be asked."""
    table = tree.processes()
    level = {os.getpid()}
    for _ in ("guard", "runner", "rank"):
        level = {process.pid for process in table.values() if process.ppid in level}
    return [table[pid] for pid in level if table[pid].is_alive]


def _send(pid: int, number: signal.Signals, marker: bytes) -> bool:
    """To that process, if it carries the marker: another one may have its pid by now. Returns whether it does. Raises
    OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            is_ours = marker in file.read().split(b"\0")
        if is_ours:
            signal.pidfd_send_signal(pidfd, number)
        return is_ours
    finally:
        os.close(pidfd)

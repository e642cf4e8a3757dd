"""One run of this coordinator, as its shell has it; and the bell for those who show what it is doing."""

import asyncio

from protocol import coordinator_events as c
from protocol.coordinator import Coordinator
from protocol.dataclass import dataclass, field
from protocol.errors import Refused
from protocol.framing import MAX_FRAME_BYTES
from protocol.grants import Told
from protocol.ids import RunId, job_name
from protocol.job import Job
from protocol.messages import encode
from supervisor.shell.channel import Channel
from supervisor.shell.driver import Driver

FRAME_ROOM_BYTES = 4096
"""What a Welcome has around the job."""


class Changes:
    """A bell for everyone who shows what a run is doing."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()

    def ring(self) -> None:
        """Something has changed."""
        for waiter in self._waiters:
            waiter.set()

    def listen(self) -> asyncio.Event:
        """An event that is set at every ring from now on; give it back with `leave`."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        return waiter

    def leave(self, waiter: asyncio.Event) -> None:
        """Stop listening."""
        self._waiters.discard(waiter)


@dataclass(frozen=False)
class Run:
    """One run: its job, its machine, who serves it, and when it was what."""

    job: Job
    machine: Coordinator
    driver: Driver[c.Event, c.Effect]
    submitted_wall_s: float
    ended_wall_s: float | None
    channels: dict[str, Channel] = field(default_factory=dict)  # by the runner's incarnation
    changes: Changes = field(default_factory=Changes)
    told: Told = field(default_factory=Told)  # of the nodes, and what it may use of them
    is_settled: bool = False  # final, and the journal has it
    left: set[str] = field(default_factory=set)  # of a run that is over: runners that are not proven gone
    task: asyncio.Task[None] | None = None  # that drives the machine
    is_job_ahead: bool = False  # it was on disk at the start, and the machine has not taken it in yet
    is_unwritten: bool = False  # what it has decided is on its way to the journal: until then it does nothing more

    @property
    def name(self) -> str:
        """The job's name."""
        return job_name(RunId(self.job.run))

    @property
    def stop_limit_s(self) -> float:
        """How long its stop may take by its settings, until SIGKILL."""
        stop, table = self.machine.stop, self.job.spec.stop
        return table.pre_wait_s + (table.grace_s if stop is None or stop.grace_s is None else stop.grace_s)


def check_size(job: Job) -> None:
    """A job goes to its runners in one frame, with a few bytes around it: what does not fit can never run. Raises
    Refused."""
    size, limit = len(encode(job)), MAX_FRAME_BYTES - FRAME_ROOM_BYTES
    if size > limit:
        hint = 'pass less of the environment on, as in run.inherit_env = ["PATH", "HOME"]'
        raise Refused("F105", f"the job with its environment has {size} bytes, over the limit of {limit}", hint=hint)

"""The start of a run: of a name once at a time, and where it is to replace another one, once that one is gone."""

import asyncio
import contextlib
import os
from collections.abc import Callable

from protocol import coordinator_events as c
from protocol.errors import Problem, Refused
from protocol.job import Job, JobSpec, Submitter
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.master_port import port_problems
from supervisor.daemon.run import Run, check_size

WAIT_TOLD_S = 2.0
"""Any wait longer than this is told (ux: "say what you wait for")."""

MAKE_WAY_S = 300.0
"""How much longer than its graceful stop may take a run that is being replaced is waited for."""

OTHER_IS_ACTIVE = "supctl stop {}; or start with --replace, or under another --name"


class Starting:
    """Accepts runs. `place` is where runners are listened for in a fleet of one, where rank 0 of any run is on this
    node; None: there are other nodes."""

    def __init__(self, jobs: Jobs, journal: Journal, place: tuple[str, int] | None) -> None:
        self._jobs = jobs
        self._journal = journal
        self._place = place
        self._being_started: dict[str, tuple[str, asyncio.Event, JobSpec]] = {}  # by name: request, end, job

    async def start(
        self, spec: JobSpec, submitter: Submitter, request_id: str, on_wait: Callable[[Run], None] | None = None
    ) -> str:
        """Accept a run; when this returns it survives power loss. Raises Refused.

        With `on_wait` it replaces the active run of its name: that one is stopped and waited for, and `on_wait`
        called now and then meanwhile. Two that want this at once come one after the other.
        """
        while (known := await self._journal.run_of_request(request_id)) is None:
            twin = self._being_started.get(spec.name)
            if twin is None or (twin[0] != request_id and on_wait is None):
                break
            # The same request, sent again while the first is on its way; or one that this one is to replace.
            if on_wait is not None:
                for other_run in self._jobs.unsettled(spec.name):
                    on_wait(other_run)
            await _wait_a_little(twin[1])
        if known is not None:
            return known
        active = self._jobs.unsettled(spec.name)
        if spec.name in self._being_started or (on_wait is None and any(not r.machine.is_final for r in active)):
            other = active[0].job.run if active else spec.name
            raise Refused("F101", f"{other} is still active", hint=OTHER_IS_ACTIVE.format(spec.name))
        for problem in self.port_problems(spec):
            raise Refused("F203", problem.message, hint=problem.hint)
        self.see_that_it_fits(spec)
        ended = asyncio.Event()
        self._being_started[spec.name] = request_id, ended, spec
        try:
            job = Job(run=self._new_run_id(spec.name), spec=spec, submitter=submitter)
            check_size(job)
            if on_wait is not None:
                for other_run in active:
                    await self._make_way(other_run, submitter.user, on_wait)
            user = submitter.user
            return await self._jobs.accept(
                request_id, job, c.Note("job.accepted", f"started by {user}", None, {"user": user})
            )
        finally:
            del self._being_started[spec.name]
            ended.set()

    def see_that_it_fits(self, spec: JobSpec) -> None:
        """Raises Refused where no allotment can ever give the job what it wants."""
        if why := self._jobs.too_large(spec):
            hint = "lower topology.nproc_per_node or nnodes; [node] devices in supd.toml says what a node has"
            raise Refused("F211", why, hint=hint)

    def port_problems(self, spec: JobSpec) -> list[Problem]:
        """What is wrong where the job names a port for rank 0 that is supd's own, or another job's. Of several nodes,
        the one that gets rank 0 has to tell (runner/ports.py)."""
        if self._place is None:
            return []
        others = [run for run in self._jobs.active() if run.name != spec.name]
        named = [(run.job.run, run.job.spec) for run in others]
        named += [(name, job) for name, (_, _, job) in self._being_started.items() if name != spec.name]
        taken = {port: who for who, job in named if isinstance(port := job.rendezvous.master_port, int)}
        taken |= {s.assignment.master_port: run.job.run for run in others for s in run.machine.seats.values()}
        return port_problems(spec, self._place[1], taken)

    def foreign_port(self, spec: JobSpec) -> tuple[str, int] | None:
        """Address and port that the job names for rank 0, in a fleet of one, unless an earlier run of the job may have
        it: that makes way."""
        port = spec.rendezvous.master_port
        own: set[int | str] = set()
        for run in self._jobs.unsettled(spec.name):
            own.add(run.job.spec.rendezvous.master_port)
            own |= {seat.assignment.master_port for seat in run.machine.seats.values()}
        if self._place is None or isinstance(port, str) or port in own:
            return None
        return self._place[0], port

    async def _make_way(self, run: Run, user: str, on_wait: Callable[[Run], None]) -> None:
        """Stop a run gracefully and wait until nothing is left of it. Raises Refused where that takes too long."""
        await self._jobs.ask(run, c.StopRequested(None, False, user))
        limit_s = run.stop_limit_s + MAKE_WAY_S
        bell = run.changes.listen()
        try:
            async with asyncio.timeout(limit_s):
                while not run.is_settled:
                    on_wait(run)
                    bell.clear()
                    await _wait_a_little(bell)
        except TimeoutError:
            hint = f"supctl status {run.job.run}; start again once it is over"
            raise Refused("F108", f"{run.job.run} was not gone {limit_s:g} s after it was told", hint=hint) from None
        finally:
            run.changes.leave(bell)
        on_wait(run)

    def _new_run_id(self, name: str) -> str:
        while True:
            run = f"{name}@{os.urandom(3).hex()}"
            if run not in self._jobs.runs:
                return run


async def _wait_a_little(event: asyncio.Event) -> None:
    """For the event, or until it is told again what is waited for, which may change with time alone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_TOLD_S):
            await event.wait()

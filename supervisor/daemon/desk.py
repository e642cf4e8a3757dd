"""Answers to what supctl asks, at the supd that hosts the coordinator: one file-local handler a request."""

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from protocol import coordinator_events as c
from protocol import foresight
from protocol.errors import Problem
from protocol.fleet_events import Drain
from protocol.job import JobSpec
from protocol.messages import encode
from protocol.messages.control import (
    ControlReply,
    DeclareLost,
    Describe,
    Done,
    Failure,
    GetNodes,
    GetStatus,
    LogPaths,
    Nodes,
    NodeState,
    NodeStatus,
    Paths,
    Request,
    Resolve,
    RestartRun,
    RunStatus,
    Start,
    Statuses,
    StopRun,
    Watch,
)
from protocol.messages.upkeep import AskPolicy, DrainNodes, Policy, ResumeRun, ScaleRun, UndrainNodes
from protocol.text import one_line
from protocol.view import state_word
from supervisor.daemon import log_choice, nodes, slow_disk, submission
from supervisor.daemon.describe import describe
from supervisor.daemon.fetch import Fetcher
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.master_port import foreign_problems
from supervisor.daemon.node_list import named, with_runs
from supervisor.daemon.reloading import Reloading
from supervisor.daemon.run import Run
from supervisor.daemon.starting import Starting
from supervisor.daemon.watcher import Watcher
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s, wall_s


class Desk:
    """Carries out requests. `table` has the nodes; `fetcher` brings what lies on others than this `node` alone."""

    def __init__(
        self,
        jobs: Jobs,
        starting: Starting,
        table: nodes.Nodes,
        journal: Journal,
        fetcher: Fetcher,
        node: str,
        labels: Mapping[str, str],
    ) -> None:
        self._jobs = jobs
        self._starting = starting
        self._table = table
        self._journal = journal
        self._fetcher = fetcher
        self._node = node
        self._labels = labels
        self._reloading = Reloading(jobs, starting, journal, self._port_problems, node, labels)

    async def answer(self, channel: Channel, user: str, request: Request, *, is_local: bool) -> ControlReply:
        """The last reply; those before it go to `channel`. A client that is not `is_local` is on another node, whose
        supd has looked at the job there. Raises SupdError, OSError and LocalProtocolError."""
        client_node = self._node if is_local else ""
        match request:
            case Start():
                return await self._start(channel, user, request, is_local=is_local)
            case StopRun():
                return await self._stop(user, request)
            case RestartRun():
                return await self._restart(user, request, is_local=is_local)
            case ResumeRun():
                return await self._resume(user, request)
            case AskPolicy():
                return self._foresee(request)
            case ScaleRun():
                return await self._scale(user, request)
            case DrainNodes():
                return await self._drain(user, request)
            case UndrainNodes(nodes=names):
                await self._table.undrain(names, user)
                return Done()
            case DeclareLost(node=name, check_only=check_only, runs=runs):
                if not check_only:
                    return Done(run="", runs=await self._table.declare_lost(name, user, runs))
                return Done(run="", runs=self._table.waiting_for_word_on(name))
            case GetStatus(run=word, with_ranks=with_ranks):
                if word:
                    run = self._jobs.find(word)
                    return Statuses(runs=(self._jobs.status(run, with_ranks=with_ranks, node=client_node),))
                return Statuses(runs=tuple(self._in_brief(run, client_node) for run in self._jobs.runs.values()))
            case GetNodes(node=name):
                return self._list_nodes(name)
            case Watch():
                watcher = Watcher(self._jobs, self._journal, self._fetcher, self._node, channel, request, client_node)
                return await watcher.run()
            case LogPaths(run=word, logs=logs):
                run = self._jobs.find(word)
                logs_dir = self._jobs.logs_dir(run)
                return Paths(paths=await slow_disk.ask(logs_dir, log_choice.paths, logs_dir, logs, self._node))
            case Describe():
                return await describe(self._jobs, self._fetcher, self._node, request, client_node)
            case Resolve(word=word):
                return Done(run=self._jobs.find(word).job.run)

    def _in_brief(self, run: Run, client_node: str) -> RunStatus:
        """One of many: what its culprit said last is left out, so that thousands fit into a frame."""
        status = self._jobs.status(run, with_ranks=False, node=client_node)
        if status.incident is None:
            return status
        return replace(status, incident=replace(status.incident, stderr_tail=(), error=None))

    def _list_nodes(self, name: str) -> Nodes:
        if name and self._table.record_of(name) is None and (run := self._jobs.seated(name)):
            why = f"the fleet does not know it, and {run} may have a runner there"
            return Nodes(nodes=(NodeStatus(node=name, state=NodeState.UNREACHABLE, address="", port=0, note=why),))
        known = self._table.status()
        shown = (named(known, name),) if name else known
        jobs = self._jobs
        return Nodes(nodes=with_runs(shown, jobs.active(), boot_s(), jobs.trouble, jobs.free_slots()))

    async def _start(self, channel: Channel, user: str, request: Start, *, is_local: bool) -> ControlReply:
        submitted = await submission.read(request, user)
        spec = submitted.spec
        warnings: tuple[str, ...] = ()
        if is_local:
            found = await submission.look(submitted, self._node, self._labels, self._port_problems)
            if found.problems:
                raise submitted.file.invalid(found.problems)
            warnings = found.warnings
        file_warnings = tuple(map(str, submitted.file.warnings))
        done = Done(notes=submission.notes(submitted), file_warnings=file_warnings, warnings=warnings)
        if request.check_only:
            self._starting.see_that_it_fits(spec)
            return done

        def tell(other: Run) -> None:
            status = self._jobs.status(other, with_ranks=False, node=self._node if is_local else "")
            channel.send(encode(Statuses(runs=(status,))))

        on_wait = tell if request.replace else None
        run = await self._starting.start(spec, submitted.submitter, request.request_id, on_wait)
        return replace(done, run=run)

    async def _port_problems(self, spec: JobSpec) -> list[Problem]:
        """What is wrong with the port that the job names for rank 0: it is another run's, or another program has it."""
        problems = self._starting.port_problems(spec)
        place = self._starting.foreign_port(spec)
        return problems if problems or place is None else await asyncio.to_thread(foreign_problems, *place)

    async def _stop(self, user: str, request: StopRun) -> ControlReply:
        runs = self._jobs.active() if request.all_runs else [self._jobs.find(request.run)]
        stop = c.StopRequested(request.grace_s, request.now, user)
        for run in runs:
            await self._jobs.ask(run, stop)
        return Done(run=runs[0].job.run if runs else "", runs=tuple(r.job.run for r in runs))

    async def _restart(self, user: str, request: RestartRun, *, is_local: bool) -> ControlReply:
        run = self._jobs.find(request.run)
        machine = run.machine
        if request.without and not machine.is_final and machine.stop is None:
            if request.without not in machine.seats:
                named(self._table.status(), request.without)
            if why := machine.rendezvous.missed(request.without):
                message = f"{run.job.run} cannot do without {request.without}: {why}"
                return Failure(code="F114", message=message, hint=f"restart it with {request.without}, or stop it")
        if machine.refuses_restart:
            return _taken_over(run.job.run)
        done = Done(run=run.job.run)
        if request.job is None:
            await self._jobs.ask(run, c.RestartRequested(request.reason, user, request.without))
        elif not _is_ending(run):
            done = await self._reloading.reload(run, request.job, user, request.reason, is_local=is_local)
        if machine.takeover is not None:  # somebody was heard meanwhile who knows more
            return _taken_over(run.job.run)
        return _ended(run) if _is_ending(run) else done

    async def _resume(self, user: str, request: ResumeRun) -> ControlReply:
        run = self._jobs.find(request.run)
        if run.machine.phase is not c.Phase.HELD:
            message = f"{run.job.run} is not held: {state_word(run.machine)}"
            return Failure(code="F123", message=message, hint=f"supctl status {run.job.run}")
        await self._jobs.ask(run, c.ResumeRequested(user))
        return Done(run=run.job.run)

    def _foresee(self, request: AskPolicy) -> ControlReply:
        run = self._jobs.find(request.run)
        if run.machine.is_final:
            return _ended(run)
        return Policy(run=run.job.run, steps=foresight.steps(run.machine, request.exit_code, request.times, boot_s()))

    async def _scale(self, user: str, request: ScaleRun) -> ControlReply:
        run = self._jobs.find(request.run)
        least, most = request.nnodes
        if least > most:
            what = f"{run.job.run} cannot be on {least} nodes at least, and on {most} at most"
            return Failure(code="F122", message=what, hint=f"supctl scale {run.name} --nnodes {most}:{least}")
        if run.machine.refuses_restart:
            return _taken_over(run.job.run)
        await self._jobs.ask(run, c.ScaleRequested(request.nnodes, request.deadline_s, user))
        return _ended(run) if _is_ending(run) else Done(run=run.job.run)

    async def _drain(self, user: str, request: DrainNodes) -> ControlReply:
        waits_s = {"next-checkpoint": request.deadline_s, "time": request.after_s}.get(request.at, 0.0)
        drain = Drain(
            by=user,
            reason=one_line(request.reason),
            at_checkpoint=request.at == "next-checkpoint",
            go_wall_s=wall_s() + waits_s,
        )
        await self._table.drain(request.nodes, drain)
        if drain.at_checkpoint:  # else no run leaves without knowing where to go on
            return Done()
        told = (foresight.without(run.job.run, run.machine, request.nodes) for run in self._jobs.active())
        return Done(notes=tuple(filter(None, told)))


def _is_ending(run: Run) -> bool:
    return run.machine.is_final or run.machine.stop is not None


def _ended(run: Run) -> Failure:
    state = f"over ({run.machine.phase.value})" if run.machine.is_final else "being stopped"
    return Failure(code="F104", message=f"{run.job.run} is {state}", hint="start it again with supctl start")


def _taken_over(run: str) -> Failure:
    message = f"{run} is being taken over from its runners, and not all of them have told what runs"
    return Failure(code="F116", message=message, hint=f"supctl status {run} says who is waited for")

"""The unix socket that supctl speaks to: one request a connection, answered by one file-local handler each."""

import asyncio
import os
import pwd
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import structlog

from protocol import coordinator as c
from protocol.errors import Refused, RemoteProtocolError, SupdError
from protocol.job import JobSpec, Submitter, parse_job
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Done,
    End,
    Failure,
    GetStatus,
    Greeting,
    LogChunk,
    LogPaths,
    Paths,
    Request,
    Resolve,
    RestartRun,
    Start,
    Statuses,
    StopRun,
    Watch,
    decode_greeting,
    decode_request,
)
from protocol.ranks import interpreter
from supervisor.daemon import logs_service
from supervisor.daemon.jobs import Jobs, Run
from supervisor.daemon.journal import EVENTS_A_READ_MAX, Journal
from supervisor.daemon.preflight import check_job
from supervisor.shell.channel import Channel

log = structlog.get_logger()

CLIENTS_MAX = 1000
REQUEST_TIMEOUT_S = 30.0
FRAMES_A_CLIENT_MAX = 8
"""A greeting and a request: more is nonsense."""


@dataclass
class _Client:
    """One connection."""

    user: str
    inbox: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(FRAMES_A_CLIENT_MAX))
    task: asyncio.Task[None] | None = None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # usual in containers
        return str(uid)


def _bind(path: Path) -> socket.socket:
    """The socket at `path`, 0600. What a dead supd left there is removed, a living one's is not: raises Refused."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
        else:
            raise Refused("F032", f"another supd listens at {path}", hint="give this one its own [listen] control")
    listener = socket.socket(socket.AF_UNIX)
    old_umask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(old_umask)
    return listener


class Control:
    """Serves supctl."""

    def __init__(self, jobs: Jobs, journal: Journal, node: str) -> None:
        self._jobs = jobs
        self._journal = journal
        self._node = node
        self._clients: dict[Channel, _Client] = {}
        self._group: asyncio.TaskGroup | None = None
        self._greeting = encode(
            Greeting(control_version=CONTROL_VERSION, supd_version=metadata.version("supd"), node=node)
        )

    async def run(self, path: Path, on_listening: Callable[[], None]) -> None:
        """Listen until cancelled."""
        loop = asyncio.get_running_loop()
        listener = await asyncio.to_thread(_bind, path)
        async with asyncio.TaskGroup() as self._group:
            server = await loop.create_unix_server(
                lambda: Channel(self._on_open, self._on_frame, self._on_closed), sock=listener, backlog=CLIENTS_MAX
            )
            try:
                on_listening()
                await asyncio.Event().wait()
            finally:
                server.close()
                for channel in list(self._clients):
                    channel.close()
                os.unlink(path)

    # --- connections ---------------------------------------------------------------------------------------------

    def _on_open(self, channel: Channel) -> None:
        uid = channel.peer_uid()
        if len(self._clients) >= CLIENTS_MAX or uid not in (os.geteuid(), 0):
            channel.abort("too many clients" if uid == os.geteuid() else f"uid {uid} may not")
            return
        assert self._group is not None
        client = self._clients[channel] = _Client(_user_name(uid))
        client.task = self._group.create_task(self._talk(channel, client), name="client")

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        try:
            self._clients[channel].inbox.put_nowait(payload)
        except asyncio.QueueFull:
            raise RemoteProtocolError("too many frames") from None

    def _on_closed(self, channel: Channel) -> None:
        client = self._clients.pop(channel, None)
        if client is not None and client.task is not None:
            client.task.cancel()  # nobody is there to be told

    async def _talk(self, channel: Channel, client: "_Client") -> None:
        """One client, from greeting to goodbye."""
        inbox = client.inbox
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                greeting = decode_greeting(await inbox.get())
                channel.send(self._greeting)
                if greeting.control_version != CONTROL_VERSION:
                    channel.close()
                    return
                request = decode_request(await inbox.get())
            last = await self._answer(channel, client.user, request)
        except SupdError as exc:
            last = Failure(code=exc.code, message=str(exc), hint=exc.hint, exit_code=exc.exit_code)
        except TimeoutError:
            channel.abort("no request")
            return
        except RemoteProtocolError as exc:
            channel.abort(str(exc))
            return
        channel.send(encode(last))
        await channel.drained()
        channel.close()

    # --- requests ------------------------------------------------------------------------------------------------

    async def _answer(self, channel: Channel, user: str, request: Request) -> ControlReply:
        match request:
            case Start():
                return await self._start(user, request)
            case StopRun():
                return await self._stop(user, request)
            case RestartRun(run=word, reason=reason):
                run = self._jobs.find(word)
                if run.machine.is_final:
                    return Failure(
                        code="F104",
                        message=f"{run.job.run} is over ({run.machine.phase.value})",
                        hint="start it again with supctl start",
                    )
                await run.driver.ask(c.RestartRequested(reason, user))
                return Done(run=run.job.run)
            case GetStatus(run=word, with_ranks=with_ranks):
                runs = [self._jobs.find(word)] if word else list(self._jobs.runs.values())
                return Statuses(runs=tuple(self._jobs.status(r, with_ranks=with_ranks) for r in runs))
            case Watch():
                return await _Watcher(self._jobs, self._journal, self._node, channel, request).run()
            case LogPaths(run=word, logs=logs):
                run = self._jobs.find(word)
                return Paths(paths=await asyncio.to_thread(logs_service.paths, self._jobs.logs_dir(run), logs))
            case Resolve(word=word):
                return Done(run=self._jobs.find(word).job.run)

    async def _start(self, user: str, request: Start) -> ControlReply:
        spec = parse_job(request.job_file, request.source)
        submitter = Submitter(
            folder=request.folder,
            source=request.source,
            python=request.python,
            env=request.env,
            limits=request.limits,
            umask=request.umask,
            user=user,
        )
        await asyncio.to_thread(check_job, spec, submitter)
        notes = _notes(spec, submitter)
        ranks = str(spec.topology.nproc_per_node)
        if request.check_only:
            return Done(ranks_per_node=ranks, notes=notes)
        run = await self._jobs.start(spec, submitter, request.request_id)
        return Done(run=run, ranks_per_node=ranks, notes=notes)

    async def _stop(self, user: str, request: StopRun) -> ControlReply:
        runs = self._jobs.active() if request.all_runs else [self._jobs.find(request.run)]
        stop = c.StopRequested(request.grace_s, request.now, user)
        for run in runs:
            await run.driver.ask(stop)
        return Done(run=runs[0].job.run if runs else "", runs=tuple(r.job.run for r in runs))


def _notes(spec: JobSpec, submitter: Submitter) -> tuple[str, ...]:
    """What a user wants to know of a start: which Python, which folder (never by accident the daemon's)."""
    workdir = os.path.join(submitter.folder, spec.run.workdir)
    python = () if spec.run.command else (f"python {interpreter(spec, submitter.folder, submitter.python)}",)
    return (*python, f"in {workdir}")


class _Watcher:
    """Sends one client what happens to a run."""

    def __init__(self, jobs: Jobs, journal: Journal, node: str, channel: Channel, request: Watch) -> None:
        self._jobs = jobs
        self._journal = journal
        self._node = node
        self._channel = channel
        self._request = request
        self._run: Run | None = jobs.find(request.run) if request.run or not request.events else None

    async def run(self) -> ControlReply:
        """Until everything was sent (and, following, the run is over)."""
        async with asyncio.TaskGroup() as group:
            if self._request.logs is not None and self._run is not None:
                group.create_task(self._logs(self._run), name="logs")
            if self._request.events or self._request.snapshots:
                group.create_task(self._story(), name="story")
        return End()

    async def _logs(self, run: Run) -> None:
        assert self._request.logs is not None

        async def send(chunk: LogChunk) -> None:
            self._channel.send(encode(chunk))
            await self._channel.drained()

        await logs_service.stream(
            self._jobs.logs_dir(run),
            self._request.logs,
            follow=self._request.follow,
            is_over=lambda: run.is_settled,
            node=self._node,
            generation_now=lambda: run.machine.generation,
            send=send,
        )

    async def _story(self) -> None:
        """Events and snapshots, in that order at each change, so that a final snapshot comes after its events."""
        bell = self._jobs.changes.listen()
        after = self._request.after_event
        shown: bytes = b""
        try:
            while True:
                bell.clear()
                is_over = not self._request.follow or (self._run is not None and self._run.is_settled)
                if self._request.events:
                    after = await self._send_events(after)
                if self._request.snapshots and self._run is not None:
                    snapshot = encode(Statuses(runs=(self._jobs.status(self._run, with_ranks=True),)))
                    if snapshot != shown:
                        shown = snapshot
                        self._channel.send(snapshot)
                await self._channel.drained()
                if is_over:
                    return
                await bell.wait()
        finally:
            self._jobs.changes.leave(bell)

    async def _send_events(self, after: int) -> int:
        run = self._run.job.run if self._run is not None else ""
        while True:
            events = await self._journal.events(run, after)
            for event in events:
                self._channel.send(encode(event))
                after = event.id
            if len(events) < EVENTS_A_READ_MAX:
                return after
            await self._channel.drained()

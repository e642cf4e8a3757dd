"""The unix socket that supctl speaks to: one request a connection, answered by one file-local handler each."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import msgspec
import structlog

from protocol import coordinator_events as c
from protocol.errors import LocalProtocolError, Refused, RemoteProtocolError, SupdError
from protocol.job import LIMITS, Job, JobSpec, Submitter
from protocol.job_file import read_job
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Describe,
    Done,
    Failure,
    FileProblem,
    GetStatus,
    Greeting,
    LogPaths,
    Paths,
    Request,
    Resolve,
    RestartRun,
    RunStatus,
    Start,
    Statuses,
    StopRun,
    Watch,
    decode_greeting,
    decode_request,
)
from protocol.ranks import inherited, interpreter, working_folder
from protocol.snippets import Canvas
from supervisor.daemon import control_socket, logs_service, slow_disk
from supervisor.daemon.accounts import user_name
from supervisor.daemon.describe import describe
from supervisor.daemon.jobs import Jobs, Run
from supervisor.daemon.journal import Journal
from supervisor.daemon.limits import limit_warnings
from supervisor.daemon.master_port import foreign_problems
from supervisor.daemon.preflight import device_problems, findings
from supervisor.daemon.watcher import Watcher
from supervisor.shell.channel import Channel

log = structlog.get_logger()

CLIENTS_MAX = 1000
REQUEST_TIMEOUT_S = 30.0
SOCKET_LOOK_S = 5.0

FRAMES_A_CLIENT_MAX = 2
"""A greeting and a request: more is nonsense."""


@dataclass
class _Client:
    """One connection."""

    user: str
    inbox: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(FRAMES_A_CLIENT_MAX))
    task: asyncio.Task[None] | None = None
    is_carried_out: bool = False  # its request is, whether it stays to hear of it or not


class Control:
    """Serves supctl."""

    def __init__(self, jobs: Jobs, journal: Journal, node: str) -> None:
        self._jobs = jobs
        self._journal = journal
        self._node = node
        self._clients: dict[Channel, _Client] = {}
        self._users = {uid: user_name(uid) for uid in (os.geteuid(), 0)}
        self._group: asyncio.TaskGroup | None = None
        self._greeting = encode(
            Greeting(control_version=CONTROL_VERSION, supd_version=metadata.version("supd"), node=node)
        )

    async def run(self, path: Path, on_listening: Callable[[], None]) -> None:
        """Listen until cancelled; again, where somebody (who tidies up temporary folders, say) removes the socket."""
        listener = await asyncio.to_thread(control_socket.listen, path, CLIENTS_MAX)
        async with asyncio.TaskGroup() as self._group:
            try:
                while True:
                    await self._serve(path, listener, on_listening)
                    log.warning("control_socket_lost", path=str(path))
                    listener = await self._listen_again(path)
            finally:
                for channel in list(self._clients):
                    channel.close()

    async def _serve(self, path: Path, listener: socket.socket, on_listening: Callable[[], None]) -> None:
        """Take in clients for as long as the socket at `path` is this one."""
        own = control_socket.identity(path)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Channel(self._on_open, self._on_frame, self._on_closed), sock=listener, backlog=CLIENTS_MAX
        )
        try:
            on_listening()
            while control_socket.identity(path) == own:  # noqa: ASYNC110  # files set no event
                await asyncio.sleep(SOCKET_LOOK_S)
        finally:
            if control_socket.identity(path) == own:
                with contextlib.suppress(OSError):
                    os.unlink(path)  # as long as we listen: later it might be the next supd's
            server.close()

    async def _listen_again(self, path: Path) -> socket.socket:
        while True:
            try:
                return await asyncio.to_thread(control_socket.listen, path, CLIENTS_MAX)
            except Refused as exc:
                log.error("control_socket_unmade", error=str(exc))
                await asyncio.sleep(SOCKET_LOOK_S)

    # --- connections ---------------------------------------------------------------------------------------------

    def _on_open(self, channel: Channel) -> None:
        uid = channel.peer_uid()
        if uid not in self._users:
            return channel.abort(f"uid {uid} may not")
        if len(self._clients) >= CLIENTS_MAX:
            return channel.abort("too many clients")
        assert self._group is not None
        client = self._clients[channel] = _Client(self._users[uid])
        client.task = self._group.create_task(self._talk(channel, client), name="client")

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        try:
            self._clients[channel].inbox.put_nowait(payload)
        except asyncio.QueueFull:
            raise RemoteProtocolError("too many frames") from None

    def _on_closed(self, channel: Channel) -> None:
        client = self._clients.pop(channel, None)
        if channel.error:
            log.warning("client_refused", error=channel.error)
        if client is not None and client.task is not None and not client.is_carried_out:
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
            client.is_carried_out = not isinstance(request, Watch)
            last = await self._answer(channel, client.user, request)
        except SupdError as exc:
            last = _failure(exc)
        except TimeoutError:
            channel.abort("no request")
            return
        except RemoteProtocolError as exc:
            channel.abort(str(exc))
            return
        except OSError as exc:
            last = Failure(code="F040", message=f"the output cannot be read: {exc}")
        except LocalProtocolError as exc:
            last = _too_large(exc)
        try:
            channel.send(encode(last))
        except LocalProtocolError as exc:
            channel.send(encode(_too_large(exc)))
        await channel.drained()
        channel.close()

    # --- requests ------------------------------------------------------------------------------------------------

    async def _answer(self, channel: Channel, user: str, request: Request) -> ControlReply:
        match request:
            case Start():
                return await self._start(channel, user, request)
            case StopRun():
                return await self._stop(user, request)
            case RestartRun(run=word, reason=reason):
                run = self._jobs.find(word)
                await self._jobs.ask(run, c.RestartRequested(reason, user))
                if run.machine.is_final or run.machine.stop is not None:
                    state = f"over ({run.machine.phase.value})" if run.machine.is_final else "being stopped"
                    hint = "start it again with supctl start"
                    return Failure(code="F104", message=f"{run.job.run} is {state}", hint=hint)
                return Done(run=run.job.run)
            case GetStatus(run=word, with_ranks=with_ranks):
                if word:
                    return Statuses(runs=(self._jobs.status(self._jobs.find(word), with_ranks=with_ranks),))
                return Statuses(runs=tuple(map(self._in_brief, self._jobs.runs.values())))
            case Watch():
                return await Watcher(self._jobs, self._journal, self._node, channel, request).run()
            case LogPaths(run=word, logs=logs):
                run = self._jobs.find(word)
                logs_dir = self._jobs.logs_dir(run)
                return Paths(paths=await slow_disk.ask(logs_dir, logs_service.paths, logs_dir, logs))
            case Describe():
                return await describe(self._jobs, request)
            case Resolve(word=word):
                return Done(run=self._jobs.find(word).job.run)

    def _in_brief(self, run: Run) -> RunStatus:
        """One of many: what its culprit wrote last is left out, so that thousands fit into a frame."""
        status = self._jobs.status(run, with_ranks=False)
        if status.incident is None:
            return status
        return msgspec.structs.replace(status, incident=msgspec.structs.replace(status.incident, stderr_tail=()))

    async def _start(self, channel: Channel, user: str, request: Start) -> ControlReply:
        job_file = await asyncio.to_thread(  # a large file takes a second, and runners wait for answers meanwhile
            read_job,
            request.job_file,
            request.source,
            settings=request.settings,
            name=request.name,
            args=request.args,
            canvas=Canvas(request.columns, request.is_ascii),
        )
        spec = job_file.spec
        submitter = Submitter(
            folder=request.folder,
            source=request.source,
            python=request.python,
            env=request.env,
            limits={name: value for name, value in request.limits.items() if name in LIMITS},
            umask=request.umask,
            user=user,
        )
        problems, warnings = await slow_disk.ask(submitter.folder, findings, spec, submitter, self._node)
        with contextlib.suppress(Refused):  # a driver that takes its time: the launch has more of it
            problems += await slow_disk.ask("the accelerators' driver", device_problems, spec, submitter)
        taken = self._jobs.port_problems(spec)
        if not taken and (port := self._jobs.foreign_port(spec)) is not None:
            taken = await asyncio.to_thread(foreign_problems, port, _own_host(self._jobs.peer_host))
        problems += taken
        if problems:
            raise job_file.invalid(problems)
        done = Done(
            notes=_notes(spec, submitter),
            file_warnings=tuple(map(str, job_file.warnings)),
            warnings=(*limit_warnings(spec, submitter), *warnings),
        )
        if request.check_only:
            return done

        def tell(other: Run) -> None:
            channel.send(encode(Statuses(runs=(self._jobs.status(other, with_ranks=False),))))

        run = await self._jobs.start(spec, submitter, request.request_id, tell if request.replace else None)
        return msgspec.structs.replace(done, run=run)

    async def _stop(self, user: str, request: StopRun) -> ControlReply:
        runs = self._jobs.active() if request.all_runs else [self._jobs.find(request.run)]
        stop = c.StopRequested(request.grace_s, request.now, user)
        for run in runs:
            await self._jobs.ask(run, stop)
        return Done(run=runs[0].job.run if runs else "", runs=tuple(r.job.run for r in runs))


def _own_host(host: str) -> str:
    """The address by which runners of this node come to supd; the one that rank 0 has then."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _failure(exc: SupdError) -> Failure:
    problems = tuple(
        FileProblem(code=p.code, key=p.key, value=p.value, message=p.message, hint=p.hint, place=p.place)
        for p in exc.problems
    )
    return Failure(code=exc.code, message=str(exc), hint=exc.hint, exit_code=exc.exit_code, problems=problems)


def _too_large(exc: LocalProtocolError) -> Failure:
    return Failure(code="F041", message=f"the answer is too large: {exc}", hint="name one job")


def _notes(spec: JobSpec, submitter: Submitter) -> tuple[str, ...]:
    """What a user wants to know of a start: which Python, path and folder (never by accident the daemon's)."""
    workdir = working_folder(submitter.folder, spec.run.workdir)
    python = () if spec.run.command else (f"python {interpreter(spec, submitter.folder, submitter.python)}",)
    inherits = inherited(Job(run="", spec=spec, submitter=submitter), {})
    search = spec.run.env.get("PYTHONPATH", inherits.get(b"PYTHONPATH", b"").decode(errors="replace"))
    return (*python, *((f"PYTHONPATH {search}",) if search else ()), f"in {workdir}")

"""supctl's requests: one a connection, on the unix socket, or from a client of another node (`Visit`).

The supd that hosts the coordinator answers (desk.py); every other one passes requests on to it (relay.py), and does
itself what is about its own disk.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec.structs import replace

from protocol.dataclass import dataclass, field
from protocol.errors import LocalProtocolError, Refused, RemoteProtocolError, SupdError
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Done,
    Failure,
    FileProblem,
    Greeting,
    LogPaths,
    Paths,
    Request,
    RestartRun,
    Start,
    Watch,
    decode_greeting,
    decode_request,
)
from protocol.messages.fleet import JoinRefused, Visit
from protocol.text import one_line
from protocol.versions import VERSIONS, agreed
from supervisor.daemon import control_socket, log_choice, slow_disk, submission
from supervisor.daemon.accounts import user_name
from supervisor.daemon.relay import Relay
from supervisor.daemon.role import Role
from supervisor.shell.channel import Channel
from supervisor.shell.config import Config
from supervisor.shell.dial import Dialer
from supervisor.shell.version import VERSION

log = structlog.get_logger()

CLIENTS_MAX = 1000
REQUEST_TIMEOUT_S = 30.0
SOCKET_LOOK_S = 5.0

FRAMES_A_CLIENT_MAX = 2
"""A greeting and a request: more is nonsense."""


@dataclass(frozen=False)
class _Client:
    """One connection."""

    user: str
    is_local: bool = True
    inbox: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(FRAMES_A_CLIENT_MAX))
    task: asyncio.Task[None] | None = None
    is_carried_out: bool = False  # its request is, whether it stays to hear of it or not


class Control:
    """Serves supctl: here, where this supd hosts the coordinator, else by way of the supd that does."""

    def __init__(self, role: Role, dialer: Dialer, config: Config) -> None:
        self._role = role
        self._config = config
        self._node = config.node
        self._relay = Relay(role.where, dialer, config.fleet, config.node, config.logs_dir)
        self._clients: dict[Channel, _Client] = {}
        self._users = {uid: user_name(uid) for uid in (os.geteuid(), 0)}
        self._group: asyncio.TaskGroup | None = None
        self._greeting = encode(Greeting(control_version=CONTROL_VERSION, supd_version=VERSION, node=config.node))

    async def run(self, path: Path, on_listening: Callable[[], None]) -> None:
        """Listen until cancelled; again, where somebody (who tidies up temporary folders, say) removes the socket."""
        listener = await control_socket.make(path, CLIENTS_MAX)
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
            lambda: Channel(self._on_open, self._on_frame, self._on_closed),
            sock=listener,
            backlog=CLIENTS_MAX,
            start_serving=False,  # that may be cancelled
        )
        try:
            await server.start_serving()
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
                return await control_socket.make(path, CLIENTS_MAX)
            except Refused as exc:
                log.error("control_socket_unmade", error=str(exc))
                await asyncio.sleep(SOCKET_LOOK_S)

    # --- connections ---------------------------------------------------------------------------------------------

    def _on_open(self, channel: Channel) -> None:
        uid = channel.peer_uid()
        if uid not in self._users:
            return channel.abort(f"uid {uid} may not")
        self._take_in(channel, _Client(self._users[uid]))

    def visit(self, channel: Channel, visit: Visit) -> None:
        """A connection of our peers' port that began with `visit`: it goes on like one on the unix socket."""
        refusal = self._why_not(visit)
        if refusal is not None:
            channel.send(encode(refusal))
            channel.close()
            return
        channel.hand_over(self._on_frame, self._on_closed)
        self._take_in(channel, _Client(f"{visit.user}@{visit.node}", is_local=False))

    def _why_not(self, visit: Visit) -> JoinRefused | None:
        if agreed(visit.versions) is None:
            message = f"{self._node} speaks versions {VERSIONS}, {visit.node} {visit.versions}"
            return JoinRefused(code="F111", message=one_line(message), hint="use one release of supd on all nodes")
        if self._role.hosted is None or self._group is None:
            hint = "see [fleet] join in supd.toml of both"
            return JoinRefused(code="F110", message=f"{self._node} does not host the coordinator", hint=hint)
        return None

    def _take_in(self, channel: Channel, client: _Client) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            return channel.abort("too many clients")
        assert self._group is not None
        self._clients[channel] = client
        client.task = self._group.create_task(self._talk(channel, client), name="client")

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        if channel not in self._clients:
            return  # it was refused, and is on its way out
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

    async def _talk(self, channel: Channel, client: _Client) -> None:
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
            last = await self._answer(channel, client, request)
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

    async def _answer(self, channel: Channel, client: _Client, request: Request) -> ControlReply:
        """The last reply; those before it are sent."""
        hosted = self._role.hosted
        if hosted is not None:
            user = f"{client.user}@{self._node}" if client.is_local and self._config.join else client.user
            return await hosted.desk.answer(channel, user, request, is_local=client.is_local)
        match request:
            case LogPaths(run=word, logs=logs):
                logs_dir = self._config.logs_dir / await self._relay.resolve(client.user, word)
                return Paths(paths=await slow_disk.ask(logs_dir, log_choice.paths, logs_dir, logs, self._node))
            case Start():
                return await self._with_a_look(channel, client.user, request, request)
            case RestartRun(job=Start() as job):
                return await self._with_a_look(channel, client.user, job, request)
            case _:
                return await self._pass_on(channel, client.user, request)

    async def _with_a_look(self, channel: Channel, user: str, job: Start, request: Request) -> ControlReply:
        """The client's files and this node are looked at here: the host may have others."""
        submitted = await submission.read(job, user)
        found = await submission.look(submitted, self._node, self._config.labels)
        if found.problems:
            raise submitted.file.invalid(found.problems)
        reply = await self._pass_on(channel, user, request)
        return replace(reply, warnings=(*found.warnings, *reply.warnings)) if isinstance(reply, Done) else reply

    async def _pass_on(self, channel: Channel, user: str, request: Request) -> ControlReply:
        async def send(frame: bytes) -> None:
            channel.send(frame)
            await channel.drained()

        return await self._relay.pass_on(user, request, send)


def _failure(exc: SupdError) -> Failure:
    problems = tuple(
        FileProblem(code=p.code, key=p.key, value=p.value, message=p.message, hint=p.hint, place=p.place)
        for p in exc.problems
    )
    return Failure(code=exc.code, message=str(exc), hint=exc.hint, exit_code=exc.exit_code, problems=problems)


def _too_large(exc: LocalProtocolError) -> Failure:
    return Failure(code="F041", message=f"the answer is too large: {exc}", hint="name one job")

"""Clients of a node that does not host the coordinator: their requests go to the supd that does, frame by frame."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from protocol.errors import Refused, RemoteProtocolError, SupdError
from protocol.exit_code import ExitCode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Done,
    End,
    Failure,
    Greeting,
    Request,
    Resolve,
    Start,
    Watch,
    decode_reply,
)
from protocol.messages.fleet import JoinRefused, Visit, decode_to_visitor
from protocol.text import host_port
from protocol.versions import VERSIONS
from supervisor.shell.clock import boot_s
from supervisor.shell.dial import CONNECT_TIMEOUT_S, Dialer
from supervisor.shell.pull import Pull

REPLY_TIMEOUT_S = 25.0
"""For a reply to anything but a Watch: less than a client waits, so that it hears who does not answer."""

PATIENCE_S = 5.0
"""For so long after our own start a host that was not found yet is waited for."""

LOOK_S = 0.05

LAST = (Failure, Done, End)
"""Replies that end a talk which may have several."""

LOOKING_ON = (Resolve, Watch)
"""What `supctl logs` begins with, and what it goes on with."""

Where = Callable[[], tuple[str, int] | Refused | str]
"""Address and port of the supd that hosts; or why that is not known, as a refusal where the host has refused us."""

Send = Callable[[bytes], Awaitable[None]]


async def _drop(_frame: bytes) -> None:
    pass


class HostAway(SupdError):
    """The supd that hosts the coordinator does not answer."""

    code = "F110"
    hint = "runs go on where their nodes reach each other; look after that machine, its supd, the network between"
    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, host: str, why: str) -> None:
        super().__init__(f"the coordinator of this fleet{host} does not answer: {why}")


class Relay:
    """Passes clients of this node on to the supd that hosts the coordinator."""

    def __init__(self, where: Where, dialer: Dialer, fleet: str, node: str, logs_dir: Path) -> None:
        """`logs_dir` is named to clients that ask for output while the host does not answer."""
        self._where = where
        self._logs_dir = logs_dir
        self._dialer = dialer
        self._fleet = fleet
        self._node = node
        self._patient_until_s = boot_s() + PATIENCE_S

    async def _place(self) -> tuple[str, int]:
        """Where the host is; right after our start it is waited for. Raises HostAway and Refused."""
        while not isinstance(place := self._where(), tuple):
            if boot_s() >= self._patient_until_s:
                raise place if isinstance(place, Refused) else HostAway("", place)
            await asyncio.sleep(LOOK_S)
        self._patient_until_s = 0.0  # it was found
        return place

    async def resolve(self, user: str, word: str) -> str:
        """Which run a user's word means. Raises as `pass_on` does, and Refused where it means none."""
        reply = await self.pass_on(user, Resolve(word=word))
        if isinstance(reply, Failure):
            raise Refused(reply.code, reply.message, hint=reply.hint, exit_code=reply.exit_code)
        if not isinstance(reply, Done):
            raise HostAway("", "it does not answer what it was asked")
        return reply.run

    async def pass_on(self, user: str, request: Request, send: Send = _drop) -> ControlReply:
        """The last reply to `request`; the frames of those before it go to `send`, which is awaited: whoever takes
        them slowly makes the host wait. The host sees it where this is cancelled. Raises HostAway and Refused."""
        try:
            return await self._pass_on(user, request, send)
        except HostAway as exc:
            if isinstance(request, LOOKING_ON):
                exc.hint = f"{exc.hint}; what ranks of this node write lies in {self._logs_dir}"
            raise

    async def _pass_on(self, user: str, request: Request, send: Send) -> ControlReply:
        place = await self._place()
        name = f" at {host_port(*place)}"
        try:
            async with Pull() as pull:
                await self._dialer.dial(pull.channel, *place)
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    pull.send(Visit(versions=VERSIONS, fleet=self._fleet, node=self._node, user=user))
                    pull.send(Greeting(control_version=CONTROL_VERSION, supd_version="", node=self._node))
                    pull.send(request)
                    _check_greeting(name, await pull.frame())
                limit_s = None if isinstance(request, Watch) else REPLY_TIMEOUT_S
                while True:
                    async with asyncio.timeout(limit_s):
                        frame = await pull.frame()
                    if frame is None:
                        raise HostAway(name, "it went away in the middle")
                    reply = decode_reply(frame)
                    if isinstance(reply, LAST) or not isinstance(request, (Watch, Start)):
                        return reply
                    await send(frame)
        except TimeoutError:
            raise HostAway(name, "it says nothing") from None
        except RemoteProtocolError as exc:
            raise HostAway(name, str(exc)) from None
        except OSError as exc:
            raise HostAway(name, str(exc)) from None


def _check_greeting(name: str, frame: bytes | None) -> None:
    if frame is None:
        raise HostAway(name, "it closed the connection")
    match decode_to_visitor(frame):
        case JoinRefused(code=code, message=message, hint=hint):
            raise Refused(code, message, hint=hint, exit_code=ExitCode.UNAVAILABLE)
        case Greeting(control_version=version, supd_version=supd):
            if version != CONTROL_VERSION:
                theirs = f"the coordinator's supd{name} is {supd}, of control version {version}"
                message, hint = f"{theirs}; this node's is {CONTROL_VERSION}", "use one release of supd on all nodes"
                raise Refused("F111", message, hint=hint, exit_code=ExitCode.UNAVAILABLE)

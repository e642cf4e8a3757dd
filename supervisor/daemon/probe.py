"""`Probe`: whether a node answers at the address by which peers are to reach it, and whom it knows as host."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from protocol.dataclass import dataclass
from protocol.errors import RemoteProtocolError
from protocol.messages import encode
from protocol.messages.fleet import JoinRefused, KnownHost, Probe, Probed, decode_from_peer
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s
from supervisor.shell.dial import Dialer
from supervisor.shell.pull import Pull

PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Voice:
    """What a node has said of the host."""

    node: str
    host: KnownHost
    at_s: float  # when that came in, boot-time

    @property
    def heard_at_s(self) -> float:
        """When the host was heard there."""
        return self.at_s - self.host.heard_s


Place = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True)
class Round:
    """What came of asking at several places."""

    voices: list[Voice]  # of the nodes that know who hosts
    found: dict[Place, str]  # the node that has answered there; "": its machine did, and refuses: there is no supd


class Prober:
    """Asks who answers at an address."""

    def __init__(self, dialer: Dialer, fleet: str) -> None:
        self._dialer = dialer
        self._fleet = fleet

    async def why_not(self, address: str, port: int, node: str, identity: str) -> str:
        """Why this node does not answer there; "" where it does."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                probed = await self._ask(address, port)
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT_S:g} s"
        except (RemoteProtocolError, OSError) as exc:
            return str(exc)
        is_it = (probed.node, probed.identity) == (node, identity)
        return "" if is_it else f"another node answers there, {probed.node}"

    async def ask_all(self, places: Iterable[Place], limit_s: float) -> Round:
        """What those know of the host that answer at these places within that time; all are asked at once."""
        voices: list[Voice] = []
        found: dict[Place, str] = {}

        async def listen(host: str, port: int) -> None:
            try:
                probed = await self._ask(host, port)
            except ConnectionRefusedError:
                found[host, port] = ""
            except (OSError, RemoteProtocolError):
                pass
            else:
                found[host, port] = probed.node
                if probed.host is not None:
                    voices.append(Voice(probed.node, probed.host, boot_s()))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
                for host, port in dict.fromkeys(places):
                    group.create_task(listen(host, port), name=f"ask-{host}")
        return Round(voices, found)

    async def _ask(self, host: str, port: int) -> Probed:
        """Raises OSError and RemoteProtocolError, which say why there is no answer."""
        async with Pull() as pull:
            await self._dialer.dial(pull.channel, host, port)
            pull.send(Probe(fleet=self._fleet))
            frame = await pull.frame()
        if frame is None:
            raise RemoteProtocolError("it closed the connection")
        match decode_from_peer(frame):
            case Probed() as probed:
                return probed
            case JoinRefused(message=message):
                raise RemoteProtocolError(message)
            case _:
                raise RemoteProtocolError("no answer to a probe")


class Answerer:
    """Every supd tells who it is, and whom it knows as host."""

    def __init__(self, node: str, identity: str, known: Callable[[], KnownHost | None]) -> None:
        self._node = node
        self._identity = identity
        self._known = known

    def take(self, channel: Channel, _probe: Probe) -> None:
        """A connection that began with a probe."""
        channel.send(encode(Probed(node=self._node, identity=self._identity, host=self._known())))
        channel.close()

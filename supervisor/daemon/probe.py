"""`Probe`: the host sees whether a node answers at the address by which peers are to reach it."""

import asyncio

from protocol.errors import RemoteProtocolError
from protocol.messages import encode
from protocol.messages.fleet import JoinRefused, Probe, Probed, decode_from_peer
from supervisor.shell.channel import Channel
from supervisor.shell.dial import Dialer
from supervisor.shell.pull import Pull

PROBE_TIMEOUT_S = 3.0


class Prober:
    """Asks who answers at an address."""

    def __init__(self, dialer: Dialer, fleet: str) -> None:
        self._dialer = dialer
        self._fleet = fleet

    async def why_not(self, address: str, port: int, node: str, identity: str) -> str:
        """Why this node does not answer there; "" where it does."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S), Pull() as pull:
                await self._dialer.dial(pull.channel, address, port)
                pull.send(Probe(fleet=self._fleet))
                frame = await pull.frame()
                return "it closed the connection" if frame is None else _flaw(frame, node, identity)
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT_S:g} s"
        except RemoteProtocolError as exc:
            return str(exc)
        except OSError as exc:
            return str(exc)


def _flaw(answer: bytes, node: str, identity: str) -> str:
    """What is wrong with an answer; "" where it is that node's."""
    match decode_from_peer(answer):
        case Probed(node=name, identity=other):
            return "" if (name, other) == (node, identity) else f"another node answers there, {name}"
        case JoinRefused(message=message):
            return message
        case _:
            raise RemoteProtocolError("no answer to a probe")


class Answerer:
    """Every supd tells who it is."""

    def __init__(self, node: str, identity: str) -> None:
        self._probed = encode(Probed(node=node, identity=identity))

    def take(self, channel: Channel, _probe: Probe) -> None:
        """A connection that began with a probe."""
        channel.send(self._probed)
        channel.close()

"""A supd that joins a host which says anything: to the node itself, and to its clients, whose requests it passes on."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from random import Random
from unittest import mock

from msgspec.structs import replace

from protocol.errors import RemoteProtocolError
from protocol.framing import HEADER_BYTES, FrameDecoder, encode_frame
from protocol.messages import encode
from protocol.messages.control import CONTROL_VERSION, ControlReply, Greeting, decode_greeting
from protocol.messages.fleet import (
    Join,
    Joined,
    NodeOrder,
    Probe,
    ToNode,
    Visit,
    decode_first,
    decode_from_peer,
    decode_report,
    decode_to_node,
)
from supervisor.daemon import links
from tests.fuzz.anything import Make, anything
from tests.fuzz.bombard import CHECK_EVERY, MANGLED, TIMEOUT_S, a_request
from tests.fuzz.host import Loop, Wire, serving_in_memory
from tests.fuzz.mangle import mangled

FRAMES_AT_ONCE_MAX = 20
CLIENTS_MAX = 30  # at a time
GREETING = Greeting(control_version=CONTROL_VERSION, supd_version="fuzz")

any_to_node: Make = anything(ToNode)
any_reply: Make = anything(ControlReply)


class Host:
    """Answers whatever it is told; `counts` are its frames."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.counts: Counter[str] = Counter()

    def __call__(self, address: str, port: int, payload: bytes) -> bytes:
        return b"".join(self._answer(payload))

    def _answer(self, payload: bytes) -> list[bytes]:
        rng = self._rng
        with contextlib.suppress(RemoteProtocolError):
            match decode_first(payload):
                case Join():
                    joined = Joined(version=1, epoch=1, host="h")
                    return [self._frame(m) for m in (joined, *self._some(_to_node))]
                case Visit():
                    return []
                case _:
                    return [self._frame(m) for m in self._some(any_reply)]
        with contextlib.suppress(RemoteProtocolError):
            decode_report(payload)
            return [self._frame(m) for m in self._some(_to_node)]
        with contextlib.suppress(RemoteProtocolError):
            decode_greeting(payload)
            return [self._frame(GREETING if rng.random() < 0.9 else any_reply(rng))]
        return [self._frame(m) for m in self._some(any_reply)]

    def _some(self, make: Make) -> list[object]:
        return [make(self._rng) for _ in range(self._rng.randint(0, FRAMES_AT_ONCE_MAX))]

    def _frame(self, message: object) -> bytes:
        frame = encode_frame(encode(message))
        how = "mangled" if self._rng.random() < MANGLED else "whole"
        self.counts[f"host: {type(message).__name__}, {how}"] += 1
        changed = mangled(frame, self._rng) if how == "mangled" else frame
        return frame if _wants_runners(changed) else changed


def _to_node(rng: Random) -> object:
    """Of this epoch or of an earlier one: after a later one nothing else would be heard. It wants no runners: these
    would be real."""
    message = any_to_node(rng)
    match message:
        case NodeOrder(epoch=epoch):
            return replace(message, epoch=min(epoch, 1), wanted=())
        case Joined(epoch=epoch):
            return replace(message, epoch=min(epoch, 1))
        case _:
            return message


def _wants_runners(frame: bytes) -> bool:
    with contextlib.suppress(RemoteProtocolError):
        order = decode_to_node(frame[HEADER_BYTES:])
        return isinstance(order, NodeOrder) and order.wanted != ()
    return False


async def answers_probes(loop: Loop) -> None:
    """See that the supd has met nothing that it did not expect, and still tells its peers who it is."""
    heard, has_come = list[bytes](), asyncio.Event()

    def on_write(wire: Wire, data: bytes) -> None:
        heard.extend(FrameDecoder().feed(data))
        has_come.set()

    loop.wire("peers", on_write).say(encode_frame(encode(Probe(fleet="default"))))
    async with asyncio.timeout(TIMEOUT_S):
        await has_come.wait()
    decode_from_peer(heard[0])
    assert loop.errors == []


def play_guest(folder: Path, seed: str, frames: int) -> Counter[str]:
    """So many frames of a host to one supd below `folder`; returns what they were."""
    rng, host = Random(seed), Host(Random(f"host {seed}"))

    async def play() -> None:
        async with serving_in_memory(folder, is_host=False) as loop:
            loop.answer = host
            clients: list[Wire] = []
            checked = 0
            while host.counts.total() < frames:
                clients = [client for client in clients if not client.is_closing()]
                if len(clients) < CLIENTS_MAX:
                    clients.append(loop.wire("control"))
                    for message in (GREETING, a_request(rng)):
                        clients[-1].say(encode_frame(encode(message)))
                elif rng.random() < 0.5:
                    rng.choice(clients).close()
                await asyncio.sleep(0.001 if len(clients) == CLIENTS_MAX else 0)
                if host.counts.total() >= checked + CHECK_EVERY:
                    checked = host.counts.total()
                    await answers_probes(loop)

    with (
        mock.patch.multiple(links, RETRY_S=0.01, JOIN_TIMEOUT_S=0.1, SILENT_S=1.0),
        asyncio.Runner(loop_factory=Loop) as runner,
    ):
        runner.run(play())
    return host.counts

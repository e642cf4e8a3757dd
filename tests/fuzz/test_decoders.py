"""Whatever bytes come in: a decoder gives a message of its own kinds, or raises what costs the connection."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.framing import HEADER_BYTES, MAX_FRAME_BYTES, FrameDecoder, encode_frame
from protocol.messages import control, encode, fleet, member, runner, witness
from tests.fuzz.anything import anything
from tests.fuzz.mangle import mangled

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))
RECORDED = sorted((Path(__file__).parents[1] / "compat").glob("v*/*.frames"))
FRAMES = 2000
"""A decoder; scripts/fuzz sends more."""

DECODERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "first": (fleet.decode_first, fleet.FirstMessage),
    "to_node": (fleet.decode_to_node, fleet.ToNode),
    "report": (fleet.decode_report, fleet.NodeReport),
    "logs_now": (fleet.decode_logs_now, fleet.LogsNow),
    "from_peer": (fleet.decode_from_peer, fleet.FromPeer),
    "to_visitor": (fleet.decode_to_visitor, fleet.ToVisitor),
    "to_coordinator": (member.decode_to_coordinator, member.ToCoordinator),
    "to_runner": (member.decode_to_runner, member.ToRunner),
    "peer": (witness.decode_peer, witness.ToRunnerPeer),
    "take_on": (runner.decode_take_on, runner.TakeOn),
    "record": (runner.decode_record, runner.Record),
    "greeting": (control.decode_greeting, control.Greeting),
    "request": (control.decode_request, control.Request),
    "reply": (control.decode_reply, control.ControlReply),
}


def kinds(kind: Any) -> tuple[type, ...]:
    return get_args(kind) or (kind,)


def test_every_decoder_of_the_wire_is_among_them() -> None:
    found = {decode for module in (control, fleet, member, runner, witness) for decode in decoders_of(module)}
    assert found == {decode for decode, _ in DECODERS.values()}


def decoders_of(module: object) -> Iterator[object]:
    return (value for name, value in vars(module).items() if name.startswith("decode_"))


def read(name: str, payload: bytes) -> object:
    """What comes of it: a message that can be said again, or nothing."""
    decode, kind = DECODERS[name]
    try:
        message = decode(payload)
    except RemoteProtocolError:
        return None
    assert isinstance(message, kinds(kind))
    encode(message)
    return message


@pytest.mark.parametrize("name", DECODERS)
@given(payload=st.binary(max_size=200))
@settings(deadline=None)
def test_noise_is_refused(name: str, payload: bytes) -> None:
    read(name, payload)


@pytest.mark.parametrize("name", DECODERS)
@given(
    fields=st.dictionaries(st.text(max_size=9), st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text())
)
@settings(deadline=None)
def test_a_map_of_anything_is_refused_or_is_a_message(name: str, fields: dict[str, Any]) -> None:
    kind = kinds(DECODERS[name][1])[0]
    read(name, msgspec.msgpack.encode({"type": kind.__name__, **fields}))


@pytest.mark.parametrize("name", DECODERS)
def test_any_message_of_a_kind_is_read_and_a_mangled_one_is_refused_or_read(name: str) -> None:
    decode, kind = DECODERS[name]
    make, rng = anything(kind), Random(name)
    for _ in range(FRAMES):
        message = make(rng)
        payload = encode(message)
        assert encode(decode(payload)) == payload
        read(name, mangled(encode_frame(payload), rng)[HEADER_BYTES:])


@pytest.mark.parametrize("path", [*CORPUS, *RECORDED], ids=lambda path: str(path.name))
def test_the_corpus_is_read_or_refused_by_everybody(path: Path) -> None:
    data = path.read_bytes()
    for name in DECODERS:
        for payload in (data, *frames(data)):
            read(name, payload)


def frames(data: bytes, sizes: Sequence[int] = ()) -> list[bytes]:
    """The payloads in a stream that comes in pieces of these sizes and the rest, as far as it is read."""
    decoder, payloads, start = FrameDecoder(), list[bytes](), 0
    try:
        for size in (*sizes, len(data)):
            payloads += decoder.feed(data[start : start + size])
            start += size
    except RemoteProtocolError:
        pass
    return payloads


@given(
    payloads=st.lists(st.binary(max_size=30), max_size=6),
    sizes=st.lists(st.integers(1, 12), min_size=1),
    cut=st.integers(1, 10),
)
@settings(deadline=None)
def test_a_stream_is_cut_into_the_same_frames_however_its_bytes_arrive(
    payloads: list[bytes], sizes: list[int], cut: int
) -> None:
    unfinished = encode_frame(b"0123456")[:cut]
    assert frames(b"".join(map(encode_frame, payloads)) + unfinished, sizes) == payloads


@given(length=st.integers(MAX_FRAME_BYTES + 1, 2**32 - 1), behind=st.binary(max_size=20))
def test_a_frame_that_claims_too_much_is_refused_before_anything_is_held_for_it(length: int, behind: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        FrameDecoder().feed(length.to_bytes(HEADER_BYTES, "big") + behind)

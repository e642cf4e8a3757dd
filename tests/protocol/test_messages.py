"""Messages: what is encoded is decoded, and nonsense is refused in one way only."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.errors import RemoteProtocolError
from protocol.messages import Message, control, encode, fleet, member, runner
from protocol.messages.member import Answer, Renewal, Wait

DECODERS: list[Callable[[bytes], Any]] = [
    member.decode_to_coordinator,
    member.decode_to_runner,
    runner.decode_take_on,
    runner.decode_record,
    control.decode_greeting,
    control.decode_request,
    control.decode_reply,
]


@pytest.mark.parametrize("decode", DECODERS)
@settings(deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_refused_and_raises_nothing_else(decode: Callable[[bytes], Any], noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(noise)


NESTED = b"\x81" * 5000 + b"\x01"


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("payload", [b"", NESTED, b"\x91" * 5000, encode({"type": "Nobody"}), encode([1, 2])])
def test_nonsense_that_is_sound_messagepack_is_refused_too(decode: Callable[[bytes], Any], payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(payload)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        member.decode_to_coordinator(encode(Answer(number=1, epoch=1, order=Wait())))
    with pytest.raises(RemoteProtocolError):
        member.decode_to_runner(encode(Renewal(number=1)))


def test_a_field_of_a_newer_version_is_skipped() -> None:
    raw = msgspec.msgpack.decode(encode(Renewal(number=7)))
    assert member.decode_to_coordinator(encode({**raw, "mood": "good"})) == Renewal(number=7)


def test_a_field_that_an_older_version_did_not_have_gets_its_default() -> None:
    assert member.decode_to_coordinator(encode({"type": "Renewal", "number": 7})) == Renewal(number=7)


LONG = "x" * 5000
RANK = member.RankReport(rank=0, local_rank=0, pid=1, started=True)
EXIT = member.RankExit(code=1, order=0, wall_s=0.0, ran_s=0.0, stopped_by_us=False)
OFFER = member.Offer(slots=1, address="10.0.0.1", port=1)
JOIN = fleet.Join(
    versions=(1,), fleet="default", node="b", identity="of-b-dir", incarnation=1, address="10.0.0.2", port=1, join=()
)
FAILURE = fleet.StartFailure(run="j@1", number=1, reason="no room")
BURIED = fleet.RunnerBuried(run="j@1", incarnation="aa")


@pytest.mark.parametrize(
    "long",
    [
        Renewal(number=1, ranks=(replace(RANK, phase=LONG),)),
        Renewal(number=1, ranks=(replace(RANK, remark=LONG),)),
        Renewal(number=1, ranks=(replace(RANK, exit=replace(EXIT, oom=LONG)),)),
        Renewal(number=1, ranks=(replace(RANK, exit=replace(EXIT, stderr_tail=(LONG.encode(),))),)),
        Renewal(number=1, ranks=(replace(RANK, exit=replace(EXIT, stderr_tail=(b"",) * 201)),)),
        Renewal(number=1, ranks=(RANK,) * 5000),
        Renewal(number=1, stuck_pids=(1,) * 5000),
        Renewal(number=1, spawn_failure=member.SpawnFailure(rank=0, path=LONG, reason="")),
        Renewal(number=1, spawn_failure=member.SpawnFailure(rank=0, path="", reason=LONG)),
        *(
            Renewal(number=1, offer=replace(OFFER, **{name: LONG}))
            for name in ("address", "problem", "waits_for", "note")
        ),
        Renewal(number=1, offer=replace(OFFER, address="10.0.0.1\0")),
        Renewal(number=1, offer=replace(OFFER, digest={LONG: ""})),
        Renewal(number=1, offer=replace(OFFER, digest={"job": LONG})),
        Renewal(number=1, offer=replace(OFFER, digest={str(number): "" for number in range(17)})),
        replace(JOIN, fleet=LONG),
        replace(JOIN, versions=(1,) * 101),
        replace(JOIN, address="10.0.0.2\0"),
        *(fleet.NodeReport(number=1, failures=(replace(FAILURE, **{name: LONG}),)) for name in ("run", "reason")),
        *(fleet.NodeReport(number=1, buried=(replace(BURIED, **{name: LONG}),)) for name in ("run", "incarnation")),
        fleet.NodeReport(number=1, failures=(FAILURE,) * 5000),
        fleet.NodeReport(number=1, buried=(BURIED,) * 5000),
    ],
)
def test_what_a_peer_says_has_a_limit_everywhere(long: Message) -> None:
    decode: Callable[[bytes], Any] = {
        Renewal: member.decode_to_coordinator,
        fleet.Join: fleet.decode_first,
        fleet.NodeReport: fleet.decode_report,
    }[type(long)]
    with pytest.raises(RemoteProtocolError):
        decode(encode(long))


def test_bytes_survive_as_they_are() -> None:
    chunk = control.LogChunk(generation=0, node="n", rank=0, stream="out", data=bytes(range(256)))
    assert control.decode_reply(encode(chunk)) == chunk

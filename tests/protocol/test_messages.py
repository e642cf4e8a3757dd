"""Messages: what is encoded is decoded, and nonsense is refused in one way only."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.messages import control, encode, member, runner
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


def test_bytes_survive_as_they_are() -> None:
    chunk = control.LogChunk(generation=0, node="n", rank=0, stream="out", data=bytes(range(256)))
    assert control.decode_reply(encode(chunk)) == chunk

"""Frames: whatever pieces a stream arrives in, the same payloads come out, and nothing big gets in."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.framing import HEADER_BYTES, MAX_FRAME_BYTES, FrameDecoder, encode_frame


@settings(deadline=None)
@given(payloads=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same_payloads(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(payload) for payload in payloads)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    decoder = FrameDecoder()
    got: list[bytes] = []
    for start, end in pairwise(places):
        got += decoder.feed(stream[start:end])
    assert got == payloads


def test_a_frame_is_its_length_in_four_bytes_big_endian_and_the_payload() -> None:
    assert encode_frame(b"ab") == b"\0\0\0\x02ab"


def test_the_largest_frame_passes_and_one_byte_more_is_refused_on_both_sides() -> None:
    largest = bytes(MAX_FRAME_BYTES)
    assert FrameDecoder().feed(encode_frame(largest)) == [largest]
    with pytest.raises(LocalProtocolError):
        encode_frame(largest + b"!")
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed((MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big"))


def test_a_claim_of_a_huge_frame_is_refused_before_any_of_it_has_come() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(b"\xff\xff\xff\xff")

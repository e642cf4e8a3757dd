"""Frames on every stream: four bytes of length (big-endian), then that many bytes of MessagePack.

The limit is checked on the length itself, before anything is buffered for it, so
a peer that claims a huge frame costs us four bytes and its connection.
"""

from protocol.errors import LocalProtocolError, RemoteProtocolError

HEADER_BYTES = 4
MAX_FRAME_BYTES = 8 * 1024 * 1024
"""A job with its environment is the largest message; Linux bounds an environment at a quarter of
the stack limit (2 MiB by default, execve(2)), so this leaves room for it and its arguments."""


def encode_frame(payload: bytes) -> bytes:
    """The bytes of one frame.

    Raises LocalProtocolError where `payload` is over the limit.
    """
    if len(payload) > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Cuts a byte stream, in whatever pieces it arrives, into the payloads of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take in bytes; return the payloads that are complete now, oldest first.

        Raises RemoteProtocolError where a frame claims more than MAX_FRAME_BYTES.
        """
        self._buffer += data
        payloads = []
        start = 0
        while len(self._buffer) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            length = int.from_bytes(self._buffer[start:body], "big")
            if length > MAX_FRAME_BYTES:
                raise RemoteProtocolError(f"frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            if len(self._buffer) - body < length:
                break
            payloads.append(bytes(self._buffer[body : body + length]))
            start = body + length
        del self._buffer[:start]
        return payloads

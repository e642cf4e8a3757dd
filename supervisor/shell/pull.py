"""A connection whose frames are taken one by one: whoever takes them slowly makes the other side wait."""

import asyncio
from collections import deque

from protocol.errors import RemoteProtocolError
from protocol.messages import encode
from supervisor.shell.channel import Channel

FRAMES_MAX, BYTES_MAX = 8, 128 << 10
"""So many frames, or so much, may wait before nothing is read any more (what one read has brought comes on top)."""


class Pull:
    """Has a `channel` to be connected; or takes one over."""

    def __init__(self, channel: Channel | None = None) -> None:
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._word = asyncio.Event()
        self._is_held = False
        self.channel = channel or Channel(lambda _channel: None, self._on_frame, self._on_closed)
        if channel is not None:
            channel.hand_over(self._on_frame, self._on_closed)

    async def __aenter__(self) -> "Pull":
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.channel.close()

    async def frame(self) -> bytes | None:
        """The next frame; None where the connection has ended. Raises RemoteProtocolError where the peer has sent
        nonsense."""
        while not self._frames:
            if self.channel.closed.is_set():
                if self.channel.error:
                    raise RemoteProtocolError(self.channel.error)
                return None
            self._word.clear()
            await self._word.wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        if self._is_held and not self._is_full():
            self._is_held = False
            self.channel.hold(False)
        return frame

    def send(self, message: object) -> None:
        """Send a message; nothing happens on a connection that has ended."""
        self.channel.send(encode(message))

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        self._frames.append(payload)
        self._bytes += len(payload)
        self._word.set()
        if self._is_full() and not self._is_held:
            self._is_held = True
            channel.hold(True)

    def _is_full(self) -> bool:
        return len(self._frames) >= FRAMES_MAX or self._bytes >= BYTES_MAX

    def _on_closed(self, channel: Channel) -> None:
        self._word.set()

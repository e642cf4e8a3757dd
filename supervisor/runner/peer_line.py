"""One connection between two runners of a run."""

import asyncio

from protocol.framing import MAX_FRAME_BYTES
from protocol.messages import encode
from protocol.messages.member import Witness
from protocol.messages.witness import ToRunnerPeer, WordWanted
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s

FRAMES_MAX, BYTES_MAX = 100, MAX_FRAME_BYTES
"""In a second, of one peer. A runner that is alone says eight things a second to a witness, and hears as many. Who says
more than this is not read for the rest of the second, so that a flood takes but a part of our time."""

WINDOW_S = 1.0

SILENT_S = 1.0
"""After so long without an answer another line is tried beside this one: TCP sends again ever more seldom, and so late
after the network is whole again."""


class Line:
    """A connection that a peer has opened, or that we have, to `witness`. Whose it is the peer's Hello says."""

    def __init__(self, channel: Channel, witness: Witness | None) -> None:
        self.channel = channel
        self.witness = witness
        self.node = ""
        self.incarnation = ""  # "": it has not said so yet
        self._asked_s: float | None = None  # when it was asked the first thing that it has not answered
        self._window_s = 0.0
        self._frames = self._bytes = 0
        self._is_held = False

    @property
    def is_ours(self) -> bool:
        """Whether we have opened it."""
        return self.witness is not None

    @property
    def expected(self) -> str:
        """The incarnation that we wanted to reach; "" where the peer has come to us."""
        return self.witness.incarnation if self.witness else ""

    @property
    def is_up(self) -> bool:
        """Whether the peer has said who it is, and what is sent now may reach it."""
        return self.incarnation != "" and self.channel.is_open

    @property
    def is_silent(self) -> bool:
        """Whether the peer owes us its word for long, given or not."""
        return self._asked_s is not None and boot_s() > self._asked_s + SILENT_S

    def send(self, message: ToRunnerPeer) -> None:
        """Send it, unless the peer does not read what was sent before: whatever is said here is said again."""
        if isinstance(message, WordWanted) and self._asked_s is None:
            self._asked_s = boot_s()
        if self.channel.is_drained:
            self.channel.send(encode(message))

    def on_answer(self) -> None:
        """The peer has answered."""
        self._asked_s = None

    def admits(self, size: int) -> bool:
        """A frame of that many bytes has come: whether to look at it. Else the peer is held up for a while."""
        now_s = boot_s()
        if now_s >= self._window_s + WINDOW_S:
            self._window_s, self._frames, self._bytes = now_s, 0, 0
        self._frames += 1
        self._bytes += size
        if self._frames <= FRAMES_MAX and self._bytes <= BYTES_MAX:
            return True
        if not self._is_held:
            self._is_held = True
            self.channel.hold(True)
            asyncio.get_running_loop().call_later(self._window_s + WINDOW_S - now_s, self._let_go)
        return False

    def _let_go(self) -> None:
        self._is_held = False
        self.channel.hold(False)

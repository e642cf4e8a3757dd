"""Connections between processes: slower, less ordered and less faithful than TCP, so that no rule may rest on TCP.

What is sent on a connection may be lost, doubled, late or overtaken, and arrives also after the connection has broken.
A cut silences one direction between two machines: connections stay open, and nothing comes through; a clog holds back
what is sent meanwhile for seconds, and lets it through then, also after a cut that came later. Only who a connection
belongs to is sure, on both sides; and the greetings, without which there is none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tests.sim.kernel import Clock, Process

CONNECT_S = (0.001, 0.02)
NOTICE_S = 4.0
"""How long it may take until a side notices that its connection is broken."""

NOTICE_CUT_S = 12.0
"""The same where no word of that gets through: then it is given up for its silence."""

CLOG_S = (1.0, 10.0)
"""How long a clog holds a message back."""

RETRY_S = (0.25, 0.5)
"""Pause between two attempts to connect, as in supervisor/runner/link.py."""


@dataclass
class Weather:
    """What the network does to messages. Probabilities are per message; nothing in it ever holds for the greetings."""

    loss: float = 0.0
    double: float = 0.0
    hold: float = 0.0  # late by up to `hold_max_s`, so that others overtake it
    hold_max_s: float = 6.0
    delay_s: tuple[float, float] = (0.0002, 0.002)


CALM = Weather()


def address_of(node: str) -> str:
    """Where the other nodes reach it."""
    return f"10.0.0.{node}"


class Server(Protocol):
    """The side that is connected to."""

    process: Process

    def on_open(self, connection: "Connection", hello: Any) -> None:
        """Somebody has connected and said who it is."""

    def on_message(self, connection: "Connection", message: Any) -> None:
        """It says something."""

    def on_closed(self, connection: "Connection") -> None:
        """It is gone, or cannot be reached."""


Way = tuple[str, str]
"""From one machine to another."""


class Network:
    """All connections there are, and the weather."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.weather = CALM
        self.cut_until_s: dict[Way, float] = {}  # nothing gets through before
        self.clogged_until_s: dict[Way, float] = {}
        self.connections: dict[Connection, None] = {}
        self._listeners: dict[int, tuple[Server, str]] = {}  # by port, which is nobody else's ever
        self._count = 0

    def number(self) -> int:
        """A number that was not given out before."""
        self._count += 1
        return self._count

    def listen(self, node: str, server: "Server") -> int:
        """Let a server be reached on that node, by the port that this returns."""
        port = 10_000 + self.number()
        self._listeners[port] = server, node
        return port

    def listener(self, address: str, port: int) -> "tuple[Server, str] | None":
        """Who listens there, and on which node; None: nobody."""
        found = self._listeners.get(port)
        return found if found is not None and address == address_of(found[1]) else None

    # --- cuts and clogs ------------------------------------------------------------------------------------------

    def cut(self, ways: Iterable[Way], seconds: float) -> None:
        """Let nothing through there for so long."""
        for way in ways:
            self.cut_until_s[way] = max(self.cut_until_s.get(way, 0.0), self.clock.now_s + seconds)

    def clog(self, ways: Iterable[Way], seconds: float) -> None:
        """Hold everything back that is sent there for so long."""
        for way in ways:
            self.clogged_until_s[way] = max(self.clogged_until_s.get(way, 0.0), self.clock.now_s + seconds)

    def heal(self) -> None:
        """Everything gets through again; what a clog holds is still on its way."""
        self.cut_until_s.clear()
        self.clogged_until_s.clear()

    def is_cut(self, here: str, there: str) -> bool:
        """Whether a message from here to there would be lost."""
        return here != there and self.clock.now_s < self.cut_until_s.get((here, there), 0.0)

    def is_cut_off(self, here: str, there: str) -> bool:
        """Whether no connection can be made: a way there and a way back are needed."""
        return self.is_cut(here, there) or self.is_cut(there, here)

    # --- messages ------------------------------------------------------------------------------------------------

    def carry(self, way: Way, receiver: Process, deliver: Callable[[], None]) -> None:
        """Bring a message there, or not."""
        clock, weather, rng = self.clock, self.weather, self.clock.rng
        if self.is_cut(*way):
            clock.seen["fault: message lost on a cut link"] += 1
            return
        if way[0] != way[1] and clock.now_s < self.clogged_until_s.get(way, 0.0):
            clock.seen["fault: message held by a clog"] += 1
            receiver.after(rng.uniform(*CLOG_S), deliver)
            return
        if weather is CALM:
            receiver.after(rng.uniform(*weather.delay_s), deliver)
            return
        luck = rng.random()
        if luck < weather.loss:
            clock.seen["fault: message lost"] += 1
            return
        luck -= weather.loss
        copies = 1
        if luck < weather.double:
            clock.seen["fault: message doubled"] += 1
            copies = 2
        for _ in range(copies):
            delay_s = rng.uniform(*weather.delay_s)
            if rng.random() < weather.hold:
                clock.seen["fault: message held back"] += 1
                delay_s += rng.uniform(0.0, weather.hold_max_s)
            receiver.after(delay_s, deliver)

    # --- ends ----------------------------------------------------------------------------------------------------

    def end_of(self, process: Process) -> None:
        """A process is dead: its kernel ends its connections, which the other sides learn soon or late."""
        for connection in [c for c in self.connections if process in (c.line.process, c.server.process)]:
            connection.close(slowly=self.clock.chance(0.2))

    def vanish(self, process: Process) -> None:
        """The same where its kernel is gone with it: the other sides see that for themselves."""
        for connection in [c for c in self.connections if process in (c.line.process, c.server.process)]:
            connection.close(within_s=NOTICE_CUT_S)

    def break_some(self, node: str) -> int:
        """Break the connections of a node; returns how many there were."""
        return self._break([c for c in self.connections if node in (c.here, c.there)])

    def break_between(self, ways: Iterable[Way]) -> int:
        """Break the connections that go any of these ways."""
        pairs = {frozenset(way) for way in ways}
        return self._break([c for c in self.connections if frozenset((c.here, c.there)) in pairs])

    @staticmethod
    def _break(some: "list[Connection]") -> int:
        for connection in some:
            connection.close(slowly=True)
        return len(some)


class Connection:
    """One connection, from the process that has opened it (on node `here`) to a server (on node `there`)."""

    def __init__(self, network: Network, line: "Line", server: Server, here: str, there: str) -> None:
        self.network = network
        self.line = line
        self.server = server
        self.here = here
        self.there = there
        self.number = network.number()
        self.is_open = True
        self.guest: Any = None  # who it is, to the server
        network.connections[self] = None

    def send_up(self, message: Any) -> None:
        """From the one that has opened it."""
        self.network.carry((self.here, self.there), self.server.process, lambda: self.server.on_message(self, message))

    def send_down(self, message: Any) -> None:
        """From the server."""
        self.network.carry((self.there, self.here), self.line.process, lambda: self.line.on_message(self, message))

    def greet(self, message: Any) -> None:
        """From the server, when it takes the guest in or refuses it: it comes through, or the connection breaks."""
        if self._is_through(self.there, self.here):
            wait_s = self.network.clock.rng.uniform(*CONNECT_S)
            self.line.process.after(wait_s, lambda: self.line.on_message(self, message))

    def greet_up(self, message: Any) -> None:
        """From the one that has opened it, before it is taken in."""
        if self._is_through(self.here, self.there):
            wait_s = self.network.clock.rng.uniform(*CONNECT_S)
            self.server.process.after(wait_s, lambda: self.server.on_message(self, message))

    def _is_through(self, here: str, there: str) -> bool:
        if self.network.is_cut(here, there):
            self.close(slowly=True)
            return False
        return True

    def close(self, *, slowly: bool = False, within_s: float = 0.0) -> None:
        """Break it: both sides notice, one perhaps long after the other."""
        if not self.is_open:
            return
        self.is_open = False
        del self.network.connections[self]
        rng, most_s = self.network.clock.rng, within_s or (NOTICE_S if slowly else 0.05)
        if self.network.is_cut_off(self.here, self.there):
            most_s = NOTICE_CUT_S
        self.server.process.after(rng.uniform(0.0, most_s), lambda: self.server.on_closed(self))
        self.line.process.after(rng.uniform(0.0, most_s), lambda: self.line.on_closed(self))


class Line:
    """The side that connects, and comes back for as long as it takes; only the newest connection counts."""

    def __init__(
        self,
        process: Process,
        network: Network,
        here: str,
        find: Callable[[], tuple[Server, str] | None],
        hello: Callable[[], Any],
        on_answer: Callable[[Any], None],
        on_lost: Callable[[], None],
        *,
        is_strict: bool = False,
    ) -> None:
        self._is_strict = is_strict  # hears nothing of connections that it has given up
        self.process = process
        self.connection: Connection | None = None
        self._network = network
        self._here = here
        self._find = find  # the server and its node; None: nobody listens
        self._hello = hello
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._is_over = False
        process.after(network.clock.rng.uniform(*CONNECT_S), self._connect)

    def send(self, message: Any) -> None:
        """Send it if there is anybody to hear it."""
        if self.connection is not None:
            self.connection.send_up(message)

    def introduce(self, message: Any) -> None:
        """Tell what the server has to know before it takes us in."""
        if self.connection is not None:
            self.connection.greet_up(message)

    def drop(self) -> None:
        """Give this connection up."""
        if self.connection is not None:
            self.connection.close()

    def leave(self) -> None:
        """Give it up for good."""
        self._is_over = True
        self.drop()

    def _connect(self) -> None:
        if self._is_over:
            return
        found = self._find()
        if found is None or not found[0].process.is_alive or self._network.is_cut_off(self._here, found[1]):
            self._again()
            return
        server, there = found
        if not server.process.is_awake:  # its kernel takes us; it will not greet us before
            self._again()
            return
        self.connection = Connection(self._network, self, server, self._here, there)
        server.on_open(self.connection, self._hello())

    def _again(self) -> None:
        self.process.after(self._network.clock.rng.uniform(*RETRY_S), self._connect)

    def on_message(self, connection: Connection, message: Any) -> None:
        """The server says something."""
        if connection is self.connection or not self._is_strict:
            self._on_answer(message)
        else:
            self._network.clock.seen["ignored: message of a connection that was given up"] += 1

    def on_closed(self, connection: Connection) -> None:
        """The connection is gone."""
        if self.connection is connection:
            self.connection = None
            if not self._is_over:
                self._on_lost()
                self._again()

"""Connections between processes: slower, less ordered and less faithful than TCP, so that no rule may rest on TCP.

What is sent on a connection may be lost, doubled, late or overtaken, and arrives also after the connection has broken.
Only who a connection belongs to is sure, on both sides; and the greetings, without which there is none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tests.sim.kernel import Clock, Process

CONNECT_S = (0.001, 0.02)
NOTICE_S = 4.0
"""How long it may take until a side notices that its connection is broken."""

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


class Server(Protocol):
    """The side that is connected to."""

    process: Process

    def on_open(self, connection: "Connection", hello: Any) -> None:
        """Somebody has connected and said who it is."""

    def on_message(self, connection: "Connection", message: Any) -> None:
        """It says something."""

    def on_closed(self, connection: "Connection") -> None:
        """It is gone, or cannot be reached."""


class Network:
    """All connections there are, and the weather."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.weather = CALM
        self.cut_until_s: dict[str, float] = {}  # node -> no message goes in or out before
        self.connections: dict[Connection, None] = {}

    def is_cut(self, *nodes: str) -> bool:
        """Whether a message between these nodes would be lost."""
        return len(set(nodes)) > 1 and any(self.clock.now_s < self.cut_until_s.get(node, 0.0) for node in nodes)

    def carry(self, connection: "Connection", receiver: Process, deliver: Callable[[], None]) -> None:
        """Bring a message there, or not."""
        clock, weather, rng = self.clock, self.weather, self.clock.rng
        if self.is_cut(connection.here, connection.there):
            clock.seen["fault: message lost on a cut link"] += 1
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

    def end_of(self, process: Process) -> None:
        """A process is dead: its kernel ends its connections, which the other sides learn soon or late."""
        for connection in [c for c in self.connections if process in (c.line.process, c.server.process)]:
            connection.close(slowly=self.clock.chance(0.2))

    def break_some(self, node: str) -> int:
        """Break the connections of a node; returns how many there were."""
        mine = [c for c in self.connections if node in (c.here, c.there)]
        for connection in mine:
            connection.close(slowly=True)
        return len(mine)


class Connection:
    """One connection, from the process that has opened it (on node `here`) to a server (on node `there`)."""

    def __init__(self, network: Network, line: "Line", server: Server, here: str, there: str) -> None:
        self.network = network
        self.line = line
        self.server = server
        self.here = here
        self.there = there
        self.is_open = True
        self.guest: Any = None  # who it is, to the server
        network.connections[self] = None

    def send_up(self, message: Any) -> None:
        """From the one that has opened it."""
        self.network.carry(self, self.server.process, lambda: self.server.on_message(self, message))

    def send_down(self, message: Any) -> None:
        """From the server."""
        self.network.carry(self, self.line.process, lambda: self.line.on_message(self, message))

    def greet(self, message: Any) -> None:
        """From the server, when it takes the guest in or refuses it: nothing happens to that on its way."""
        wait_s = self.network.clock.rng.uniform(*CONNECT_S)
        self.line.process.after(wait_s, lambda: self.line.on_message(self, message))

    def close(self, *, slowly: bool = False) -> None:
        """Break it: both sides notice, one perhaps long after the other."""
        if not self.is_open:
            return
        self.is_open = False
        del self.network.connections[self]
        rng, most_s = self.network.clock.rng, NOTICE_S if slowly else 0.05
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
        process.after(network.clock.rng.uniform(*CONNECT_S), self._connect)

    def send(self, message: Any) -> None:
        """Send it if there is anybody to hear it."""
        if self.connection is not None:
            self.connection.send_up(message)

    def drop(self) -> None:
        """Give this connection up."""
        if self.connection is not None:
            self.connection.close()

    def _connect(self) -> None:
        found = self._find()
        if found is None or not found[0].process.is_alive or self._network.is_cut(self._here, found[1]):
            self._again()
            return
        server, there = found
        if server.process.clock.now_s < server.process.thaws_s:  # its kernel takes us; it will not greet us before
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
            self._on_lost()
            self._again()

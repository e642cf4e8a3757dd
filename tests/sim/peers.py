"""A runner's connections to other runners of its run: those it has opened to its witnesses, and those opened to it.

A connection belongs to two runners and serves both. It plays what supervisor/runner does around the machine of a
member: greetings both ways, connections that come back, and nothing that is kept for one that is not there.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from protocol.messages.member import Hello, Witness
from protocol.messages.witness import ToRunnerPeer
from tests.sim.kernel import Process
from tests.sim.network import Connection, Line, Network

MEET_S = 10.0
"""Within so much there is a connection to each witness, if nothing is to be sent to it before."""


class Peers:
    """The side that listens, and a line to each witness."""

    def __init__(
        self,
        process: Process,
        network: Network,
        here: str,
        hello: Callable[[], Hello],
        on_message: Callable[[str, str, ToRunnerPeer], None],
        on_reached: Callable[[frozenset[str]], None],
    ) -> None:
        self.process = process
        self.port = network.listen(here, self)
        self._network = network
        self._here = here
        self._hello = hello
        self._on_message = on_message  # of this node and incarnation
        self._on_reached = on_reached
        self._witnesses: dict[str, Witness] = {}  # by incarnation
        self._lines: dict[str, Line] = {}
        self._greeted: set[str] = set()  # witnesses that have answered on our line
        self._guests: dict[Connection, Hello] = {}
        self._reached: frozenset[str] = frozenset()

    def meet(self, witnesses: Iterable[Witness]) -> None:
        """These are our witnesses now, and no others."""
        self._witnesses = {witness.incarnation: witness for witness in witnesses}
        for incarnation in [one for one in self._lines if one not in self._witnesses]:
            self._greeted.discard(incarnation)
            self._lines.pop(incarnation).leave()
        for incarnation in self._witnesses:
            self.process.after(self.process.clock.rng.uniform(0.0, MEET_S), partial(self._meet, incarnation))
        self._see()

    def send_all(self, message: ToRunnerPeer) -> None:
        """To all our witnesses."""
        for incarnation in self._witnesses:
            self.send(incarnation, message)

    def send(self, incarnation: str, message: ToRunnerPeer) -> None:
        """To another runner, if there is a connection; to a witness of ours there soon is one."""
        if incarnation in self._greeted:
            self._lines[incarnation].send(message)
        elif (guest := self._connection_of(incarnation)) is not None:
            guest.send_down(message)
        else:
            self._meet(incarnation)

    def _meet(self, incarnation: str) -> None:
        witness = self._witnesses.get(incarnation)
        if witness is None or incarnation in self._lines or self._connection_of(incarnation) is not None:
            return
        self._lines[incarnation] = Line(
            self.process,
            self._network,
            self._here,
            lambda: self._network.listener(witness.address, witness.port),
            self._hello,
            partial(self._hear, witness),
            partial(self._lose, incarnation),
        )

    def _connection_of(self, incarnation: str) -> Connection | None:
        """The newest one that it has opened to us."""
        found = (connection for connection, hello in self._guests.items() if hello.incarnation == incarnation)
        return max(found, key=lambda connection: connection.number, default=None)

    def _hear(self, witness: Witness, message: ToRunnerPeer) -> None:
        """What comes on a line of ours."""
        if not isinstance(message, Hello):
            self._on_message(witness.node, witness.incarnation, message)
        elif witness.incarnation in self._lines:
            self._greeted.add(witness.incarnation)
            self._see()

    def _lose(self, incarnation: str) -> None:
        self._greeted.discard(incarnation)
        self._see()

    def _see(self) -> None:
        guests = {hello.incarnation for hello in self._guests.values()}
        reached = frozenset(one for one in self._witnesses if one in self._greeted or one in guests)
        if reached != self._reached:
            self._reached = reached
            self._on_reached(reached)

    # --- the side that listens -----------------------------------------------------------------------------------

    def on_open(self, connection: Connection, hello: Any) -> None:
        """Another runner has connected."""
        connection.guest = self._guests[connection] = hello
        connection.greet(self._hello())
        self._see()

    def on_message(self, connection: Connection, message: Any) -> None:
        """It says something."""
        self._on_message(connection.guest.node, connection.guest.incarnation, message)

    def on_closed(self, connection: Connection) -> None:
        """It is gone, or cannot be reached."""
        hello = self._guests.pop(connection, None)
        if hello is not None:
            self._meet(hello.incarnation)
        self._see()

"""Nodes that should not be there, or only for a moment: they ask to join, and leave again."""

from collections.abc import Callable

from msgspec.structs import replace

from protocol.messages.fleet import Join, Joined, JoinRefused
from tests.sim.kernel import Clock, Process
from tests.sim.network import Line, Network, Server

STAYS_S = (0.3, 6.0)

PLACE = "z"
"""Where they are, and are reached."""

PATIENT = "the name of another"
"""Such a one asks again where it is refused."""

COPY = "the state folder of another, copied"

KINDS: dict[str, Callable[[Join], Join]] = {
    PATIENT: lambda join: replace(join, identity="another state folder", address=PLACE),
    COPY: lambda join: replace(join, address=PLACE),
    "the wrong fleet": lambda join: replace(join, node="z", fleet="g"),
    "the wrong version": lambda join: replace(join, node="z", versions=(99,)),
    "another host": lambda join: replace(join, node="z", join=("z:29410", *join.join)),
    "an address that nobody reaches": lambda join: replace(join, node="z", identity="of node z", address="nowhere"),
    "a clock that is off": lambda join: replace(
        join, node="z", identity="of node z", address=PLACE, wall_s=join.wall_s - 5.0
    ),
    "nothing but a short stay": lambda join: replace(join, node="z", identity="of node z", address=PLACE),
}
"""What is wrong with them."""


class Stranger(Process):
    """It joins, has no runner, and is gone after a moment."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        find: Callable[[], tuple[Server, str] | None],
        kind: str,
        join: Join,
        stays_s: float,
    ) -> None:
        super().__init__(clock, "stranger")
        self._network = network
        self.kind = kind
        self.line = Line(self, network, PLACE, find, lambda: KINDS[kind](join), self._on_message, lambda: None)
        self.after(stays_s, self.leave)
        self.tell("comes with {}", kind)

    def leave(self) -> None:
        """It is switched off."""
        self.kill()
        self._network.end_of(self)

    def _on_message(self, message: object) -> None:
        match message:
            case JoinRefused(code=code):
                self.clock.seen[f"refused: {code}"] += 1
                if self.kind == PATIENT:
                    self.line.drop()
                else:
                    self.leave()
            case Joined(warnings=warnings):
                self.clock.seen["taken: stranger"] += 1
                self.clock.seen["taken: stranger that is warned of"] += bool(warnings)
            case _:
                pass

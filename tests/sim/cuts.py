"""What goes wrong on the network between machines: who does not reach whom, and for how long."""

import random
from collections.abc import Callable, Sequence

from tests.sim.network import Way

LASTS_S = (0.5, 2.0, 4.0, 6.0, 10.0, 20.0)
"""How long a cut may last."""

Names = Sequence[str]


def both_ways(ways: Sequence[Way]) -> list[Way]:
    """These, and back."""
    return [*ways, *((there, here) for here, there in ways)]


def ways_around(one: str, names: Names) -> list[Way]:
    """All ways from and to this machine."""
    return both_ways([(one, other) for other in names if other != one])


def one_way(rng: random.Random, names: Names) -> list[Way]:
    """One way between two machines."""
    here, there = rng.sample(names, 2)
    return [(here, there)]


def pair(rng: random.Random, names: Names) -> list[Way]:
    """Both ways between two machines."""
    return both_ways(one_way(rng, names))


def mute(rng: random.Random, names: Names) -> list[Way]:
    """All ways from one machine, or all ways to it."""
    one = rng.choice(names)
    ways = [(one, other) for other in names if other != one]
    return ways if rng.random() < 0.5 else [(there, here) for here, there in ways]


def alone(rng: random.Random, names: Names) -> list[Way]:
    """All ways from and to one machine."""
    return ways_around(rng.choice(names), names)


def group(rng: random.Random, names: Names) -> list[Way]:
    """All ways between some machines and the others."""
    some = rng.sample(names, rng.randint(1, len(names) - 1))
    return both_ways([(here, there) for here in some for there in names if there not in some])


def several(rng: random.Random, names: Names) -> list[Way]:
    """A few ways, wherever."""
    return [way for _ in range(rng.randint(2, 4)) for way in one_way(rng, names)]


CUTS: dict[str, Callable[[random.Random, Names], list[Way]]] = {
    "link cut": pair,
    "link cut one way": one_way,
    "node deaf or mute": mute,
    "node cut off": alone,
    "group cut off": group,
    "ways cut here and there": several,
}

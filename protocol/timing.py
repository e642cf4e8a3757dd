"""The times of the lease: what supd.toml's [lease] says, and what has to hold between them (docs/protocol.md).

The coordinator's hold for the whole fleet: they go out with its welcome and with each assignment, and a generation
keeps those that it began with.
"""

import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

DRIFT = 0.01
"""How far the clock of a node may go too fast or too slow."""

KILL_S = 0.4
"""From the end of a lease until every process has SIGKILL pending, at the most."""

ASK_S = 0.25
"""Between two times that a runner without answers asks its witnesses."""

ROUND_TRIP_S = 0.4
"""To the coordinator and back by way of a witness, at the most; also to a witness and back."""

ASK_AGAIN_S = 0.3
"""Between two questions of the coordinator to a witness, and between two looks at what has come back."""

GAP_S = 1.0
"""A coordinator that has not looked at its clock for so long was held up itself, and judges nobody by that time."""

FRESH = 0.9
"""What part of `word_s` a testimony counts, from the question on: less than 1 - DRIFT of it."""

_JUDGED_S = ROUND_TRIP_S + ASK_AGAIN_S  # from a question until the look that counts its answer, at the most
_TINY_S = 1e-6  # sums of floating-point seconds fall short by less

Seconds = Annotated[float, Meta(ge=0.01, le=3600)]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long things last. The defaults are those of supd.toml."""

    renew_s: Seconds = 1.0  # between two renewals of a runner
    alone_s: Seconds = 2.0  # without an answer before a runner turns to its witnesses
    suspect_s: Seconds = 3.0  # without a renewal before the coordinator does
    fence_s: Seconds = 4.5  # from the sending of the newest answered renewal until a runner kills its ranks
    ttl_s: Seconds = 5.0  # from the coordinator's last answer until these ranks are gone, whatever has happened
    word_s: Seconds = 2.0  # a witness gives a runner no word for so long after it has told the coordinator of it

    @property
    def fresh_s(self) -> float:
        """How old the coordinator's question may be for the answer to count: until then the witness has given no word,
        though its clock be the fastest."""
        return FRESH * self.word_s


DEFAULTS = Timing()


class Flaw(NamedTuple):
    """What does not hold between two times: one is too short."""

    key: str  # of [lease]
    least_s: float  # that it has to be; rounded up to hundredths
    why: str  # what takes so long: in words, with the numbers
    other: str = ""  # the key that would have to be shorter instead; "": that would not help


def flaws(timing: Timing) -> Iterator[Flaw]:
    """Every inequality that does not hold."""
    t = timing
    rules = (
        Flaw(
            "alone",
            2 * t.renew_s,
            f"twice `renew` ({t.renew_s:g} s), so that one late answer is no silence",
            "renew",
        ),
        Flaw(
            "suspect",
            GAP_S + 0.01,
            f"more than {GAP_S:g} s, after which the coordinator takes itself for held up, and judges nobody",
        ),
        Flaw("suspect", t.alone_s, f"`alone` ({t.alone_s:g} s): a runner turns to its witnesses first", "alone"),
        Flaw(
            "fence",
            t.alone_s + ASK_S + ROUND_TRIP_S,
            f"`alone` ({t.alone_s:g} s), up to {ASK_S:g} s until a runner asks its witnesses (again), {ROUND_TRIP_S:g} "
            "s for an answer by way of them",
            "alone",
        ),
        Flaw(
            "ttl",
            (t.fence_s * (1 + DRIFT) + KILL_S) / (1 - DRIFT),
            f"`fence` ({t.fence_s:g} s) and {KILL_S:g} s to kill every rank, by clocks up to {DRIFT:.0%} off",
            "fence",
        ),
        Flaw(
            "ttl",
            t.suspect_s + _JUDGED_S,
            f"`suspect` ({t.suspect_s:g} s), then {ROUND_TRIP_S:g} s for a witness's answer, up to {ASK_AGAIN_S:g} s "
            "until the coordinator looks at it",
            "suspect",
        ),
        Flaw(
            "word",
            _JUDGED_S / FRESH,
            f"{ROUND_TRIP_S:g} s for a witness's answer, up to {ASK_AGAIN_S:g} s until the coordinator looks at it; it "
            f"counts for {FRESH:.0%} of `word`",
        ),
    )
    for flaw in rules:
        if getattr(t, f"{flaw.key}_s") < flaw.least_s - _TINY_S:
            yield flaw._replace(least_s=math.ceil(flaw.least_s * 100 - _TINY_S) / 100)

"""A runner's machine that has a lease, and ways to let time pass without a coordinator."""

from typing import Any

from protocol.member_events import (
    Cleared,
    Effect,
    Launched,
    Offered,
    Tick,
    Wrote,
)
from protocol.messages.member import Assignment, Order, Part, Run, Stop
from protocol.timing import DEFAULTS
from tests.protocol.build import answered, exited, offer, witnessed
from tests.protocol.runner_stage import KILL, Stage, idle

FENCE_S = DEFAULTS.fence_s
OVER_S = 1.0 + FENCE_S
"""When the lease of a stage is over that was answered at 1.0 and not since."""


def number_of(stage: Stage) -> int:
    """Of its newest renewal."""
    return stage.member.report().number


def gets(stage: Stage, now_s: float, order: Order, **more: Any) -> list[Effect]:
    """The answer to its newest renewal."""
    return stage.at(now_s, answered(order, **{"number": number_of(stage)} | more))


def given_to(given: Assignment) -> Stage:
    """A renewal of 1.0 was answered at once with an order to run."""
    stage = idle()
    stage.at(1.0, Tick())
    gets(stage, 1.0, Run(assignment=given))
    return stage


def leased(given: Assignment | None = None) -> Stage:
    """Its ranks run since 1.0; nothing was heard of the coordinator after that."""
    given = given or witnessed()
    stage = given_to(given)
    stage.at(1.0, Launched(given.generation, (100, 101)))
    for rank in (0, 1):
        stage.at(1.0, Wrote(given.generation, rank))
    assert stage.part is Part.RUNNING
    return stage


def ticks(stage: Stage, until_s: float) -> list[tuple[float, Effect]]:
    """Time passes, and nothing else happens."""
    done: list[tuple[float, Effect]] = []
    while (due_s := stage.member.deadline_s) is not None and due_s <= until_s:
        done += [(due_s, effect) for effect in stage.at(due_s, Tick())]
    return done


def of(kind: Any, effects: list[Effect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def killed(stage: Stage, now_s: float) -> list[Effect]:
    """Its ranks end by SIGKILL, and nothing is left."""
    generation = stage.member.generation
    effects = [effect for rank in (0, 1) for effect in stage.exits(now_s, rank, exited(signal=KILL))]
    return [*effects, *stage.at(now_s, Cleared(generation))]


def fenced() -> Stage:
    """Its lease was over, and all is gone; it has offered itself again."""
    stage = leased()
    ticks(stage, OVER_S)
    killed(stage, OVER_S)
    stage.at(OVER_S, Offered(offer(port=4001)))
    assert stage.part is Part.STOPPED
    return stage


def stopped() -> Stage:
    """Its part was stopped by the coordinator, which has answered what it said at 2.0."""
    stage = leased()
    stage.at(2.0, Tick())
    gets(stage, 2.0, Stop(generation=0, now=True))
    killed(stage, 2.0)
    assert stage.part is Part.STOPPED
    return stage

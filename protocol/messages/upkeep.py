"""What operators ask of nodes and runs that there are: some of the requests of control.py, and an answer to one."""

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.job import MAX_NNODES
from protocol.messages import Message

REASON_MAX = 300
"""Characters of an operator's reason; it becomes part of every worker's environment."""

GRACE_MAX_S = 365 * 86400.0

PLAN_DEADLINE_S = 1800.0
"""The longest wait of a planned change for a checkpoint, where nobody has said another."""

NodeNames = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...], Meta(min_length=1, max_length=1000)
]


class DrainNodes(Message, frozen=True):
    """Have nodes free: they take no new work, and runs leave them; what each run waits for says its `RunStatus.plan`.
    Refused: F112 (exit 3) where the fleet has no such node."""

    nodes: NodeNames
    at: Annotated[str, Meta(pattern="^(next-checkpoint|now|time)$")] = "next-checkpoint"
    after_s: Annotated[float, Meta(ge=0, le=GRACE_MAX_S)] = 0.0  # with "time": how long from now
    deadline_s: Annotated[float, Meta(ge=0, le=GRACE_MAX_S)] = PLAN_DEADLINE_S  # the longest wait for a checkpoint
    reason: Annotated[str, Meta(max_length=REASON_MAX)] = ""


class UndrainNodes(Message, frozen=True):
    """Have nodes used again: drains, exclusions and preemption notices are lifted. Refused as DrainNodes."""

    nodes: NodeNames


class ScaleRun(Message, frozen=True):
    """Other numbers of nodes for a run, at its next checkpoint."""

    run: str
    nnodes: tuple[Annotated[int, Meta(ge=1, le=MAX_NNODES)], Annotated[int, Meta(ge=1, le=MAX_NNODES)]]
    deadline_s: Annotated[float, Meta(ge=0, le=GRACE_MAX_S)] = PLAN_DEADLINE_S


class ResumeRun(Message, frozen=True):
    """Go on with a run that is held."""

    run: str


class AskPolicy(Message, frozen=True):
    """What the restart policy would do if a rank ended like this `times` times in a row, from where the run stands; it
    changes nothing. Which rank makes no difference."""

    run: str
    exit_code: Annotated[int, Meta(ge=0, le=255)]  # as a shell shows it: 128 + N for signal N
    times: Annotated[int, Meta(ge=1, le=1000)] = 1


class PolicyStep(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from one failure."""

    number: int  # of the failure: 1, 2, 3 …
    action: str  # "restart", "fail" or "hold"
    delay_s: float
    charged: bool
    why: str


class Policy(Message, frozen=True):
    """The answer to AskPolicy: at most as many steps as were asked for; the last one may end the run."""

    run: str
    steps: tuple[PolicyStep, ...]

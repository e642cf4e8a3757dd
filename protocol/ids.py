"""Names for the identifiers that travel through every layer."""

from typing import Annotated, NewType

from msgspec import Meta

RunId = NewType("RunId", str)
"""`NAME@HEX`: one `supctl start` of a job, unique in its fleet."""

RUN_FORM = r"^[^/\x00]{1,80}@[0-9a-f]{1,16}$"
"""Of a run's name: it becomes that of a folder."""

RunName = Annotated[str, Meta(pattern=RUN_FORM)]
Incarnation = Annotated[str, Meta(min_length=1, max_length=100)]
"""Which runner: random, never used again."""

NO_GENERATION = -1
"""The generation of a runner that has not launched any."""

EPOCH_MAX = 10**15
"""Above this an epoch is nonsense: it is refused wherever it is read."""

EPOCH_TOLD_MAX = 10**12
EPOCH_LEAP_MAX = 10**6
"""What others say of a coordinator's epoch is believed up to the first number, or so far above what is known: else one
lie would leave no room to count on. No coordinator begins so often."""

Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
"""Start count of the coordinator."""

GenerationNumber = Annotated[int, Meta(ge=NO_GENERATION, le=2**31)]
"""Where the word of a peer is used as it is; the coordinator looks at its own."""


def may_be_epoch(told: int, known: int) -> bool:
    """Whether somebody can have heard of this epoch, where the highest one that is known is another."""
    return told <= max(EPOCH_TOLD_MAX, known) + EPOCH_LEAP_MAX


def job_name(run: RunId) -> str:
    """The job a run belongs to."""
    return run.partition("@")[0]

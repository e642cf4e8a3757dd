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

GenerationNumber = Annotated[int, Meta(ge=NO_GENERATION, le=2**31)]
"""Where the word of a peer is used as it is; the coordinator looks at its own."""


def job_name(run: RunId) -> str:
    """The job a run belongs to."""
    return run.partition("@")[0]

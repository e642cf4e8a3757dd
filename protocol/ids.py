"""Names for the identifiers that travel through every layer."""

from typing import NewType

RunId = NewType("RunId", str)
"""`NAME@HEX`: one `supctl start` of a job, unique in its fleet."""

NO_GENERATION = -1
"""The generation of a runner that has not launched any."""


def job_name(run: RunId) -> str:
    """The job a run belongs to."""
    return run.partition("@")[0]

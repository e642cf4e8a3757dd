"""Names for the identifiers that travel through every layer."""

from typing import NewType

NodeName = NewType("NodeName", str)
"""A node's name, unique in its fleet."""

RunId = NewType("RunId", str)
"""`NAME@HEX`: one `supctl start` of a job, unique in its fleet."""

Incarnation = NewType("Incarnation", str)
"""16 hex digits drawn when a runner is started: tells its present from its past."""

NO_GENERATION = -1
"""The generation of a runner that has not launched any."""


def job_name(run: RunId) -> str:
    """The job a run belongs to."""
    return run.partition("@")[0]

"""Whether a job that a runner tells is one that could have been started: a coordinator without memory goes by it.

Its settings are written down as they would stand in a job.toml, and checked as those are.
"""

import re
from typing import Any

from protocol.checks import MAX_DURATION_S
from protocol.effective import duration_text
from protocol.ids import RUN_FORM, RunId, job_name
from protocol.job import LIMITS, Job, JobSpec, Submitter
from protocol.job_rules import check_rules
from protocol.job_schema import SCHEMA
from protocol.tables import Found, Key, check_tables

UMASK_MAX = 0o777


def flaw_of(job: Job) -> str:
    """Why nobody can have started this; "": it may be so. It takes as long as reading a job.toml."""
    if not re.search(RUN_FORM, job.run) or job_name(RunId(job.run)) != job.spec.name:
        return f"`{job.spec.name}` has no run of that name"
    document = written(job.spec)
    found = Found("J")
    values = check_tables(document, SCHEMA, found)
    check_rules(document, values, found)
    if found.problems:
        return found.problems[0].message
    return _flaw_of_submitter(job.submitter)


def written(spec: JobSpec) -> dict[str, Any]:
    """The job as a document of TOML that says what is not default."""
    document: dict[str, Any] = {"name": spec.name, "schema": spec.schema}
    for table, keys in SCHEMA.tables.items():
        struct = getattr(spec, table)
        defaults = type(struct)()
        document[table] = {
            name: _written(key, value)
            for name, key in keys.items()
            if (value := getattr(struct, key.field or name)) != getattr(defaults, key.field or name)
        }
    return document


def _written(key: Key, value: object) -> object:
    if key.written is not None:
        return key.written(value)
    match value:
        case tuple():
            return list(value)
        case dict():
            return {name: "unlimited" if content == -1 else _plain(content) for name, content in value.items()}
        case _:
            return _plain(value)


def _plain(value: object) -> object:
    match value:
        case None:
            return "off"
        case float() if 0 <= value <= MAX_DURATION_S:
            return duration_text(value)
        case _:
            return value


def _flaw_of_submitter(submitter: Submitter) -> str:
    if not submitter.limits.keys() <= set(LIMITS) or min(submitter.limits.values(), default=0) < -1:
        return "its limits are none"
    return "" if 0 <= submitter.umask <= UMASK_MAX else "its umask is none"

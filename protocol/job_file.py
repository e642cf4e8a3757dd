"""Reads a job.toml with what the command line adds to it, against the schema of its keys and the rules over several.

Problems have the codes of `protocol.tables.Kind` behind a J: J0xx unreadable, J1xx unknown, J2xx a value, J3xx values
that contradict.
"""

from collections.abc import Sequence

import msgspec

from protocol.errors import JobInvalid, KeyPath, Problem
from protocol.job import JobSpec
from protocol.job_rules import check_rules, warnings_of
from protocol.job_schema import SCHEMA
from protocol.overlay import origins_of, with_args, with_name, with_settings
from protocol.snippets import Canvas
from protocol.tables import Found, Kind, check_tables
from protocol.toml_text import read_toml

OTHER_TABLES = frozenset({"node", "listen", "fleet", "state", "workers", "log"})
"""Tables of supd.toml."""

_ENV = "env"
_KNOWN = {name for keys in SCHEMA.tables.values() for name in keys} - {_ENV}


def is_secret(path: KeyPath) -> bool:
    """Whether the value of a key may be that of a variable, which no message shows.

    So are those below `env` in whatever table, those whose key is near to it (`environ`), all below a key that is not
    there, and in [run] all tables but `limits`: whoever misspells `env` must not find a key of theirs in a log.
    """
    if any(isinstance(part, str) and _ENV in part.lower() and part not in _KNOWN for part in path):
        return True
    table, *below = path
    if table in SCHEMA.top or not below:
        return False
    if table not in SCHEMA.tables:
        return True
    key, *within = below
    is_variable = table == "run" and key != "limits" and any(isinstance(part, str) for part in within)
    return is_variable or (key not in SCHEMA.tables[str(table)] and bool(within))


class JobFile:
    """A job as it was read, with what of it may not be meant, and the texts to show problems in."""

    def __init__(self, spec: JobSpec, found: Found) -> None:
        self.spec = spec
        self._found = found
        self.warnings = tuple(found.settled(warnings_of(spec)))

    def invalid(self, problems: Sequence[Problem]) -> JobInvalid:
        """What a node has to say against the job, each shown where it stands."""
        return JobInvalid(self._found.source, self._found.settled(problems))


def read_job(
    data: bytes,
    source: str,
    *,
    settings: Sequence[str] = (),
    name: str | None = None,
    args: Sequence[str] = (),
    canvas: Canvas | None = None,
) -> JobFile:
    """The job that a job.toml describes; raises JobInvalid with every problem of it. `source` is for messages.

    `settings` are KEY=VALUE and win over the file, the last one first; `name` is the job's where it is given, and
    `args` are appended to run.args. A file of the largest size takes up to two seconds. Problems are drawn for
    `canvas`.
    """
    found = Found("J", source, is_secret=is_secret, canvas=canvas)
    document = read_toml(data, found)
    if document == {}:
        found.add(Kind.EMPTY, "", "", "the file is empty", 'the least is name = "my-job", [run], script = "train.py"')
    elif document is not None:
        given = with_settings(document, settings, SCHEMA, found)
        given = with_name(given, name, found)
        given, has_args = with_args(given, args)
        values = check_tables(given, SCHEMA, found)
        check_rules(given, values, found)
        if not found.problems:
            origins = origins_of(given, found.origin_of) | ({"run.args": "--"} if has_args else {})
            return JobFile(msgspec.convert({**values, "origins": origins}, JobSpec), found)
    invalid = JobInvalid(source, found.settled(found.problems))
    if document and "run" not in document and document.keys() & OTHER_TABLES:
        invalid.hint = "it looks like a supd.toml, which supd reads itself: supd run --config FILE"
    raise invalid

"""What --json prints: one table of keys an object, from which come the values and the JSON Schemas.

Snake_case, RFC 3339 times in UTC, null for what is not known. Keys never vanish; within a schema's number they are
only added. `supctl help json NAME` and docs/schemas/ have the schemas (draft 2020-12). They leave objects open, since
keys are added; the tests close them, so a key that is not here is not printed either.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from protocol.errors import SupdError
from protocol.ids import RunId, job_name
from protocol.messages.control import NODE_STATES, RANK_STATES, RUN_STATES
from protocol.text import sendable
from supervisor.cli.json_fields import (
    Field,
    Fields,
    Schema,
    filled,
    fixed,
    flag,
    group,
    maybe,
    number,
    several,
    text,
    time,
    utc_or_none,
    whole,
    word,
)
from supervisor.cli.log_lines import Line, Source
from supervisor.shell.clock import wall_s

JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class Document(NamedTuple):
    """What one kind of call prints: one, or one a line."""

    made_by: str
    content: Field


def document(name: str, data: object, warnings: Sequence[str] = ()) -> str:
    """The one document of a read; its schema is `supctl.NAME/1`."""
    return line(name, {"schema": "", "time": wall_s(), "data": data, "warnings": warnings})


def line(name: str, thing: object) -> str:
    """One JSON object on one line."""
    content = DOCUMENTS[name].content.form(thing)
    try:
        return msgspec.json.encode(content).decode()
    except UnicodeEncodeError:  # the name of a file, as the system has it
        import json

        return sendable(json.dumps(content, ensure_ascii=False))


def error_document(error: SupdError, hint: str) -> str:
    """What stderr gets instead of text."""
    where = error.problems[0].place if error.problems else None
    said = {"code": error.code, "message": str(error), "hint": hint, "where": where, "exit": int(error.exit_code)}
    return line("error", {"schema": "", **said})


def log_lines(run: str, source: Source, lines: Sequence[Line]) -> bytes:
    """Lines of output, each as one JSON object on one line."""
    thing = {"run": run, **source._asdict(), **lines[0]._asdict()}
    content = filled(LOG_LINE, thing)
    encoded = []
    read_s = lines[0].read_s
    for line_ in lines:  # that differ in three keys, of which the time is slow to write
        if line_.read_s != read_s:
            read_s = line_.read_s
            content["ts"] = utc_or_none(read_s)
        content["seq"], content["line"] = line_.offset, _decoded(line_.data)
        encoded.append(msgspec.json.encode(content))
    return b"\n".join([*encoded, b""])


def json_schema(name: str) -> Schema:
    """One document's schema, whole."""
    return {"$schema": JSON_SCHEMA, "title": f"supctl.{name}/1", **DOCUMENTS[name].content.schema}


# --- parts -------------------------------------------------------------------------------------------------------


def _job_of(run: str) -> str:
    return job_name(RunId(run))


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


RUN_NAME = text("NAME@HEX")
LABELS = Field(
    {"type": "object", "description": "[node] labels of its supd.toml", "additionalProperties": {"type": "string"}}
)
JOB = text("the job's name", "run", _job_of)
GENERATION = maybe(whole("0, 1, 2 …; null: none yet"))
EXIT_CODE = maybe(whole("that it ended with"))
SIGNAL = maybe(text("that killed it, like SIGKILL"))
CORE_DUMPED = flag("whether it left a core dump")
SHELL_CODE = maybe(whole("the exit code, or 128 + N for signal N"))
MORE = "later versions may have more"

ERROR = group(
    "what the rank itself has said of its end, in the file of TORCHELASTIC_ERROR_FILE",
    {
        "message": text("the first line of it"),
        "raised": maybe(text("the exception and where it was raised, like ValueError at train.py:31")),
        "file": text("on its node"),
    },
)

INCIDENT = group(
    "one failure with all that followed from it",
    {
        "number": whole("1, 2, 3 … in the run", 1),
        "generation": whole("that it ended"),
        "cause": text("exit, signal, out-of-memory, hang, spawn, runner-lost, finish-timeout"),
        "summary": text("what happened, in one line"),
        "node": text("where"),
        "rank": maybe(whole("the rank that was first")),
        "local_rank": maybe(whole("its number on the node")),
        "pid": maybe(whole("its main process")),
        "exit_code": EXIT_CODE,
        "signal": SIGNAL,
        "core_dumped": CORE_DUMPED,
        "shell_code": SHELL_CODE,
        "time": maybe(time("when it was noticed", "wall_s")),
        "stderr_tail": several("what the rank wrote last on stderr", text("a line", form=_decoded)),
        "evidence": maybe(text("what the kernel says of it")),
        "error": maybe(ERROR),
        "cause_key": maybe(text("the same for two failures of one cause, like RuntimeError at train.py:31 or SIGSEGV")),
        "is_root": flag("whether it is known that it began with this rank or node"),
    },
)

RUN = group(
    "one run as it stands",
    {
        "run": RUN_NAME,
        "job": JOB,
        "state": text(f"of the run: {', '.join(RUN_STATES)}; {MORE}"),
        "phase": text("the supervisor's own word for what it does"),
        "is_final": flag("whether it is over"),
        "generation": GENERATION,
        "has_started": flag("whether all ranks of generation 0 have started, ever"),
        "ranks_running": whole("ranks that live"),
        "ranks": maybe(whole("ranks it has; null before a node has offered itself")),
        "nodes": several("where it runs", text("a node")),
        "nnodes": whole("nodes it wants at least", 1, form=lambda nnodes: nnodes[0]),
        "nnodes_max": whole("nodes it takes at most", 1, "nnodes", lambda nnodes: nnodes[1]),
        "spares": several("nodes that stand by", text("a node")),
        "user": maybe(text("who started it")),
        "submitted_at": maybe(time("when it was started", "submitted_wall_s")),
        "ended_at": maybe(time("when it was over", "ended_wall_s")),
        "reason": maybe(text("why it is in this state")),
        "lacked_nodes": flag("whether it failed for too few nodes"),
        "waiting_for": maybe(text("what it waits for")),
        "wait_left_seconds": maybe(number("of a wait that ends by itself", "wait_left_s")),
        "plan": maybe(text("the planned change that is to come, and what that waits for")),
        "plan_left_seconds": maybe(number("after so long it comes without a checkpoint", "plan_left_s")),
        "restarts_used": whole("restarts after failures so far"),
        "max_restarts": whole("restarts after failures it may have; -1: no limit", -1),
        "infra_restarts_used": whole("restarts after losses of nodes and runners so far", of="infra_used"),
        "max_infra_restarts": whole("restarts after losses it may have; -1: no limit", -1),
        "no_progress_streak": whole("failures in a row of one cause at one step", of="streak"),
        "no_progress_limit": whole("so many of these end the run; 0: no limit"),
        "made_no_progress": flag("whether it failed of that"),
        "excluded": several("nodes that it does without for a while", text("a node and why")),
        "saved_step": maybe(whole("the step of the last checkpoint", None)),
        "incident": maybe(INCIDENT),
        "logs_dir": maybe(text("the folder of its output, where it has any on the node that was asked")),
        "step": maybe(whole("that every rank which shows steps has reached", None)),
        "total_steps": maybe(whole("steps of the whole run")),
        "rate": maybe(number("steps a second, lately")),
        "eta_seconds": maybe(number("until total_steps, at this rate", "eta_s")),
        "loss": maybe(number("the last that it has shown")),
        "silent_seconds": maybe(number("since the step last went up", "silent_s")),
    },
)

RANK = group(
    "one rank of the newest generation",
    {
        "rank": whole("0, 1, 2 … in the job"),
        "node": text("where it is"),
        "local_rank": whole("its number on the node"),
        "pid": maybe(whole("its main process")),
        "state": text(f"of the rank: {', '.join(RANK_STATES)}; {MORE}"),
        "exit_code": EXIT_CODE,
        "signal": SIGNAL,
        "shell_code": SHELL_CODE,
        "core_dumped": CORE_DUMPED,
        "stopped_by_supervisor": flag("whether supd ended it"),
        "ended_at": maybe(time("when it ended", "ended_wall_s")),
        "ran_seconds": maybe(number("how long it ran", "ran_s")),
        "note": maybe(text("what else is known of it")),
        "step": maybe(whole("the last step it has shown", None)),
        "phase": maybe(text("the phase that it has declared")),
        "silent_seconds": maybe(number("since it was last seen to make progress", "silent_s")),
    },
)

FILE = "the path as it was given, or the option of the command line"
LINE = "from 1; null on the command line"
COLUMN = "characters, from 1"

PROBLEM = group(
    "one thing that is wrong with the file, or may not be meant",
    {
        "code": text("`supctl help CODE` explains it"),
        "key": text("the key's path, like stop.grace; empty: the file as a whole"),
        "value": maybe(text("as it stands in the file")),
        "message": text("what is wrong"),
        "hint": text("how to mend it"),
        "file": maybe(text(f"{FILE}; null: not known where", "place", lambda place: place.file)),
        "line": maybe(whole(LINE, 1, "place", lambda place: place.line)),
        "column": maybe(whole(COLUMN, 1, "place", lambda place: place.column)),
        "length": maybe(whole("characters, of the first line", 1, "place", lambda place: place.length)),
    },
)

PLACE = group(
    "where a file's first problem is", {"file": text(FILE), "line": maybe(whole(LINE, 1)), "column": whole(COLUMN, 1)}
)

SETTING = group(
    "one key in effect",
    {
        "key": text("its path, like stop.grace"),
        "value": text("as it would stand in the file"),
        "origin": text("who gave it: file, --set, --name, --, submitter, default"),
    },
)

VARIABLE = group(
    "one variable of a rank",
    {
        "name": text("of the variable"),
        "value": text("*** for a secret one"),
        "origin": text("who gave it: supd, env_file, job, inherited"),
    },
)

NODE = group(
    "one node of the fleet",
    {
        "node": text("its name"),
        "state": text(f"of the node: {', '.join(NODE_STATES)}; {MORE}"),
        "is_host": flag("whether its supd hosts the coordinator"),
        "address": text("by which peers reach it"),
        "port": whole("at which peers reach it", 1),
        "runs": several("those with ranks there", RUN_NAME),
        "spare_of": several("those for which it stands by", RUN_NAME),
        "clock_off_seconds": maybe(number("its clock against the coordinator's, as it joined", "clock_off_s")),
        "seen_seconds": maybe(number("since it was heard last; null: it is the host", "seen_s")),
        "joined_at": maybe(time("when it joined", "joined_wall_s")),
        "labels": LABELS,
        "drain_by": maybe(text("who wants it free")),
        "drain_reason": maybe(text("why, as they said")),
        "is_drained": flag("whether no run has ranks there any more, as they wanted"),
        "note": maybe(text("what an operator should see")),
        "host": maybe(text("the machine's own name")),
        "boot_id": maybe(text("of the machine's kernel, since it was started")),
        "kernel": maybe(text("its version")),
        "python": maybe(text("supd's")),
        "supd": maybe(text("its version")),
        "cpus": maybe(whole("that supd may use", 1, form=lambda cpus: cpus or None)),
        "memory_bytes": maybe(whole("of the machine", 1, form=lambda size: size or None)),
        "devices": maybe(text("its accelerators")),
        "slots": maybe(whole("that jobs share, one a rank; null: no limit")),
        "free_slots": maybe(whole("of these, that no job has")),
        "max_jobs": maybe(whole("jobs at once; null: as many as its slots allow", 1, form=lambda most: most or None)),
    },
)

LIMITS = Field(
    {
        "type": "object",
        "description": "soft limits",
        "additionalProperties": {"anyOf": [{"type": "integer", "minimum": 0}, {"const": "unlimited"}]},
    },
    form=lambda limits: {name: "unlimited" if limit < 0 else limit for name, limit in limits.items()},
)

VERSIONS: Fields = {
    "version": text("that is installed", "supd_version"),
    "control_version": whole("of the protocol that supctl and supd speak", 1),
}

DETAIL = Field(
    {
        "type": "object",
        "description": "described for each kind in docs/events.md",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    }
)

LOG_LINE: Fields = {
    "ts": maybe(time("when it was read; null: not known", "read_s")),
    "job": JOB,
    "run": RUN_NAME,
    "gen": whole("the generation that wrote it", of="generation"),
    "node": text("where"),
    "rank": whole("who"),
    "local_rank": maybe(whole("its number on the node", of="local_rank", form=lambda rank: None if rank < 0 else rank)),
    "stream": word("where to", {"out": "stdout", "err": "stderr"}),
    "seq": whole("place of its first byte in the stream, from 0 on", of="offset"),
    "line": text("without its end; bytes that are not UTF-8 are U+FFFD", "data", _decoded),
}

# --- documents ---------------------------------------------------------------------------------------------------


def _read(name: str, made_by: str, data: Fields) -> Document:
    keys = {
        "schema": fixed(f"supctl.{name}/1", "which document this is"),
        "time": time("when it was made"),
        "data": group("what was asked for", data),
        "warnings": several("what else should be known", text("one line")),
    }
    return Document(made_by, group(f"printed by `{made_by}`", keys))


DOCUMENTS: Mapping[str, Document] = {
    "status": _read("status", "supctl status --json", {"runs": several("the runs", RUN)}),
    "ps": _read(
        "ps",
        "supctl ps --json",
        {"run": RUN_NAME, "job": JOB, "generation": GENERATION, "ranks": several("the ranks", RANK)},
    ),
    "wait": _read(
        "wait",
        "supctl wait --json",
        {
            "condition": word("what was waited for", {name: name for name in ("running", "finished", "succeeded")}),
            "run": RUN,
        },
    ),
    "validate": _read(
        "validate",
        "supctl validate --json",
        {
            "file": text("the path as it was given"),
            "valid": flag("whether it has no problems"),
            "problems": several("all of them", PROBLEM),
            "findings": several("what may not be meant", PROBLEM),
            "settings": maybe(several("every key in effect, with --show-config", SETTING)),
        },
    ),
    "describe": _read(
        "describe",
        "supctl describe --json",
        {
            "run": RUN,
            "rank": maybe(RANK),
            "source": text("the job file"),
            "settings": several("every key in effect", SETTING),
            "command": several("what is executed", text("an argument")),
            "cwd": text("working directory"),
            "limits": LIMITS,
            "env": several("variables of the rank", VARIABLE),
            "files": several("output of the rank", text("a path")),
        },
    ),
    "policy": _read(
        "policy",
        "supctl policy --json",
        {
            "run": RUN_NAME,
            "exit": whole("how the rank would end, as a shell shows it", 1),
            "rank": whole("which rank"),
            "steps": several(
                "what would follow, failure by failure",
                group(
                    "one failure",
                    {
                        "number": whole("1, 2, 3 …", 1),
                        "action": text("restart, fail or hold"),
                        "delay_seconds": number("the longest wait before the restart", "delay_s"),
                        "charged": flag("whether max_restarts pays for it"),
                        "why": text("the rule that decides"),
                    },
                ),
            ),
        },
    ),
    "nodes": _read("nodes", "supctl nodes --json", {"nodes": several("the nodes", NODE)}),
    "describe-node": _read(
        "describe-node",
        "supctl describe node --json",
        {
            "node": NODE,
            "ranks": several(
                "of the newest generations of its runs",
                group("of one run", {"run": RUN_NAME, "ranks": several("its ranks there", whole("a rank"))}),
            ),
        },
    ),
    "version": _read(
        "version",
        "supctl version --json",
        {
            "client": group("this supctl", VERSIONS),
            "daemon": maybe(group("the supd that answers", {**VERSIONS, "node": maybe(text("the node's name"))})),
        },
    ),
    "log-paths": _read(
        "log-paths", "supctl logs --path --json", {"run": RUN_NAME, "paths": several("the files", text("a path"))}
    ),
    "log-line": Document(
        "supctl logs --json",
        group(
            "one line of output",
            LOG_LINE,
        ),
    ),
    "event": Document(
        "supctl events --json",
        group(
            "one event",
            {
                "id": text("counts up over all runs of this supd", form=str),
                "time": maybe(time("when it happened", "wall_s")),
                "run": RUN_NAME,
                "job": JOB,
                "generation": GENERATION,
                "kind": text("noun.past: docs/events.md lists them"),
                "text": text("what happened, in one line"),
                "detail": DETAIL,
            },
        ),
    ),
    "error": Document(
        "any call with --json that ends in an error, on stderr",
        group(
            "an error; what would have been one document is not on stdout then",
            {
                "schema": fixed("supctl.error/1", "which document this is"),
                "code": text("`supctl help CODE` explains it"),
                "message": text("what is wrong"),
                "hint": text("the next step"),
                "where": maybe(PLACE),
                "exit": whole("what supctl ends with"),
            },
        ),
    ),
}

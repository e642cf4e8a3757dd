"""What --json prints (docs/cli.md, "JSON"): snake_case, RFC 3339 UTC times, null for what is not known.

Keys never vanish; within a schema's number they are only added.
"""

import time
from collections.abc import Mapping, Sequence

import msgspec

from protocol.errors import SupdError
from protocol.ids import RunId, job_name
from protocol.messages.control import EventRecord, Incident, RankStatus, RunStatus
from supervisor.cli.log_lines import Source
from supervisor.shell.clock import wall_s

Document = dict[str, object]


def document(name: str, data: object, warnings: Sequence[str] = ()) -> str:
    """The one document of a read; its schema is `supctl.NAME/1`."""
    head: Document = {"schema": f"supctl.{name}/1", "time": utc(wall_s())}
    return line_of(head | {"data": data, "warnings": list(warnings)})


def line_of(item: Mapping[str, object]) -> str:
    """One JSON object on one line."""
    return msgspec.json.encode(item).decode()


def error_document(error: SupdError, hint: str) -> str:
    """What stderr gets instead of text."""
    where: Document = {}
    head: Document = {"schema": "supctl.error/1", "code": error.code, "message": str(error)}
    return line_of(head | {"hint": hint, "where": where, "exit": int(error.exit_code)})


def utc(seconds: float | None) -> str | None:
    """RFC 3339 in UTC with milliseconds; None and 0, which stands for a time not known, give None."""
    if not seconds:
        return None
    whole, ms = divmod(round(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{ms:03}Z"


def run_of(run: RunStatus) -> Document:
    """One run."""
    return {
        "run": run.run,
        "job": run.job,
        "state": run.state,
        "phase": run.phase,
        "is_final": run.is_final,
        "generation": run.generation,
        "has_started": run.has_started,
        "ranks_running": run.ranks_running,
        "ranks": run.ranks,
        "nodes": run.nodes,
        "nnodes": run.nnodes,
        "user": run.user or None,
        "submitted_at": utc(run.submitted_wall_s),
        "ended_at": utc(run.ended_wall_s),
        "reason": run.reason or None,
        "waiting_for": run.waiting_for or None,
        "wait_left_seconds": run.wait_left_s,
        "restarts_used": run.restarts_used,
        "max_restarts": run.max_restarts,
        "saved_step": run.saved_step,
        "incident": None if run.incident is None else incident_of(run.incident),
        "logs_dir": run.logs_dir or None,
    }


def incident_of(incident: Incident) -> Document:
    """One incident."""
    return {
        "number": incident.number,
        "generation": incident.generation,
        "cause": incident.cause,
        "summary": incident.summary,
        "node": incident.node,
        "rank": incident.rank,
        "local_rank": incident.local_rank,
        "pid": incident.pid,
        "exit_code": incident.exit_code,
        "signal": incident.signal,
        "core_dumped": incident.core_dumped,
        "shell_code": incident.shell_code,
        "time": utc(incident.wall_s),
        "stderr_tail": [line.decode("utf-8", "replace") for line in incident.stderr_tail],
        "evidence": incident.evidence or None,
    }


def rank_of(rank: RankStatus) -> Document:
    """One rank."""
    return {
        "rank": rank.rank,
        "node": rank.node,
        "local_rank": rank.local_rank,
        "pid": rank.pid,
        "state": rank.state,
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "shell_code": rank.shell_code,
        "core_dumped": rank.core_dumped,
        "stopped_by_supervisor": rank.stopped_by_supervisor,
        "ended_at": utc(rank.ended_wall_s),
        "ran_seconds": rank.ran_s,
        "note": rank.note or None,
    }


def event_of(event: EventRecord) -> Document:
    """One event; its `detail` is described for each kind in docs/events.md."""
    return {
        "id": str(event.id),
        "time": utc(event.wall_s),
        "run": event.run,
        "job": job_name(RunId(event.run)),
        "generation": event.generation,
        "kind": event.kind,
        "text": event.text,
        "detail": event.detail,
    }


def log_line_of(run: str, source: Source, line: bytes) -> Document:
    """One line of output; bytes that are not UTF-8 become U+FFFD."""
    return {
        "run": run,
        "job": job_name(RunId(run)),
        "generation": source.generation,
        "node": source.node,
        "rank": source.rank,
        "stream": "stdout" if source.stream == "out" else "stderr",
        "line": line.decode("utf-8", "replace"),
    }

"""Runs, ranks and incidents as text: tables, blocks, spans of time. Nothing here writes."""

from collections.abc import Iterable, Sequence

from msgspec import convert
from msgspec.structs import replace

from protocol.messages.control import EventRecord, Incident, RankStatus, RunStatus
from protocol.messages.member import RankError
from protocol.text import range_text
from supervisor.cli.log_lines import clean, safe
from supervisor.cli.moments import clock
from supervisor.cli.screen import STATE_STYLES, Stream

GAP = "  "
NOTE_COLUMNS_MIN = 20
"""A last column of free text is cut to what is left of the line, or dropped where that is less."""
VALUE_COLUMNS_MIN = 6
"""The same where the last column is what the table is about."""


def table(
    rows: Sequence[Sequence[str]], stream: Stream, *, is_wide: bool = False, spare: int | None = None
) -> list[str]:
    """Aligned columns, the first row being their heads and the last column free text.

    On a terminal, columns that do not fit are dropped from the right, but a `spare` one before all others; a pipe
    gets them all, and so does `is_wide`.
    """
    rows = [[stream.spell(safe(cell)) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    columns = None if is_wide else stream.columns
    if columns is not None:
        leading = sum(width + len(GAP) for width in widths[:-1])
        if spare is not None and leading + NOTE_COLUMNS_MIN > columns:
            rows = [[*row[:spare], *row[spare + 1 :]] for row in rows]
            del widths[spare]
        widths = _fitting(widths, columns, NOTE_COLUMNS_MIN if spare is None else VALUE_COLUMNS_MIN)
    return [
        GAP.join(
            stream.paint(stream.cut(cell, width).ljust(width), STATE_STYLES.get(cell))
            for cell, width in zip(row, widths, strict=False)
        ).rstrip()
        for row in rows
    ]


def _fitting(widths: Sequence[int], columns: int, note_min: int) -> list[int]:
    """The widths of the leading columns that fit in a line of `columns`; of these the last may be cut to `note_min`."""
    *fixed, note = widths
    kept: list[int] = []
    left = columns
    for width in fixed:
        if width > left:
            return kept or [columns]
        kept.append(width)
        left -= width + len(GAP)
    if left >= min(note, note_min):
        kept.append(min(note, left))
    return kept


def span(seconds: float) -> str:
    """A span of time in at most two units: 0.4s, 41s, 6m40s, 5h58m, 3d04h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    total = int(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02}s"
    if total < 86400:
        return f"{total // 3600}h{total % 3600 // 60:02}m"
    return f"{total // 86400}d{total % 86400 // 3600:02}h"


def age(seconds: float | None) -> str:
    """How long ago, in whole seconds at least: 0s, 4s, 6m40s; `-` for never."""
    if seconds is None:
        return "-"
    return f"{int(seconds)}s" if seconds < 10 else span(seconds)


def count(number: int | None) -> str:
    """17,800; `-` for what is not known."""
    return "-" if number is None else f"{number:,}"


def rate(steps_a_second: float | None) -> str:
    """0.88/s, 1.5/min, 12/h; `-` for what is not known."""
    if steps_a_second is None:
        return "-"
    for factor, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if (value := steps_a_second * factor) >= 0.1:
            return f"{value:,.0f}/{unit}" if value >= 100 else f"{value:.3g}/{unit}"
    return "0"


def painted(state: str, stream: Stream) -> str:
    """The word for a state, in its colour."""
    return stream.paint(state, STATE_STYLES.get(state))


def fact_lines(facts: Iterable[tuple[str, str]]) -> list[str]:
    """The lines of a block: a name and what is known; nothing where nothing is."""
    return [f"  {name:<9} {safe(fact)}" for name, fact in facts if fact]


def generation_of(run: RunStatus) -> str:
    """`generation 3`, or that there is none."""
    return "no generation yet" if run.generation is None else f"generation {run.generation}"


def ranks_of(run: RunStatus) -> str:
    """`3/4`; `-` where the number of ranks is not known yet."""
    return "-" if run.ranks is None else f"{run.ranks_running}/{run.ranks}"


def nodes_of(run: RunStatus) -> str:
    """`4/4`, the nodes that it is on and those that it wants; `2/2:3` where that is a range."""
    return f"{len(run.nodes)}/{range_text(*run.nnodes)}"


def logs_of(run: RunStatus) -> str:
    """Where its output lies, as far as that is on the node that was asked."""
    if not run.logs_dir:
        return f"on its nodes   → there: supctl logs --path {run.run}" if run.nodes else ""
    return run.logs_dir if len(run.nodes) < 2 else f"{run.logs_dir}   (of this node's ranks)"


def restarts_of(run: RunStatus) -> str:
    """Restarts used, of those allowed."""
    return _of_limit(run.restarts_used, run.max_restarts)


def budget_of(run: RunStatus) -> str:
    """`3 of 10 restarts used, no-progress streak 0 of 3`; losses of nodes and runners where there were some, or there
    is a limit."""
    facts = [f"{restarts_of(run)} restarts used"]
    if run.infra_used or run.max_infra_restarts >= 0:
        facts.append(f"{_of_limit(run.infra_used, run.max_infra_restarts)} after losses")
    if run.no_progress_limit:
        facts.append(f"no-progress streak {run.streak} of {run.no_progress_limit}")
    return ", ".join(facts)


def _of_limit(used: int, limit: int) -> str:
    return f"{used} of {limit}" if limit >= 0 else f"{used} (no limit)"


def wait_of(run: RunStatus) -> str:
    """What a run waits for and how long that can still take; "" for nothing."""
    if not run.waiting_for:
        return ""
    left = "" if run.wait_left_s is None else f" ({span(run.wait_left_s)} left)"
    return f"waiting for {run.waiting_for}{left}"


def plan_of(run: RunStatus) -> str:
    """The planned change that is to come, and how long that can still take; "" for none."""
    left = "" if run.plan_left_s is None else f" ({span(run.plan_left_s)} left)"
    return f"{run.plan}{left}" if run.plan else ""


def incident_block(incident: Incident, stream: Stream) -> list[str]:
    """Who died and how, what the kernel says of it, and the last lines of its stderr."""
    lines = [f"  {stream.paint(safe(incident.summary), 'red')}"]
    how = [f"generation {incident.generation}"]
    if incident.wall_s:
        how.append(f"at {clock(incident.wall_s)}")
    if incident.signal is not None:
        how.append(f"signal {incident.signal}")
    if incident.shell_code is not None:
        how.append(f"exit {incident.shell_code}")
    if incident.core_dumped:
        how.append("core dumped")
    if incident.cause == "hang" and incident.shell_code is not None:
        how.append("stopped by supervisor")
    lines.append(f"  {' · '.join(how)}")
    if incident.evidence:
        lines.append(f"  {safe(incident.evidence)}")
    if incident.error is not None:
        lines += error_lines(incident.error)
    if incident.stderr_tail:
        lines.append("  last lines of its stderr:")
        lines += [f"    ┃ {clean(line, stream.has_colour)}" for line in incident.stderr_tail]
    return lines


def error_lines(error: RankError) -> list[str]:
    """What a rank has said of its own end, and where."""
    said = f"{error.message}   ({error.raised})" if error.raised else error.message
    return [f"  {safe(said)}", f"  {safe(error.file)}"]


def incident_lines(event: EventRecord, stream: Stream) -> list[str]:
    """An event about an incident, in full: its number, and the block of what was known then."""
    known = {"wall_s": event.detail.get("ended_wall_s") or 0.0, "generation": event.generation, "summary": event.text}
    incident = convert({**event.detail, **known}, Incident)
    stderr = event.detail.get("stderr")
    tail = tuple(line.encode() for line in str(stderr).split("\n")) if stderr else ()
    said = {**event.detail, "file": event.detail.get("error_file") or ""}
    error = convert(said, RankError) if event.detail.get("message") else None
    is_first = event.kind == "incident.opened"
    head = f"incident #{incident.number}" + ("" if is_first else ", corrected")
    return [head, *incident_block(replace(incident, stderr_tail=tail, error=error), stream)]


def exit_of(rank: RankStatus) -> str:
    """How a rank ended: `-`, its exit code, or its signal with the code a shell shows."""
    if rank.signal is not None:
        return rank.signal if rank.shell_code is None else f"{rank.signal} ({rank.shell_code})"
    return "-" if rank.exit_code is None else str(rank.exit_code)

"""Runs, ranks and incidents as text: tables, blocks, spans of time. Nothing here writes."""

import time
from collections.abc import Sequence

from protocol.messages.control import Incident, RankStatus, RunStatus
from supervisor.cli.log_lines import clean, safe
from supervisor.cli.screen import STATE_STYLES, Channel, shorten

GAP = "  "
NOTE_COLUMNS_MIN = 20
"""A last column of free text is cut to what is left of the line, or dropped where that is less."""


def table(rows: Sequence[Sequence[str]], channel: Channel) -> list[str]:
    """Aligned columns, the first row being their heads and the last column free text.

    On a terminal, columns that do not fit are dropped from the right; a pipe gets them all.
    """
    rows = [[safe(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if channel.columns is not None:
        widths = _fitting(widths, channel.columns)
    return [
        GAP.join(
            channel.paint(shorten(cell, width).ljust(width), STATE_STYLES.get(cell))
            for cell, width in zip(row, widths, strict=False)
        ).rstrip()
        for row in rows
    ]


def _fitting(widths: Sequence[int], columns: int) -> list[int]:
    """The widths of the leading columns that fit in a line of `columns`; of these the last may be narrower."""
    *fixed, note = widths
    kept: list[int] = []
    left = columns
    for width in fixed:
        if width > left:
            return kept or [columns]
        kept.append(width)
        left -= width + len(GAP)
    if left >= min(note, NOTE_COLUMNS_MIN):
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


def clock(wall_s: float) -> str:
    """A point in time as the clock on this node's wall shows it."""
    return time.strftime("%H:%M:%S", time.localtime(wall_s))


def ranks_of(run: RunStatus) -> str:
    """`3/4`; `-` where the number of ranks is not known yet."""
    return "-" if run.ranks is None else f"{run.ranks_running}/{run.ranks}"


def restarts_of(run: RunStatus) -> str:
    """Restarts used, of those allowed."""
    return f"{run.restarts_used} of {run.max_restarts}" if run.max_restarts >= 0 else f"{run.restarts_used} (no limit)"


def wait_of(run: RunStatus) -> str:
    """What a run waits for and how long that can still take; "" for nothing."""
    if not run.waiting_for:
        return ""
    left = "" if run.wait_left_s is None else f" ({span(run.wait_left_s)} left)"
    return f"waiting for {run.waiting_for}{left}"


def runs_table(runs: Sequence[RunStatus], now_s: float, channel: Channel) -> list[str]:
    """`supctl status`: a line a run. A job with several runs here is told apart by its run."""
    jobs = [run.job for run in runs]
    rows = [["JOB", "STATE", "GEN", "RANKS", "NODES", "RESTARTS", "UP", ""]]
    for run in runs:
        name = run.job if jobs.count(run.job) == 1 else run.run
        until_s = now_s if run.ended_wall_s is None else run.ended_wall_s
        rows.append(
            [
                name,
                run.state,
                "-" if run.generation is None else str(run.generation),
                ranks_of(run),
                f"{len(run.nodes)}/{run.nnodes}",
                str(run.restarts_used),
                span(max(until_s - run.submitted_wall_s, 0.0)),
                _remark(run, name),
            ]
        )
    return table(rows, channel)


def _remark(run: RunStatus, name: str) -> str:
    if run.state == "failed":
        return f"{run.reason} → supctl status {name}".lstrip()
    return wait_of(run) or run.reason


def run_block(run: RunStatus, now_s: float, channel: Channel) -> list[str]:
    """`supctl status JOB`."""
    until_s = now_s if run.ended_wall_s is None else run.ended_wall_s
    generation = "no generation yet" if run.generation is None else f"generation {run.generation}"
    where = f"{ranks_of(run)} ranks on {len(run.nodes)}/{run.nnodes} nodes"
    ran = f"{'up' if run.ended_wall_s is None else 'ran'} {span(max(until_s - run.submitted_wall_s, 0.0))}"
    state = channel.paint(run.state, STATE_STYLES.get(run.state))
    lines = [f"{run.run}  {state}   {generation}   {where}   {ran}"]
    facts = [
        ("reason", run.reason),
        ("waiting", wait_of(run).removeprefix("waiting ")),
        ("budget", f"{restarts_of(run)} restarts used"),
        ("saved", "" if run.saved_step is None else f"step {run.saved_step}"),
        ("nodes", ", ".join(run.nodes)),
        ("logs", run.logs_dir),
    ]
    lines += [f"  {name:<9} {safe(fact)}" for name, fact in facts if fact]
    if run.incident is not None:
        wall_s = run.incident.wall_s
        ago = f", {span(max(now_s - wall_s, 0.0))} ago" if wall_s else ""
        lines += ["", f"last incident, #{run.incident.number}{ago}", *incident_block(run.incident, channel)]
    return lines


def incident_block(incident: Incident, channel: Channel) -> list[str]:
    """Who died and how, what the kernel says of it, and the last lines of its stderr."""
    lines = [f"  {channel.paint(safe(incident.summary), 'red')}"]
    how = [f"generation {incident.generation}"]
    if incident.wall_s:
        how.append(f"at {clock(incident.wall_s)}")
    if incident.signal is not None:
        how.append(f"signal {incident.signal}")
    if incident.shell_code is not None:
        how.append(f"exit {incident.shell_code}")
    if incident.core_dumped:
        how.append("core dumped")
    lines.append(f"  {' · '.join(how)}")
    if incident.evidence:
        lines.append(f"  {safe(incident.evidence)}")
    if incident.stderr_tail:
        lines.append("  last lines of its stderr:")
        lines += [f"    ┃ {clean(line, channel.has_colour)}" for line in incident.stderr_tail]
    return lines


def ranks_table(ranks: Sequence[RankStatus], channel: Channel) -> list[str]:
    """`supctl ps`: a line a rank."""
    rows = [["RANK", "NODE", "LOCAL", "PID", "STATE", "EXIT", ""]]
    for rank in ranks:
        pid = "-" if rank.pid is None else str(rank.pid)
        rows.append([str(rank.rank), rank.node, str(rank.local_rank), pid, rank.state, exit_of(rank), rank.note])
    return table(rows, channel)


def exit_of(rank: RankStatus) -> str:
    """How a rank ended: `-`, its exit code, or its signal with the code a shell shows."""
    if rank.signal is not None:
        return rank.signal if rank.shell_code is None else f"{rank.signal} ({rank.shell_code})"
    return "-" if rank.exit_code is None else str(rank.exit_code)

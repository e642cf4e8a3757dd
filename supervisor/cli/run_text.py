"""Runs as text: the table and the block of `supctl status`, a line for each change, what is not as it should be."""

from collections import Counter
from collections.abc import Iterable, Sequence

from protocol.messages.control import RankStatus, RunStatus
from protocol.text import some_of
from supervisor.cli.log_lines import safe
from supervisor.cli.render import (
    age,
    budget_of,
    count,
    fact_lines,
    generation_of,
    incident_block,
    logs_of,
    nodes_of,
    painted,
    plan_of,
    ranks_of,
    rate,
    span,
    table,
    wait_of,
)
from supervisor.cli.screen import Stream

HEALTHY = ("pending", "starting", "running", "succeeded")
"""States that `supctl status --check` has nothing to say about."""

HEADS = ("JOB", "STATE", "GEN", "RANKS", "NODES", "STEP", "RATE", "PROGRESS", "RESTARTS", "UP", "")

STALLED_SHOWN_MAX = EXCLUDED_SHOWN_MAX = 5


def short_names(runs: Sequence[RunStatus]) -> list[str]:
    """What each run is called in a list: its job, or where that has several runs here the run."""
    count_of = Counter(run.job for run in runs)
    return [run.job if count_of[run.job] == 1 else run.run for run in runs]


def runs_table(runs: Sequence[RunStatus], now_s: float, stream: Stream, *, is_wide: bool = False) -> list[str]:
    """A line a run. Remarks that a terminal is too narrow for stand below the table."""
    rows: list[Sequence[str]] = [HEADS]
    rows += [_row(run, name, now_s) for run, name in zip(runs, short_names(runs), strict=True)]
    lines = table(rows, stream, is_wide=is_wide)
    if is_wide or stream.columns is None:
        return lines
    shown = zip(runs, rows[1:], lines[1:], strict=True)
    return lines + [
        _below(run, row[0], stream, stream.columns) for run, row, line in shown if stream.spell(row[-1]) not in line
    ]


def _below(run: RunStatus, name: str, stream: Stream, columns: int) -> str:
    """The remark of a run in a line of its own: why gives way to what to do."""
    todo = _todo(run, name)
    why = stream.cut(f"{name}: {_why(run)}", max(columns - len(stream.spell(todo)), 0))
    return stream.cut(why + todo, columns)


def _row(run: RunStatus, name: str, now_s: float) -> Sequence[str]:
    return (
        name,
        run.state,
        "-" if run.generation is None else str(run.generation),
        ranks_of(run),
        nodes_of(run),
        count(run.step),
        rate(run.rate),
        "-" if run.silent_s is None else f"{age(run.silent_s)} ago",
        str(run.restarts_used),
        span(lasted_s(run, now_s)),
        remark(run, name),
    )


def lasted_s(run: RunStatus, now_s: float) -> float:
    """How long the run has lasted, up to its end or now."""
    until_s = now_s if run.ended_wall_s is None else run.ended_wall_s
    return max(until_s - run.submitted_wall_s, 0.0)


def remark(run: RunStatus, name: str) -> str:
    """Why it is in this state or what it waits for, and what to do about it; "" where there is nothing to say."""
    return (_why(run) + _todo(run, name)).lstrip()


def _why(run: RunStatus) -> str:
    return safe(wait_of(run) or run.reason or plan_of(run))


def _todo(run: RunStatus, name: str) -> str:
    if run.state == "held":
        return f"   → supctl resume {name}"
    return f"   → supctl status {name}" if run.state in ("failed", "stalled") else ""


def run_line(run: RunStatus, name: str) -> str:
    """One line of `status --watch` without a terminal."""
    generation = "" if run.generation is None else f" generation {run.generation}, {ranks_of(run)} ranks"
    step = "" if run.step is None else f", step {_step(run)}"
    why = f"  {text}" if (text := remark(run, name)) else ""
    return f"{name}  {run.state}{generation}{step}{why}"


def run_block(run: RunStatus, now_s: float, stream: Stream) -> list[str]:
    """`supctl status JOB`; names stalled ranks where `run` has its ranks."""
    where = f"{ranks_of(run)} ranks on {nodes_of(run)} nodes"
    ran = f"{'up' if run.ended_wall_s is None else 'ran'} {span(lasted_s(run, now_s))}"
    lines = [f"{run.run}  {painted(run.state, stream)}   {generation_of(run)}   {where}   {ran}"]
    stalled = _stalled(run)
    facts = [
        ("reason", "" if stalled else run.reason),
        ("waiting", wait_of(run).removeprefix("waiting ")),
        ("plan", plan_of(run)),
        ("step", _progress(run)),
        ("phase", _phases(run.rank_list)),
        *(("" if number else "stalled", text) for number, text in enumerate(stalled)),
        ("saved", _saved(run)),
        ("budget", budget_of(run)),
        ("nodes", some_of(run.nodes)),
        ("spares", some_of(run.spares)),
        *(("" if number else "excluded", text) for number, text in enumerate(_excluded(run))),
        ("logs", logs_of(run)),
    ]
    lines += fact_lines(facts)
    if run.incident is not None:
        wall_s = run.incident.wall_s
        ago = f", {span(max(now_s - wall_s, 0.0))} ago" if wall_s else ""
        lines += ["", f"last incident, #{run.incident.number}{ago}", *incident_block(run.incident, stream)]
    return lines


def _excluded(run: RunStatus) -> list[str]:
    more = len(run.excluded) - EXCLUDED_SHOWN_MAX
    return [*run.excluded[:EXCLUDED_SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])]


def _step(run: RunStatus) -> str:
    return count(run.step) + (f" of {run.total_steps:,}" if run.total_steps is not None else "")


def _progress(run: RunStatus) -> str:
    if run.step is None:
        return f"none shown yet, of {run.total_steps:,}" if run.total_steps is not None and not run.is_final else ""
    facts = [
        _step(run),
        "" if run.rate is None else rate(run.rate),
        "" if run.eta_s is None else f"ETA {span(run.eta_s)}",
        "" if run.loss is None else f"loss {run.loss:.4g}",
        "" if run.silent_s is None else f"last progress {age(run.silent_s)} ago",
    ]
    return "   ".join(fact for fact in facts if fact)


def _saved(run: RunStatus) -> str:
    if run.saved_step is None:
        return ""
    lost = 0 if run.step is None or run.is_final else run.step - run.saved_step
    return f"step {run.saved_step:,}" + (f"   (a crash now loses {_steps(lost)})" if lost > 0 else "")


def _steps(number: int) -> str:
    return f"{number:,} step{'' if number == 1 else 's'}"


def _phases(ranks: Iterable[RankStatus]) -> str:
    """The phases that ranks have declared, with those that are in them."""
    from protocol.verdict import rank_list  # not for the table, which is to be quick

    found: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.phase and rank.ended_wall_s is None:
            found.setdefault(rank.phase, []).append(rank.rank)
    return "; ".join(f"{phase} ({rank_list(tuple(ranks))})" for phase, ranks in found.items())


def _stalled(run: RunStatus) -> list[str]:
    """The ranks that make no progress, and where to look."""
    stalled = [rank for rank in run.rank_list if rank.state == "stalled"]
    if not stalled:
        return []
    lines = [f"rank {rank.rank} on {rank.node}: {rank.note}" for rank in stalled[:STALLED_SHOWN_MAX]]
    if len(stalled) > STALLED_SHOWN_MAX:
        lines.append(f"and {len(stalled) - STALLED_SHOWN_MAX} more   → supctl ps {run.run}")
    return [*lines, f"→ supctl logs -r {stalled[0].rank} {run.run}"]


def findings(runs: Sequence[RunStatus]) -> list[RunStatus]:
    """The runs that are not as they should be; of several runs of a job, the last one started counts."""
    newest = {run.job: run for run in sorted(runs, key=lambda run: run.submitted_wall_s)}
    return [run for run in newest.values() if run.state not in HEALTHY]


def finding_line(run: RunStatus) -> str:
    """One of them."""
    return f"{run.run} {run.state}" + (f": {why}" if (why := _why(run)) else "")

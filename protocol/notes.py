"""What happens to a run, as `supctl events` tells it (docs/events.md): what takes more than a line to say. Pure."""

from collections.abc import Iterable, Mapping

from protocol import stalls, verdict
from protocol.coordinator_events import Note, Seat
from protocol.exclusion import Exclusion
from protocol.generation import Generation
from protocol.job import RestartTable
from protocol.messages.control import Incident
from protocol.messages.member import Offer, RankReport, Renewal, Stall
from protocol.restart import MAX_RESTARTS, Again, Budget, GiveUp, Ledger, budget_of
from protocol.text import host_port, one_line, some_of


def heirs(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, str]:
    """Who has got whose place in the order of ranks."""
    holders = {slot: node for node, slot in before.items()}
    return {node: holders[slot] for node, slot in now.items() if slot in holders and holders[slot] != node}


def launched(seats: Mapping[str, Seat], heirs: Mapping[str, str]) -> Note:
    """A generation has been given out; `heirs` have taken the places of other nodes."""
    first = next(iter(seats.values())).assignment
    ranks, nodes, master = first.world_size, first.nnodes, host_port(first.master_addr, first.master_port)
    size = f"{ranks} rank{'s' if ranks > 1 else ''} on {nodes} node{'s' if nodes > 1 else ''}"
    which = f" ({some_of(seats)})" if nodes > 1 else ""
    moved = "".join(f"; {node} takes the place of {other}" for node, other in heirs.items())
    text = f"generation {first.generation}: {size}{which}, master {master}{moved}"
    return Note("generation.launched", text, first.generation, {"ranks": ranks, "nodes": nodes, "master": master})


def unfit(node: str, why: str) -> Note:
    """A run does without a node, until its runner offers something better or the next rendezvous."""
    return Note("node.unfit", f"{node} cannot run this job: {why}", None, {"node": node})


def counted(generation: int, offers: Mapping[str, Offer], told: dict[str, str]) -> list[Note]:
    """How nodes counted their ranks, where that has not been told; `told` is brought up to date."""
    found = []
    for node, offer in offers.items():
        how = one_line(offer.note)
        if how and how != told.get(node):
            told[node] = how
            found.append(Note("ranks.counted", f"{node}: {how}", generation, {"node": node}))
    return found


def ended(generation: int, reports: Iterable[Renewal], ran_s: float, grace: str) -> Note:
    """Nothing of a generation is alive any more; `grace` says how long its ranks had."""
    parts = tuple(reports)
    killed = verdict.killed_while_stopping(parts)
    stuck = sum(len(part.stuck_pids) for part in parts)
    text = f"generation {generation} ended after {ran_s:.1f} s"
    text += f", {verdict.rank_list(killed)} ended by SIGKILL ({grace})" if killed else ""
    text += f", {stuck} processes still wait for the kernel" if stuck else ""
    return Note("generation.ended", text, generation, {"ran_s": round(ran_s, 3), "killed": len(killed)})


def taken_over(seats: Mapping[str, Seat]) -> Note:
    """A generation goes on of which the coordinator had no record."""
    first = next(iter(seats.values())).assignment
    text = (
        f"generation {first.generation} on {some_of(seats)} goes on, as its runners say: there was no record of it here"
    )
    return Note("run.taken_over", text, first.generation, {"nodes": len(seats)})


def silence(node: str, before: str, state: str, silent_s: float, generation: int) -> Note:
    """A node has fallen silent, is reached only by a witness, or answers again."""
    match state:
        case "suspect":
            text = f"{node} has been silent for {silent_s:.1f} s; its witnesses are asked"
            return Note("node.suspect", text, generation, {"node": node, "silent_s": round(silent_s, 3)})
        case "unreachable":
            text = f"{node} is reached only by way of a witness; its ranks go on"
            return Note("node.unreachable", text, generation, {"node": node})
        case _:
            return Note("node.answers", f"{node} answers again; it was {before}", generation, {"node": node})


def runner_lost(incident: Incident) -> Note:
    """A runner is proven gone."""
    return Note("runner.lost", incident.summary, incident.generation, {"node": incident.node})


def node_lost(incident: Incident) -> Note:
    """The lease of a node is over, or an operator has given it up."""
    return Note("node.lost", incident.summary, incident.generation, {"node": incident.node})


def fenced(node: str, renewal: Renewal, told: dict[str, int]) -> list[Note]:
    """A runner has ended its ranks by itself, if that has not been told; `told` is brought up to date."""
    if renewal.fenced_s is None or told.get(node) == renewal.generation:
        return []
    told[node] = renewal.generation
    text = f"{node} had no answer for {renewal.fenced_s:.1f} s and ended its ranks (lease.fence)"
    return [Note("node.fenced", text, renewal.generation, {"node": node, "silent_s": renewal.fenced_s})]


def unwitnessed(node: str, renewal: Renewal, generation: Generation) -> list[Note]:
    """A runner reaches none of its witnesses, if that has not been told."""
    witnesses = generation.seats[node].assignment.witnesses
    if not witnesses or len(renewal.unreached) < len(witnesses) or node in generation.unwitnessed:
        return []
    generation.unwitnessed.add(node)
    text = f"{node} reaches none of its witnesses, {some_of(renewal.unreached)}: its ranks hang on the coordinator"
    return [Note("node.unwitnessed", text, generation.number, {"node": node})]


def decided(generation: int, table: RestartTable, ledger: Ledger, again: Again) -> Note:
    """A failure is followed by another generation: when, at whose expense, and what is left."""
    when = f"in {again.delay_s:.1f} s" if again.delay_s else "at once"
    budget = _budget(table, ledger, again.budget)
    return Note(
        "restart.decided",
        f"{again.why}, {when}",
        generation,
        {
            "delay_s": round(again.delay_s, 3),
            "charged": again.charged,
            "cause": ledger.last_cause,
            "budget": again.budget,
            "used": budget.used,
            "limit": budget.limit,
            "streak": ledger.same,
        },
    )


def held(generation: int, table: RestartTable, ledger: Ledger, end: GiveUp, reason: str) -> Note:
    """A failure after which nothing follows until an operator says so."""
    budget = _budget(table, ledger, end.budget)
    return Note(
        "job.held",
        reason,
        generation,
        {
            "made_no_progress": end.made_no_progress,
            "cause": ledger.last_cause,
            "budget": end.budget,
            "used": budget.used,
            "limit": budget.limit,
            "streak": ledger.same,
        },
    )


def _budget(table: RestartTable, ledger: Ledger, key: str) -> Budget:
    """The one that a decision is about; `max_restarts` where it is about none ("")."""
    return budget_of(table, ledger, key or MAX_RESTARTS, ledger.time_s)


def excluded(node: str, exclusion: Exclusion, now_s: float, *, is_used: bool) -> Note:
    """A run does without a node for a while, or has no other one."""
    text = f"{node} is left out: {exclusion.text(now_s)} (supctl undrain {node} lifts that)"
    if is_used:
        text = f"{node} should be left out, and is used for want of another one: {exclusion.text(now_s)}"
    return Note(
        "node.excluded",
        text,
        None,
        {
            "node": node,
            "left_s": round(exclusion.until_s - now_s, 3),
            "incidents": exclusion.incidents,
            "times": exclusion.times,
            "is_used": is_used,
        },
    )


def paroled(node: str) -> Note:
    """A node that was excluded has been looked at anew, and is fit."""
    text = f"{node} is fit again after its exclusion: it is a spare, and taken after others for an hour"
    return Note("node.paroled", text, None, {"node": node})


def opened(incident: Incident) -> Note:
    """A generation ends because of this."""
    return _of_incident("incident.opened", incident.summary, incident)


def corrected(before: Incident, now: Incident) -> Note | None:
    """What is known of an incident now and was not before; None where that is nothing to tell."""
    if now.summary != before.summary:
        return _of_incident("incident.corrected", now.summary, now)
    news = []
    if now.shell_code != before.shell_code:
        news.append(f"ended by {now.signal}" if now.signal else f"exited with code {now.exit_code}")
    if now.stderr_tail != before.stderr_tail:
        news.append("its last lines are known")
    if not news:
        return None
    text = f"rank {now.rank} on {now.node} (pid {now.pid}): {', '.join(news)}"
    return _of_incident("incident.corrected", text, now)


def _of_incident(kind: str, text: str, incident: Incident) -> Note:
    return Note(
        kind,
        text,
        incident.generation,
        {
            "number": incident.number,
            "cause": incident.cause,
            "node": incident.node,
            "rank": incident.rank,
            "pid": incident.pid,
            "exit_code": incident.exit_code,
            "signal": incident.signal,
            "core_dumped": incident.core_dumped,
            "shell_code": incident.shell_code,
            "evidence": incident.evidence,
            "message": incident.error.message if incident.error is not None else "",
            "raised": incident.error.raised if incident.error is not None else "",
            "error_file": incident.error.file if incident.error is not None else "",
            "ended_wall_s": incident.wall_s or None,
            "stderr": b"\n".join(incident.stderr_tail).decode(errors="replace"),
        },
    )


def of_stalls(node: str, told: Iterable[int], renewal: Renewal) -> tuple[tuple[int, ...], list[Note]]:
    """What is to be told of a report: once that a rank stalls, once that it moves again; its end is told as such.

    `told` are the ranks that stall as far as was told; returns those that do so now.
    """
    known = set(told)
    now = {r.rank: r.stall for r in renewal.ranks if r.stall is not None and r.exit is None}
    found: list[Note] = []
    for report in renewal.ranks:
        stall = now.get(report.rank)
        if stall is not None and report.rank not in known:
            found.append(_stalled(node, renewal, report, stall))
        elif stall is None and report.rank in known and report.exit is None:
            found.append(_resumed(node, renewal, report))
    elsewhere = known - {r.rank for r in renewal.ranks}
    return tuple(sorted({*elsewhere, *now})), found


def _stalled(node: str, renewal: Renewal, report: RankReport, stall: Stall) -> Note:
    return Note(
        "rank.stalled",
        stalls.describe(report, node),
        renewal.generation,
        {
            "node": node,
            "rank": report.rank,
            "pid": report.pid,
            "state": stall.state,
            "silent_s": stall.silent_s,
            "limit_s": stall.limit_s,
            "setting": stall.setting,
            "phase": report.phase,
            "step": report.step,
        },
    )


def _resumed(node: str, renewal: Renewal, report: RankReport) -> Note:
    text = f"rank {report.rank} on {node} makes progress again"
    return Note("rank.resumed", text, renewal.generation, {"node": node, "rank": report.rank, "pid": report.pid})

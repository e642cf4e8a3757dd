"""One run as people see it: the coordinator's state in the words of `supctl status` and `ps`. Pure."""

import math

from msgspec.structs import replace

from protocol import absence, stalls, verdict
from protocol.coordinator import Coordinator
from protocol.coordinator_events import LIVE, Phase
from protocol.ids import NO_GENERATION, RunId, job_name
from protocol.job import Job
from protocol.messages.control import RankStatus, RunStatus
from protocol.messages.member import Part, RankReport
from protocol.pace import Pace
from protocol.rendezvous import Wait
from protocol.restart import MAX_INFRA_RESTARTS, MAX_RESTARTS, budget_of
from protocol.signals import shell_code, signal_name

PLANS_TOLD = 4
"""Planned changes that are told of a run."""


def run_status(
    run: Coordinator,
    job: Job,
    now_s: float,
    *,
    submitted_wall_s: float,
    ended_wall_s: float | None,
    logs_dir: str,
    with_ranks: bool,
) -> RunStatus:
    """The run as it stands; `now_s` in the clock of the coordinator's deadlines."""
    ranks = rank_statuses(run, now_s)
    waiting_for, until_s = _waiting(run, ranks, now_s)
    seat = next(iter(run.seats.values()), None)
    topology = run.rendezvous.topology  # as scaled
    nproc, wanted = topology.nproc_per_node, topology.nnodes_wanted
    plan, plan_left_s = _plan(run, now_s)
    reports = sorted((r for part in run.parts.values() for r in part.ranks), key=lambda report: report.rank)
    reported = max((r.total_steps for r in reports if r.total_steps is not None), default=None)
    total_steps = job.spec.progress.total_steps or reported
    pace = run.current.pace if run.phase in (Phase.LAUNCHING, Phase.RUNNING) else Pace()
    return RunStatus(
        run=job.run,
        job=job_name(RunId(job.run)),
        state=state_word(run),
        phase=run.phase.value,
        is_final=run.is_final,
        generation=None if run.generation == NO_GENERATION else run.generation,
        has_started=run.has_started,
        ranks_running=sum(1 for r in ranks if r.state in ("initializing", "running", "stalled")),
        ranks=seat.assignment.world_size if seat else nproc * wanted if isinstance(nproc, int) else None,
        nodes=tuple(run.seats),
        nnodes=topology.nnodes,
        spares=() if run.is_final or not run.seats else run.rendezvous.spares(run.seats),
        user=job.submitter.user,
        submitted_wall_s=submitted_wall_s,
        ended_wall_s=ended_wall_s,
        reason=_reason(run),
        waiting_for=waiting_for,
        wait_left_s=None if until_s is None else max(0.0, until_s - now_s),
        restarts_used=budget_of(run.spec.restart, run.ledger, MAX_RESTARTS, run.run_s(now_s)).used,
        max_restarts=run.spec.restart.max_restarts,
        infra_used=budget_of(run.spec.restart, run.ledger, MAX_INFRA_RESTARTS, run.run_s(now_s)).used,
        max_infra_restarts=run.spec.restart.max_infra_restarts,
        streak=run.ledger.same,
        no_progress_limit=run.spec.restart.no_progress_limit,
        made_no_progress=run.made_no_progress,
        excluded=() if run.is_final else _excluded(run, now_s),
        saved_step=run.saved_step,
        incident=run.case.incident,
        rank_list=ranks if with_ranks else (),
        logs_dir=logs_dir,
        step=min((r.step for r in reports if r.step is not None), default=None),
        total_steps=total_steps,
        rate=pace.rate(now_s),
        eta_s=None if total_steps is None else pace.eta_s(total_steps, now_s),
        loss=next((r.loss for r in reports if r.loss is not None), None),
        silent_s=pace.silent_s(now_s),
        lacked_nodes=run.lacked_nodes,
        preempted_code=job.spec.preemption.exit_code,
        plan=plan,
        plan_left_s=plan_left_s,
    )


def state_word(run: Coordinator) -> str:
    """One of RUN_STATES."""
    match run.phase:
        case Phase.FORMING if run.stop is not None:  # of a run that is being taken over
            return "stopping"
        case Phase.FORMING if run.rendezvous.lacks_slots and run.takeover is None:
            return "pending"
        case Phase.FORMING:
            return "starting" if run.generation == NO_GENERATION else "restarting"
        case Phase.LAUNCHING:
            return "stalled" if _stalled(run) else "restarting" if run.generation > 0 else "starting"
        case Phase.RUNNING:
            return "stalled" if _stalled(run) else "running"
        case Phase.STOPPING:
            return "stopping" if run.stop is not None else "restarting"
        case Phase.BACKOFF:
            return "restarting"
        case Phase.HELD | Phase.SUCCEEDED | Phase.FAILED | Phase.STOPPED | Phase.PREEMPTED:
            return run.phase.value


def _excluded(run: Coordinator, now_s: float) -> tuple[str, ...]:
    """Nodes that the job does without for a while, or would."""
    texts = run.rendezvous.exclusions.texts(now_s)
    told = {node: text for node, text in texts.items() if run.rendezvous.may_use(node)}
    return tuple(
        f"{node} ({text}{', used for want of another one' * run.rendezvous.uses(node)})" for node, text in told.items()
    )


def _plan(run: Coordinator, now_s: float) -> tuple[str, float | None]:
    """The planned changes that are to come, and in how long the first of them comes without a checkpoint."""
    due_s = min((change.go_s for change in run.plans.changes if not change.lacks), default=math.inf)
    left_s = max(0.0, due_s - now_s) if due_s < math.inf else None
    return "; ".join(change.text for change in run.plans.changes[:PLANS_TOLD]), left_s


def _stalled(run: Coordinator) -> list[tuple[str, RankReport]]:
    """Ranks that make no progress, each with its node; as long as nothing is done about it."""
    parts = run.parts.items() if run.phase in (Phase.LAUNCHING, Phase.RUNNING) else ()
    return [(node, r) for node, part in parts for r in part.ranks if r.stall is not None and r.exit is None]


def _reason(run: Coordinator) -> str:
    """Why the run is in its state, where there is more to say than the state."""
    if run.reason:
        return run.reason
    if run.phase in (Phase.BACKOFF, Phase.FORMING):
        return run.restart_reason
    if run.phase is Phase.STOPPING:
        return run.case.incident.summary if run.case.is_open and run.case.incident is not None else run.restart or ""
    stalled = _stalled(run)
    if not stalled:
        return _remark(run)
    node, report = stalled[0]
    others = len(stalled) - 1
    more = f"; {others} more {'ranks stall' if others > 1 else 'rank stalls'}" if others else ""
    return stalls.describe(report, node) + more


def _remark(run: Coordinator) -> str:
    """Why the progress of some ranks is not known, where they say so while they run."""
    if run.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return ""
    said = [(r.remark, r.rank) for part in run.parts.values() for r in part.ranks if r.remark and r.exit is None]
    if not said:
        return ""
    remark = min(said, key=lambda one: one[1])[0]
    return f"{verdict.rank_list(tuple(rank for text, rank in said if text == remark))}: {remark}"


def rank_statuses(run: Coordinator, now_s: float) -> tuple[RankStatus, ...]:
    """Every rank of the newest generation, in order; those nobody has reported yet are `spawning`."""
    found: dict[int, RankStatus] = {}
    for node, seat in run.seats.items():
        part = run.parts.get(node)
        lost = (node in run.current.gone or run.is_final) and (
            part is None or part.part not in (Part.STOPPED, Part.FINISHED)
        )
        reports = {r.rank: r for r in part.ranks} if part else {}
        unheard_s = max(0.0, now_s - run.roll.heard_s.get(node, now_s))
        for local_rank in range(seat.assignment.nproc):
            rank = seat.assignment.first_rank + local_rank
            report = reports.get(rank)
            if report is None:
                state = (
                    "lost" if lost else "exited" if run.phase not in LIVE or node in run.current.gone else "spawning"
                )
                note = "" if state != "exited" else "never spawned, or its end is not known here"
                found[rank] = RankStatus(rank=rank, node=node, local_rank=local_rank, pid=None, state=state, note=note)
            else:
                found[rank] = _rank_status(node, report, lost, unheard_s)
    return tuple(found[rank] for rank in sorted(found))


def _rank_status(node: str, report: RankReport, lost: bool, unheard_s: float) -> RankStatus:
    """As its runner has reported it, `unheard_s` ago."""
    exit = report.exit
    alive = "stalled" if report.stall is not None else "running" if report.started else "initializing"
    status = RankStatus(
        rank=report.rank,
        node=node,
        local_rank=report.local_rank,
        pid=report.pid,
        state="lost" if lost else alive,
        note=stalls.how(report) or report.remark,
        step=report.step,
        phase=report.phase,
        silent_s=None if report.silent_s is None else report.silent_s + unheard_s,
    )
    if exit is None:
        return status
    stopped = "stopped by supervisor, it hung" if stalls.fatal([report]) else "stopped by supervisor"
    return replace(
        status,
        state="exited" if exit.signal is None else "killed",
        exit_code=exit.code,
        signal=None if exit.signal is None else signal_name(exit.signal),
        shell_code=shell_code(exit.code, exit.signal),
        core_dumped=exit.core_dumped,
        stopped_by_supervisor=exit.stopped_by_us,
        ended_wall_s=exit.wall_s,
        ran_s=exit.ran_s,
        note=stopped if exit.stopped_by_us else verdict.how(exit) if exit.failed else "",
    )


def _waiting(run: Coordinator, ranks: tuple[RankStatus, ...], now_s: float) -> tuple[str, float | None]:
    """What the run waits for, and until when where that ends by itself."""
    if silence := absence.waiting_for(run, now_s):
        return silence, None
    alive = tuple(r.rank for r in ranks if r.state in ("spawning", "initializing", "running", "stalled"))
    match run.phase:
        case Phase.FORMING:
            wait = run.rendezvous.foresee(run.must_not, now_s)
            return (wait.text, wait.until_s) if isinstance(wait, Wait) else ("", None)
        case Phase.LAUNCHING:
            started = {r.rank for part in run.parts.values() for r in part.ranks if r.started}
            new = tuple(rank for rank in alive if rank not in started)
            how = f"first output, or {run.spec.restart.start_after_s:g} s alive"
            if run.generation > 0:
                how = f"first beat where there was one before, else {how}"
            return (f"{verdict.rank_list(new)} to start ({how})" if new else ""), None
        case Phase.STOPPING:
            if not alive:
                return "what its ranks have left behind to end", None
            if run.stop is not None and run.stop.now:
                return f"{verdict.rank_list(alive)} to end (got SIGKILL)", None
            if (answers_s := run.answers.deadline_s(run.pre_wait_s)) is not None:
                return f"{verdict.rank_list(alive)} to answer {run.spec.stop.pre_signal} (stop.pre_wait)", answers_s
            grace_s = run.spec.stop.grace_s if run.stop is None or run.stop.grace_s is None else run.stop.grace_s
            return f"{verdict.rank_list(alive)} to end (SIGKILL after {grace_s:g} s)", None
        case Phase.BACKOFF:
            return "the backoff before the next generation to pass", run.backoff_until_s
        case Phase.RUNNING:
            return ("" if alive else "what its ranks have left behind to end"), None
        case Phase.HELD:
            return "supctl resume, restart or stop", None
        case Phase.SUCCEEDED | Phase.FAILED | Phase.STOPPED | Phase.PREEMPTED:
            return "", None

"""One run as people see it: the coordinator's state in the words of `supctl status` and `ps`. Pure."""

from protocol import verdict
from protocol.coordinator import Coordinator
from protocol.coordinator_events import LIVE, Phase
from protocol.ids import NO_GENERATION, RunId, job_name
from protocol.job import Job
from protocol.messages.control import RankStatus, RunStatus
from protocol.messages.member import Part, RankReport
from protocol.signals import shell_code, signal_name


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
    ranks = rank_statuses(run)
    waiting_for, until_s = _waiting(run, ranks, now_s)
    seat = next(iter(run.seats.values()), None)
    nproc = job.spec.topology.nproc_per_node
    return RunStatus(
        run=job.run,
        job=job_name(RunId(job.run)),
        state=state_word(run),
        phase=run.phase.value,
        is_final=run.is_final,
        generation=None if run.generation == NO_GENERATION else run.generation,
        has_started=run.has_started,
        ranks_running=sum(1 for r in ranks if r.state in ("initializing", "running")),
        ranks=seat.assignment.world_size if seat else nproc * len(run.nodes) if isinstance(nproc, int) else None,
        nodes=run.nodes,
        nnodes=job.spec.topology.nnodes,
        user=job.submitter.user,
        submitted_wall_s=submitted_wall_s,
        ended_wall_s=ended_wall_s,
        reason=run.reason or (run.incident.summary if run.incident and run.phase in _AFTER_INCIDENT else ""),
        waiting_for=waiting_for,
        wait_left_s=None if until_s is None else max(0.0, until_s - now_s),
        restarts_used=run.ledger.used,
        max_restarts=job.spec.restart.max_restarts,
        saved_step=run.saved_step,
        incident=run.incident,
        rank_list=ranks if with_ranks else (),
        logs_dir=logs_dir,
    )


_AFTER_INCIDENT = {Phase.STOPPING, Phase.BACKOFF, Phase.FORMING}


def state_word(run: Coordinator) -> str:
    """pending, starting, running, restarting, stopping, or a final state (ux: "States")."""
    match run.phase:
        case Phase.FORMING:
            return "starting" if run.generation == NO_GENERATION else "restarting"
        case Phase.LAUNCHING:
            return "restarting" if run.generation > 0 else "starting"
        case Phase.RUNNING:
            return "running"
        case Phase.STOPPING:
            return "stopping" if run.stop is not None else "restarting"
        case Phase.BACKOFF:
            return "restarting"
        case Phase.SUCCEEDED | Phase.FAILED | Phase.STOPPED:
            return run.phase.value


def rank_statuses(run: Coordinator) -> tuple[RankStatus, ...]:
    """Every rank of the newest generation, in order; those nobody has reported yet are `spawning`."""
    found: dict[int, RankStatus] = {}
    for node, seat in run.seats.items():
        part = run.parts.get(node)
        lost = (node in run.gone or run.is_final) and (part is None or part.part not in (Part.STOPPED, Part.FINISHED))
        reports = {r.rank: r for r in part.ranks} if part else {}
        for local_rank in range(seat.assignment.nproc):
            rank = seat.assignment.first_rank + local_rank
            report = reports.get(rank)
            if report is None:
                state = "lost" if lost else "exited" if run.phase not in LIVE or node in run.gone else "spawning"
                note = "" if state != "exited" else "never spawned, or its end is not known here"
                found[rank] = RankStatus(rank=rank, node=node, local_rank=local_rank, pid=None, state=state, note=note)
            else:
                found[rank] = _rank_status(node, report, lost)
    return tuple(found[rank] for rank in sorted(found))


def _rank_status(node: str, report: RankReport, lost: bool) -> RankStatus:
    exit = report.exit
    if exit is None:
        state = "lost" if lost else "running" if report.started else "initializing"
        return RankStatus(rank=report.rank, node=node, local_rank=report.local_rank, pid=report.pid, state=state)
    return RankStatus(
        rank=report.rank,
        node=node,
        local_rank=report.local_rank,
        pid=report.pid,
        state="exited" if exit.signal is None else "killed",
        exit_code=exit.code,
        signal=None if exit.signal is None else signal_name(exit.signal),
        shell_code=shell_code(exit.code, exit.signal),
        core_dumped=exit.core_dumped,
        stopped_by_supervisor=exit.stopped_by_us,
        ended_wall_s=exit.wall_s,
        ran_s=exit.ran_s,
        note="stopped by supervisor" if exit.stopped_by_us else verdict.how(exit) if exit.failed else "",
    )


SILENT_S = 5.0
"""After so long without its report (due every second) a runner itself is what is waited for."""


def _waiting(run: Coordinator, ranks: tuple[RankStatus, ...], now_s: float) -> tuple[str, float | None]:
    """What the run waits for, and until when where that ends by itself."""
    silence = _silence(run, now_s) if run.phase in LIVE else ""
    if silence:
        return silence, None
    alive = tuple(r.rank for r in ranks if r.state in ("spawning", "initializing", "running"))
    match run.phase:
        case Phase.FORMING:
            absent = [n for n in run.nodes if n not in run.newest]
            return f"the runner on {', '.join(absent or run.nodes)}", None
        case Phase.LAUNCHING:
            new = tuple(r.rank for r in ranks if r.state in ("spawning", "initializing"))
            start_after_s = run.spec.restart.start_after_s
            return (
                f"{verdict.rank_list(new)} to start (first output, or {start_after_s:g} s alive)" if new else "",
                None,
            )
        case Phase.STOPPING:
            if not alive:
                return "what its ranks have left behind to end", None
            if run.stop is not None and run.stop.now:
                return f"{verdict.rank_list(alive)} to end (got SIGKILL)", None
            grace_s = run.spec.stop.grace_s if run.stop is None or run.stop.grace_s is None else run.stop.grace_s
            return f"{verdict.rank_list(alive)} to end (SIGKILL after {grace_s:g} s)", None
        case Phase.BACKOFF:
            return "the backoff before the next generation to pass", run.backoff_until_s
        case Phase.RUNNING:
            return ("" if alive else "what its ranks have left behind to end"), None
        case Phase.SUCCEEDED | Phase.FAILED | Phase.STOPPED:
            return "", None


def _silence(run: Coordinator, now_s: float) -> str:
    """Runners of this generation that have not reported: yet, or for a while."""
    silent = []
    for node in run.seats.keys() - run.gone:
        quiet_s = now_s - run.heard_s.get(node, now_s)
        if quiet_s > SILENT_S:
            silent.append(f"{node} (silent for {quiet_s:.0f} s)")
        elif node not in run.parts and run.phase is not Phase.LAUNCHING:
            silent.append(node)
    return f"the runner on {', '.join(sorted(silent))} to report" if silent else ""

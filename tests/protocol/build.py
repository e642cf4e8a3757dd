"""Short ways to write the structs that tests of the machines need."""

from typing import Any

from protocol.job import Job, JobSpec, RestartTable, RunTable, StopTable, Submitter, TopologyTable
from protocol.member_events import Answered
from protocol.messages.member import (
    Answer,
    Assignment,
    Offer,
    Order,
    Part,
    RankExit,
    RankReport,
    Renewal,
    Stall,
    StallAction,
    StallState,
    Witness,
)

PORT = 4000
WITNESS_PORT = 5000
"""Where every runner listens for its witnesses."""


def job_spec(
    *,
    run: RunTable | None = None,
    restart: RestartTable | None = None,
    stop: StopTable | None = None,
    role: str = "default",
    nnodes: tuple[int, int] = (1, 1),
    **more: Any,
) -> JobSpec:
    """A job of two ranks a node; `more` are other tables."""
    return JobSpec(
        name="j",
        run=run or RunTable(script="t.py"),
        topology=more.pop("topology", TopologyTable(nproc_per_node=2, role=role, nnodes=nnodes)),
        restart=restart or RestartTable(),
        stop=stop or StopTable(),
        **more,
    )


def submitted(spec: JobSpec, **submitter: Any) -> Job:
    """The job of run j@1, as somebody has submitted it."""
    given: dict[str, Any] = {
        "folder": "/home/me",
        "source": "j.toml",
        "python": "/usr/bin/python3",
        "env": {},
        "limits": {},
        "umask": 0o22,
        "user": "me",
    }
    return Job(run="j@1", spec=spec, submitter=Submitter(**given | submitter))


def offer(slots: int = 2, *, port: int = PORT, problem: str = "", witness_port: int = WITNESS_PORT) -> Offer:
    """What a node can give."""
    return Offer(
        slots=slots, address="10.0.0.1", port=port, problem=problem, witness_port=witness_port, knows_devices=True
    )


def assignment(generation: int = 0, **changed: Any) -> Assignment:
    """One node's two ranks, all there are."""
    given: dict[str, Any] = {
        "generation": generation,
        "node_rank": 0,
        "nnodes": 1,
        "first_rank": 0,
        "nproc": 2,
        "world_size": 2,
        "master_addr": "10.0.0.1",
        "master_port": PORT,
    }
    return Assignment(**given | changed)


def witness(node: str, node_rank: int = 1) -> Witness:
    """The first runner of another node, as its peers know it."""
    return Witness(
        node=node,
        incarnation=f"{node}1",
        address="10.0.0.2",
        port=WITNESS_PORT,
        node_rank=node_rank,
        first_rank=2 * node_rank,
        nproc=2,
    )


def witnessed(generation: int = 0, *, by: str = "bc", **changed: Any) -> Assignment:
    """One node's two ranks, with the first runners of nodes `by` as witnesses."""
    witnesses = tuple(witness(node, place) for place, node in enumerate(by, 1))
    return assignment(generation, witnesses=witnesses, **changed)


def answered(order: Order, *, number: int = 0, epoch: int = 0, is_direct: bool = True) -> Answered:
    """An order that reaches a runner; `number` 0 answers no renewal in particular."""
    return Answered(Answer(number=number, epoch=epoch, order=order), is_direct=is_direct)


def exited(
    code: int | None = None, *, signal: int | None = None, order: int = 0, by_us: bool = False, **more: Any
) -> RankExit:
    """How a rank ended."""
    given: dict[str, Any] = {"wall_s": 1000.0, "ran_s": 5.0}
    return RankExit(code=code, signal=signal, order=order, stopped_by_us=by_us, **given | more)


def rank(number: int, exit: RankExit | None = None, *, started: bool = True, first: int = 0, **more: Any) -> RankReport:
    """One rank of a report; its pid is 100 + its number."""
    return RankReport(rank=number, local_rank=number - first, pid=100 + number, started=started, exit=exit, **more)


def stalled(
    number: int,
    exit: RankExit | None = None,
    *,
    state: str = "alive",
    action: str = "restart",
    silent_s: float = 10.3,
    setting: str = "hang.step_timeout",
    **more: Any,
) -> RankReport:
    """A rank that has passed a limit of 10 s."""
    stall = Stall(state=StallState(state), silent_s=silent_s, limit_s=10.0, setting=setting, action=StallAction(action))
    return rank(number, exit, stall=stall, **more)


def renewal(number: int, part: Part, generation: int = 0, *ranks: RankReport, **more: Any) -> Renewal:
    """A report."""
    return Renewal(number=number, part=part, generation=generation, ranks=ranks, **more)

"""What one seed draws: a fleet, its jobs, what goes wrong and how often.

Every kind of trouble is on in some seeds only: much of one kind shows what a little of each would hide.
"""

import random
from dataclasses import dataclass, field

from protocol.job import (
    Job,
    JobSpec,
    ProgressTable,
    RendezvousTable,
    RestartTable,
    RunTable,
    StopTable,
    Submitter,
    TopologyTable,
)
from tests.sim.network import CALM, Weather
from tests.sim.workers import Program

NAMES = ("a", "b", "c", "d", "e")
HOST = "a"

RATES = (
    "worker crash",
    "worker killed",
    "runner killed",
    "runner dismissed",
    "runner slow",
    "guard killed",
    "runner and guard killed",
    "supd killed",
    "supd slow",
    "host killed",
    "machine slow",
    "everything killed on a node",
    "connections broken",
    "link cut",
    "devices busy",
    "stranger",
    "stranger speaks as a runner",
    "journal put back",
    "operator stops",
    "operator stops now",
    "operator stops twice",
    "operator restarts",
    "operator restarts twice",
    "operator restarts without a node",
    "operator starts another run",
)
"""What happens now and then while there are faults."""

GENTLE = (
    "worker crash",
    "worker killed",
    "stranger speaks as a runner",
    "operator stops twice",
    "operator restarts",
    "operator restarts twice",
    "operator restarts without a node",
)
"""What happens in gentle seeds, where only ranks come to harm, and what is said is lost at most: there most is known of
what must follow."""

FORGETFUL = "supd killed before it forgets a runner"

AIMED = (
    FORGETFUL,
    "host killed after a write",
    "host killed after a burial",
    "runner killed after it reports another part",
    "runner killed after its ranks have finished",
    "operator stops in a backoff",
)
"""What happens at the worst moments: just after something else has, with a probability."""

ENDING = ("runner killed after its ranks have finished", "host killed after a burial")

USUAL_S = {
    "operator stops": 150.0,
    "operator stops now": 300.0,
    "operator stops twice": 80.0,
    "operator starts another run": 60.0,
}
"""How far apart such things are where it is not 15 s."""


@dataclass
class Setup:
    """One world, drawn. Times are in seconds."""

    names: tuple[str, ...]
    spec: JobSpec
    program: Program
    weather: Weather
    every_s: dict[str, float]  # what happens -> how far apart, on average
    aimed: dict[str, float] = field(default_factory=dict)  # what happens -> its probability each time
    begins_s: float = 0.5  # when the first run is started
    calm_s: float = 0.0  # nothing goes wrong before
    faults_s: float = 40.0  # and then everything, for so long
    nproc: int = 1
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)  # of the script, where it is not the others'
    broken: tuple[str, ...] = ()  # machines that can run no rank
    late: dict[str, float] = field(default_factory=dict)  # node -> when its supd is started for the first time
    start_fails: float = 0.0  # probabilities
    slow_write: float = 0.0
    gives_s: tuple[float, float] = (0.002, 0.05)  # how long supd takes to start a runner
    sweep_s: tuple[float, float] = (0.01, 0.1)
    away_s: tuple[float, float] = (0.2, 3.0)  # how long a supd is away that was killed
    allow_mixed: bool = False
    twin: str = ""  # a name that two machines have, each with a state folder of its own
    is_gentle: bool = False  # only ranks come to harm
    stops_at_end: str = "stop"  # how runs end that do not end by themselves: "stop" or "now"

    @property
    def places(self) -> tuple[str, ...]:
        """All machines."""
        return (*self.names, twin_of(self.twin)) if self.twin else self.names

    def job(self, run: str) -> Job:
        """The job as it was submitted."""
        submitter = Submitter(
            folder="/", source="j", python="p", env={}, limits={}, umask=0, user="me", allow_mixed=self.allow_mixed
        )
        return Job(run=run, spec=self.spec, submitter=submitter)


def twin_of(name: str) -> str:
    """Where the second machine of that name is."""
    return f"{name}'"


def state_of(place: str) -> str:
    """The identity of the state folder on that machine."""
    return f"state of {place}"


def draw(rng: random.Random) -> Setup:
    """A world of this seed."""

    def maybe(probability: float, value: float) -> float:
        return value if rng.random() < probability else 0.0

    kind = rng.choice(("rough",) * 6 + ("gentle",) * 2 + ("alone", "ending"))
    is_gentle = kind == "gentle"
    is_alone = kind == "alone"  # one node, which fails again and again
    is_ending = kind == "ending"  # its ranks finish one after the other, and then their runners die, and the host
    names = NAMES[: rng.randint(3, 5)]
    has_host = rng.random() < 0.8  # else the job keeps off the host
    usable = len(names) - (not has_host)
    least = 1 if is_alone else rng.randint(1, usable)
    most = 1 if is_alone else rng.randint(least, usable + rng.choice((0, 2)))
    spec = JobSpec(
        name="j",
        run=RunTable(script="t.py"),
        topology=TopologyTable(
            nnodes=(least, most),
            nproc_per_node=1,
            extra_nodes=rng.choice(("standby", "grow", "grow")),
            exclude=() if has_host else (HOST,),
            node_labels={"zone": "x"} if rng.random() < 0.1 else {},
            rank_order=rng.choice(("name", "name", "join", "label:zone")),
        ),
        rendezvous=RendezvousTable(
            join_timeout_s=rng.choice((12.0, 30.0, 30.0)), last_call_s=rng.choice((0.0, 2.0, 8.0, 8.0))
        ),
        restart=RestartTable(
            max_restarts=rng.choice((0, 3, 10, -1, -1)),
            backoff_s=rng.choice((0.0, 0.5, 2.0)),
            backoff_max_s=4.0,
            stable_after_s=rng.choice((5.0, 600.0)),
            start_after_s=rng.choice((0.5, 3.0)),
            on_startup_failure=rng.choice(("fail", "restart", "restart")),
            never_on_exit=rng.choice(((), (), (77,))),
            always_on_exit=rng.choice(((), (), (1,))),
            policy=rng.choice(("on-failure",) * (2 if is_alone else 5) + ("never",)),
        ),
        stop=StopTable(
            grace_s=rng.choice((0.5, 2.0, 5.0)),
            pre_signal=rng.choice(("", "", "SIGUSR1")),
            pre_wait_s=1.0,
            finish_timeout_s=rng.choice((None, None, 2.0)),
        ),
        progress=ProgressTable(source="none"),
    )
    program = Program(
        trains_s=rng.choice((0.4, 2.0, 8.0)) if is_ending else rng.choice((None, None, 0.4, 2.0, 8.0)),
        spread_s=12.0 if is_ending else rng.choice((0.1, 4.0, 12.0)),
        deaf=maybe(0.3, 0.2),
        leaves=maybe(0.4, 0.3),
        stuck=maybe(0.2, 0.3),
        follows=rng.choice((0.0, 0.5, 1.0)),
        unspawnable=maybe(0.15, 0.1),
        fails_early=maybe(0.6, 0.3) if is_alone else maybe(0.15, 0.1),
        spawns_s=rng.choice(((0.005, 0.05), (0.05, 1.5))),
    )
    weather = CALM
    if rng.random() < 0.6:
        weather = Weather(
            loss=maybe(0.6, rng.choice((0.02, 0.2))),
            double=maybe(0.5, 0.1),
            hold=maybe(0.6, rng.choice((0.01, 0.1))),
            hold_max_s=rng.choice((0.5, 6.0)),
            delay_s=rng.choice(((0.0002, 0.002), (0.001, 0.2))),
        )
    if is_gentle:
        weather = rng.choice((CALM, Weather(loss=0.5)))
    every_s = {}
    for what in () if is_ending else GENTLE if is_gentle else RATES:
        if rng.random() < 0.4:
            every_s[what] = USUAL_S.get(what, 15.0) * rng.choice((0.3, 1.0, 1.0, 3.0))
    others = [name for name in names if name != HOST]
    twin = rng.choice(others) if not is_gentle and rng.random() < 0.1 else ""
    return Setup(
        names=names,
        spec=spec,
        program=program,
        weather=weather,
        every_s=every_s,
        aimed=dict.fromkeys(ENDING, 0.5)
        if is_ending
        else {what: rng.choice((0.1, 0.4)) for what in AIMED if rng.random() < 0.4 and not is_gentle},
        begins_s=rng.choice((rng.uniform(0.0, 2.0), rng.uniform(5.0, 8.0))),
        calm_s=rng.choice((0.0, 0.0, 0.0, 11.0)),
        faults_s=rng.uniform(15.0, 45.0),
        nproc=rng.choice((1, 1, 2)),
        labels={name: {"zone": rng.choice("xxxy")} for name in names},
        digests={rng.choice(names): "other"} if rng.random() < 0.08 else {},
        broken=(rng.choice(others),) if rng.random() < 0.06 else (),
        late={
            name: rng.uniform(0.0, 12.0) for name in (*others, *([twin_of(twin)] if twin else [])) if rng.random() < 0.3
        },
        start_fails=maybe(0.25, rng.choice((0.1, 0.6))) * (not is_gentle),
        slow_write=maybe(0.3, rng.choice((0.1, 0.5))) * (not is_gentle),
        gives_s=rng.choice(((0.002, 0.05), (0.3, 1.5))),
        sweep_s=rng.choice(((0.01, 0.1), (0.1, 4.0))),
        away_s=rng.choice(((0.2, 3.0), (2.0, 15.0))),
        allow_mixed=rng.random() < 0.1,
        twin=twin,
        is_gentle=is_gentle,
        stops_at_end=rng.choice(("stop", "now")),
    )

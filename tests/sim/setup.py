"""A world before it lives: a fleet, its job, what goes wrong and how often. (What a seed draws: draws.py.)"""

from dataclasses import dataclass, field

from protocol.job import Job, JobSpec, Submitter
from protocol.timing import DEFAULTS, Timing
from tests.sim.cuts import CUTS
from tests.sim.network import Way, Weather
from tests.sim.workers import Program

NAMES = tuple(tens + ones for tens in ("", "a") for ones in "abcdefghijklmnopqrstuvwxy")
"""As many as there may be nodes; z is where strangers are."""

HOST = "a"

WORDS = ("two cuts", "host killed as a link is cut")
"""What happens in seeds where it matters who has given a word, and when: little else does."""

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
    "host slow",
    "machine slow",
    "everything killed on a node",
    "connections broken",
    *CUTS,
    "cut that moves",
    *WORDS,
    "clog",
    "guard frozen",
    "machine off",
    "machine off, and its disk wiped",
    "devices busy",
    "stranger",
    "stranger speaks as a runner",
    "journal put back",
    "journal lost",
    "host moved",
    "operator gives a node for lost",
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
    "worker crash that is told late",
    "worker killed",
    "stranger speaks as a runner",
    "operator stops twice",
    "operator restarts",
    "operator restarts twice",
    "operator restarts without a node",
)
"""What happens in gentle seeds, where only ranks come to harm, and what is said is lost at most: there most is known of
what must follow."""

SILENCES = (
    *CUTS,
    "cut that moves",
    *WORDS,
    "clog",
    "runner slow",
    "guard frozen",
    "guard killed",
    "supd slow",
    "host slow",
    "host killed",
    "supd killed",
    "machine slow",
    "machine off",
    "runner killed",
    "worker crash",
    "operator restarts",
    "journal lost",
    "host moved",
)
"""What happens in seeds of silences: much of it, and little else."""

BLINKS = ("supd killed", "supd slow", "host killed", "host slow", "all supds killed", "host's connections broken")
"""What happens in seeds where training must not notice anything: only the coordinator and supds suffer."""

FAST = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)

OFF_S = (1.0, 15.0)
"""How long a machine is switched off."""

MOVE = "host moved while the old one lives"

BESIDE = (
    "worker crash",
    "worker killed",
    "runner killed",
    "runner dismissed",
    "runner slow",
    "runner and guard killed",
    "guard killed",
    "guard frozen",
    "supd killed",
    "supd slow",
    "connections broken",
    "devices busy",
    "operator stops",
    "operator restarts",
)
"""What may happen beside that: nothing that separates the two."""

NOTICE = ("SIGUSR2", "SIGTERM")
"""Signals that are a notice, where the job lists any."""

LOST = ("journal put back", "journal lost", "machine off, and its disk wiped", "stranger", MOVE)
"""What does not happen where operators want changes: nobody could say what they have wanted, or of whom."""

PHASE = "a run goes on to another phase"

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
    "journal put back": 4.0,  # which is possible at few moments
    "operator stops": 150.0,
    "operator stops now": 300.0,
    "operator stops twice": 80.0,
    "operator starts another run": 60.0,
}
"""How far apart such things are where it is not 15 s."""


@dataclass(frozen=True)
class Further:
    """A run beside the first one."""

    at_s: float  # when it is started
    spec: JobSpec
    trains_s: float | None  # as in Program


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
    kind: str = ""  # which kind of world the seed has drawn
    timing: Timing = DEFAULTS
    keeps_isolated: bool = False  # no lease ever ends
    strikes_phases: float = 0.0  # how often something happens soon after a run has gone on to another phase
    link: tuple[Way, ...] = ()  # the one that is cut now and then, between the host and a member
    must_go_on: bool = False  # whatever happens, no generation may end of it (R6)
    is_gentle: bool = False  # only ranks come to harm
    stops_at_end: str = "stop"  # how runs end that do not end by themselves: "stop" or "now"
    slots: tuple[str, ...] | None = None  # of each node; None: no limit
    max_jobs: int = 0  # on a node at once; 0: no limit
    plans: tuple[str, ...] = ()  # what operators and machines want beside the usual
    further: tuple[Further, ...] = ()  # in the order in which they are started

    @property
    def places(self) -> tuple[str, ...]:
        """All machines."""
        return (*self.names, twin_of(self.twin)) if self.twin else self.names

    @property
    def kinds(self) -> tuple[str, ...]:
        """What may happen soon after a run has gone on to another phase."""
        is_rough = not self.is_gentle and self.every_s.keys() - set(SILENCES)
        kinds = RATES if is_rough else SILENCES if not self.is_gentle else GENTLE
        left_out = {*USUAL_S, *(LOST if self.plans else ())}
        return (*(what for what in kinds if what not in left_out), *self.plans, *self.plans)

    def job(self, run: str) -> Job:
        """The job as it was submitted."""
        submitter = Submitter(
            folder="/", source="j", python="p", env={}, limits={}, umask=0, user="me", allow_mixed=self.allow_mixed
        )
        return Job(run=run, spec=self.spec_of(run), submitter=submitter)

    def spec_of(self, run: str) -> JobSpec:
        """What a run was started with."""
        further = self._further(run)
        return self.spec if further is None else further.spec

    def trains_s(self, run: str) -> float | None:
        """How long its ranks train; None: for ever."""
        further = self._further(run)
        return self.program.trains_s if further is None else further.trains_s

    def _further(self, run: str) -> Further | None:
        number = int(run.rpartition("@")[2])
        return self.further[number - 2] if 2 <= number <= len(self.further) + 1 else None


def twin_of(name: str) -> str:
    """Where the second machine of that name is."""
    return f"{name}'"


def state_of(place: str) -> str:
    """The identity of the state folder on that machine."""
    return f"state of {place}"

"""What has really happened in a world, as its workers, runners and troubles tell it: what rules are held against."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from protocol.coordinator_events import Phase, RunRecord, Seat
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.member_events import SETTLED
from protocol.timing import KILL_S
from tests.sim.host import Journal
from tests.sim.kernel import Clock
from tests.sim.network import CALM
from tests.sim.plan_truth import NodeWishes, RunWishes
from tests.sim.runner import Runner
from tests.sim.setup import HOST, Setup
from tests.sim.workers import Worker

STEADY_S = 4.0
"""A node that nothing has happened to for so long has a runner that offers itself, if it is to have one."""

STRANGERS_LEAVE_S = 35.0
"""So long after the last fault no stranger is there any more, nor expected back."""


WRITING_S = 2.5
"""How much later than decided something may be on disk."""

HEEDING_S = 4.5
"""How much later than handed in something may be on disk: a write of 2 s may be under way, and it needs its own."""

NOTICED_S = 10.0
"""For so long after a notice its node's runner may be one that was let go; after a reload, any that has no ranks."""

HELPED_S = 15.0
"""So long after the last fault an operator looks for what only they can tell."""


class Known(NamedTuple):
    """What has really happened to one generation."""

    seats: dict[str, Seat]
    spawned: dict[int, Worker]
    harmed: dict[int, float]


@dataclass
class Truth:
    """What has really happened to a run."""

    accepted_s: float = 0.0
    before: RunRecord = field(default_factory=RunRecord)  # as it was persisted last
    phase: Phase = Phase.FORMING  # as it was decided last, and may not be on disk yet
    number: int = NO_GENERATION  # of the generation, likewise
    history: list[RunRecord] = field(default_factory=list)  # all that were
    put_back: int = NO_GENERATION  # the generation that was there when the journal got an older record
    living: list[Worker] = field(default_factory=list)
    ended_s: float = 0.0  # when the last rank that has ended did so
    spawned: dict[int, dict[int, Worker]] = field(default_factory=lambda: defaultdict(dict))  # generation, rank
    harmed: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))  # generation, rank -> when
    lost_runners: set[str] = field(default_factory=set)  # incarnations that ended before the run did
    failed_starts: Counter[str] = field(default_factory=Counter)  # node -> as far as the coordinator was told
    offered: dict[str, tuple[float, int]] = field(default_factory=dict)  # incarnation -> when last, and which port
    wanted: frozenset[str] = frozenset()  # nodes that are asked for a runner
    gathers_since_s: float = 0.0  # when nodes were gathered for from anew
    asked_stop: bool = False
    told_stop: bool = False
    asked_restart: set[int] = field(default_factory=set)  # the generations that operators wanted to end
    told_restart: set[int] = field(default_factory=set)  # those of which they were told so
    without: str | None = None  # what the last of them said since the launch; None: there was none
    must_leave: str = ""  # the node that the next generation was accepted to leave out
    untold: int = 0  # such wishes of which it is not known whether they were accepted
    seats: dict[int, dict[str, Seat]] = field(default_factory=dict)  # generation -> as they were given out
    launched_s: dict[int, float] = field(default_factory=dict)  # generation -> when that was on disk
    fenced: set[tuple[int, str]] = field(default_factory=set)  # generation and node where ranks were killed for a lease
    late_ends: set[int] = field(default_factory=set)  # generations that ended since a rank did not end in time
    streak: int = 0  # failures in a row, at least
    failed_s: float = 0.0  # when the last of them was followed by another generation
    charged: set[int] = field(default_factory=set)  # generations
    elders: dict[int, dict[str, Seat]] = field(default_factory=dict)  # seats, as an older coordinator gave them out
    launchable: set[tuple[str, int]] = field(default_factory=set)  # incarnation and generation, as told by the newest
    orders: dict[str, tuple[int, int]] = field(default_factory=dict)  # incarnation -> generation and kind, the highest
    wishes: RunWishes = field(default_factory=RunWishes)
    looks: Counter[str] = field(default_factory=Counter)  # what was odd -> how often in a row it was seen
    forgotten: dict[int, Known] = field(default_factory=dict)  # generations whose numbers were given out anew

    def forget(self, number: int) -> None:
        """A generation of this number begins again: with the journal it was lost, and what came after it."""
        for lost in [known for known in {*self.seats, *self.spawned, *self.harmed} if known >= number]:
            seats, spawned = self.seats.pop(lost, {}), self.spawned.pop(lost, {})
            self.forgotten[lost] = Known(seats, spawned, self.harmed.pop(lost, {}))

    def recall(self, number: int) -> None:
        """Who runs the generation of this number that was forgotten has told of it."""
        known = self.forgotten.pop(number)
        self.seats[number], self.spawned[number], self.harmed[number] = known
        self.put_back = number


class Facts:
    """All runs' truths, and what has happened to the nodes."""

    def __init__(self, clock: Clock, journal: Journal, setup: Setup) -> None:
        self.clock = clock
        self.journal = journal
        self.setup = setup
        self.runs: dict[str, Truth] = {}
        self.nodes = NodeWishes()
        self.runners: dict[tuple[str, str], Runner] = {}  # machine, run -> the newest one
        self.shaken_s: dict[str, float] = {}  # node -> when something happened to it
        self.host = HOST  # the node whose supd hosts the coordinator
        self.declared: set[str] = set()  # nodes that an operator has given for lost
        self.wiped: set[str] = set()  # nodes whose disk was lost: nobody there knows what ran
        self.is_journal_lost = False
        self.aged: set[str] = set()  # runs whose record was replaced by an older one, or by none
        self.started: set[str] = set()  # runs of which an operator was told that they are accepted
        self.unknown: set[str] = set()  # runners of which no coordinator has been told since its journal was lost
        self.apart: set[tuple[str, int]] = (
            set()
        )  # runner and generation that an older coordinator, cut off, goes on with
        self.torn: dict[str, tuple[float, int]] = {}  # runner -> until when it may live by the answers of that epoch
        self.had_two = False  # coordinators were alive at once
        self.heard: dict[str, int] = {}  # incarnation -> the highest epoch that has answered it
        self.specs: dict[tuple[str, int], JobSpec] = {}  # run, revision -> of those that operators have handed in
        self.has_faults = False
        self.must_go_on = False  # whatever happens, no generation may end of it (R6)
        self.quiet_since_s: float | None = None

    def living(self, run: str, generation: int | None = None) -> list[Worker]:
        """The workers that can run user code."""
        return [w for w in self.runs[run].living if generation is None or w.generation == generation]

    def record_of(self, run: str) -> RunRecord:
        """What the journal holds of a run; a fresh one where it was lost."""
        return self.journal.runs.get(run, RunRecord())

    def spec_of(self, run: str, record: RunRecord) -> JobSpec:
        """What the newest generation of this record is to run, on as many nodes as operators have wanted; or as before,
        where there are too few for that."""
        spec = self.specs.get((run, record.revision)) or self.setup.spec_of(run)
        if record.nnodes is None:
            return spec
        is_met = record.nnodes_before is None or len(record.seats) >= record.nnodes[0]
        nnodes = record.nnodes if is_met else record.nnodes_before
        return replace(spec, topology=replace(spec.topology, nnodes=nnodes))

    def can_run(self, worker: Worker) -> bool:
        """Whether a worker counts: not while its machine is frozen, nor until the guard there has read the clock; nor
        where runner and guard are dead at once, and only their supd can end it; nor where the journal was lost, and
        nobody who was heard since has told of its runner; nor where an old coordinator, cut off from the new one, or
        said to be dead, answers its runner. None of that is promised."""
        if (worker.incarnation, worker.generation) in self.apart:
            return False
        torn_until_s, epoch = self.torn.get(worker.incarnation, (0.0, 0))
        if self.clock.now_s < torn_until_s and self.heard.get(worker.incarnation, 0) <= epoch:
            return False
        has_thawed = self.clock.now_s >= worker.crew.machine.thaws_s + KILL_S
        return has_thawed and not worker.crew.is_unwatched and worker.incarnation not in self.unknown

    def running(self, run: str, generation: int, node: str | None = None) -> list[Worker]:
        """The workers of a generation that count; on one node only, if it is named."""
        return [w for w in self.living(run, generation) if node in (None, w.node) and self.can_run(w)]

    def may_spawn(self, run: str) -> bool:
        """Whether a rank is alive anywhere, or a runner is about to start one."""
        members = (r.member for (_, of), r in self.runners.items() if of == run and r.is_alive)
        return bool(self.living(run)) or any(m is not None and m.part not in SETTLED for m in members)

    def is_told_by_runners(self, run: str, record: RunRecord) -> bool:
        """Whether living runners know all that is to be known of a run: it is live, and nothing was wanted of it that
        only the journal holds."""
        truth = self.runs[run]
        if record.phase not in (Phase.LAUNCHING, Phase.RUNNING) or truth.asked_stop or truth.untold:
            return False
        runners = (self.runners.get((seat.node, run)) for seat in record.seats)
        numbers = [r.member.generation for r in runners if r is not None and r.is_alive and r.member is not None]
        return numbers == [record.generation] * len(record.seats)

    def is_whole(self, run: str, record: RunRecord) -> bool:
        """Whether every rank of its generation runs, or has ended with 0."""
        ranks = self.runs[run].spawned[record.generation]
        is_sound = all(worker.main_runs or worker.exit == (0, None) for worker in ranks.values())
        return is_sound and len(ranks) == world_size(record)

    def shake(self, *nodes: str, for_s: float = 0.0) -> None:
        """Something happens to these nodes, or on their way, for so long."""
        for node in nodes:
            self.shaken_s[node] = max(self.shaken_s.get(node, 0.0), self.clock.now_s + for_s)

    def is_steady(self, node: str) -> bool:
        """Whether nothing has happened to a node, or on its way to the host, for a while."""
        return node in self.shaken_s and self.shaken_s[node] + STEADY_S < self.clock.now_s

    def is_clear(self, truth: Truth, generation: int) -> bool:
        """Whether it can be known which rank of a generation failed first: nothing but ranks has come to harm, and what
        their runners say is lost at most, and not late."""
        is_undisturbed = max(self.shaken_s.values()) < truth.launched_s[generation]
        return is_undisturbed and self.setup.weather.hold == 0 and self.setup.slow_write == 0

    def may_have(self, node: str) -> bool:
        """Whether the job may run there."""
        table = self.setup.spec.topology
        if node not in self.setup.names:
            return True  # a stranger, who says of itself what it likes
        labels = self.setup.labels.get(node, {})
        return node not in table.exclude and all(labels.get(key) == value for key, value in table.node_labels.items())

    @property
    def could(self) -> list[str]:
        """The nodes on which the job can run."""
        return [node for node in self.setup.names if self.may_have(node) and node not in self.setup.broken]

    def spared(self, record: RunRecord) -> set[str]:
        """The nodes that a run may do without, where others are enough: they are to be free, or were a moment ago, will
        be taken away, or have had trouble; or other runs have what it would need of them."""
        if self.setup.slots is not None:
            return set(self.setup.names)
        troubled = {name for name, node in self.journal.nodes.items() if node.troubles}
        troubled |= {record.incident.node} if record.incident is not None else set()
        past = {node: drains[-1][1] for node, drains in self.nodes.undrained.items()}
        recent = {node for node, until_s in past.items() if until_s > self.clock.now_s - STEADY_S}
        recent |= {node for node, at_s in self.nodes.told_s.items() if at_s <= self.clock.now_s < at_s + NOTICED_S}
        return {*self.nodes.drains, *recent, *self.nodes.noticed, *record.preempted, *troubled}

    @property
    def just_lifted(self) -> set[str]:
        """The nodes that may be used again since a moment ago: their runners are on the way."""
        return {node for node, at_s in self.nodes.lifted_s.items() if at_s > self.clock.now_s - STEADY_S}

    @property
    def is_fair(self) -> bool:
        """Whether every node has been left alone for a while, and all that is said is heard."""
        setup = self.setup
        is_rough = self.has_faults and (setup.weather is not CALM or setup.start_fails + setup.slow_write > 0)
        quiet_s = 0.0 if self.quiet_since_s is None else self.clock.now_s - self.quiet_since_s
        may_be_strangers = "stranger" in setup.every_s and quiet_s < STRANGERS_LEAVE_S
        return not (is_rough or may_be_strangers or setup.twin) and all(map(self.is_steady, setup.names))


def world_size(record: RunRecord) -> int:
    """How many ranks the generation has."""
    return record.seats[0].assignment.world_size if record.seats else 0

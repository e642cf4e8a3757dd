"""A coordinator and the runners of one node, or of several, that do what a script says; a line for all they do."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from protocol import coordinator_events as c
from protocol import member_events as m
from protocol.coordinator import Coordinator
from protocol.ids import NO_GENERATION
from protocol.job import HangTable, RestartTable, StopTable
from protocol.member import Member
from protocol.messages.member import Offer, Order, RankExit, Release, Renewal, Run, SpawnFailure, StallState, Stop, Wait
from protocol.signals import signal_name
from protocol.text import some_of
from protocol.verdict import rank_list
from tests.protocol.build import job_spec

SPEC = job_spec(
    restart=RestartTable(max_restarts=3, backoff_s=10.0),
    stop=StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=30.0),
)


@dataclass
class Actor:
    """A node's runner: its machine, what it has on disk, what its ranks show."""

    member: Member | None = None
    incarnation: str = ""
    disk: Renewal | None = None
    ports: int = 29500
    samples: dict[int, m.Sample] = field(default_factory=dict)  # what every rank that is alive shows
    states: dict[int, StallState] = field(default_factory=dict)  # of processes; those that are not here are alive

    @property
    def generation(self) -> int:
        return NO_GENERATION if self.member is None else self.member.generation


class Stage:
    """One run of two ranks a node. Messages arrive at once, while there is a link."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.epoch = 0
        self.journal = c.RunRecord()
        self.coordinator: Coordinator | None = None
        self.spec = SPEC
        self.actors = {"n1": Actor()}
        self.away: set[str] = set()  # nodes whose supd does not answer
        self.node = "n1"  # to which the commands go
        self.lines: list[str] = []
        self.todo: deque[Callable[[], None]] = deque()

    @property
    def actor(self) -> Actor:
        return self.actors[self.node]

    def play(self, command: str) -> list[str]:
        """Carry out one line of a script; returns what came of it."""
        self.lines = []
        word, *rest = command.split()
        getattr(self, f"do_{word}")(*rest)
        while self.todo:
            self.todo.popleft()()
        return self.lines

    # --- commands ------------------------------------------------------------------------------------------------

    def do_fleet(self, nnodes: str, *nodes: str) -> None:
        """`fleet 2:3 a b c`: the nodes there are, and how many the job wants."""
        least, most = map(int, nnodes.split(":"))
        topology = msgspec.structs.replace(SPEC.topology, nnodes=(least, most))
        self.spec = msgspec.structs.replace(SPEC, topology=topology)
        self.actors = {node: Actor(ports=29500 + 100 * place) for place, node in enumerate(nodes)}
        self.node = nodes[0]

    def do_on(self, node: str, word: str, *rest: str) -> None:
        """`on b exit 2 code 1`: what follows is done there."""
        self.node = node
        getattr(self, f"do_{word}")(*rest)

    def do_away(self, *nodes: str) -> None:
        """`away c`: the supd of these nodes does not answer, that of all others does."""
        self.away = set(nodes)
        self._see_nodes()

    def _see_nodes(self) -> None:
        nodes = (c.RosterNode(node, is_up=node not in self.away, joined=i) for i, node in enumerate(self.actors))
        self.tell(c.Roster(tuple(nodes)))

    def do_supd(self, word: str) -> None:
        """`supd starts`, `supd dies`."""
        if word == "dies":
            self.coordinator = None
            for node in self.actors:
                self.give(m.Linked(up=False), node)
            return
        self.epoch += 1
        self.coordinator = Coordinator(self.spec, self.journal, self.epoch, lambda: 0.5)
        self.tell(c.Opened())
        self._see_nodes()
        for node in self.actors:
            self.give(m.Linked(up=True), node)

    def do_runner(self, word: str, incarnation: str) -> None:
        """`runner starts r1`, `runner dies r1`: supd notices, sweeps, and reads what it left."""
        actor = self.actor
        if word == "starts":
            actor.incarnation, actor.disk = incarnation, None
            actor.member = Member(self.spec, self.now_s, orphan_wait_s=3600.0, linger_s=60.0)
            self.give(m.Linked(up=True))
            return
        actor.member = None
        if actor.disk is not None:
            self.tell(c.Heard(self.node, incarnation, actor.disk))
        self.tell(c.RunnerGone(self.node, incarnation))

    def do_spawned(self, *pids: str) -> None:
        """`spawned 100 101`; fewer than all: the next one cannot be."""
        failure = None if len(pids) == 2 else SpawnFailure(rank=len(pids), path="/no/python", reason="No such file")
        assignment = self.actor.member.assignment if self.actor.member else None
        first = 0 if assignment is None else assignment.first_rank
        self.actor.samples = {first + i: m.Sample() for i in range(len(pids))}
        self.give(m.Launched(self.actor.generation, tuple(int(pid) for pid in pids), failure))

    def do_output(self, *ranks: str) -> None:
        """`output 0 1`: first bytes."""
        for rank in ranks:
            self.give(m.Wrote(self.actor.generation, int(rank)))

    def do_limit(self, seconds: str) -> None:
        """`limit 1`: the job, which has not begun yet, gives this step_timeout."""
        hang, origins = HangTable(step_timeout_s=float(seconds)), {"hang.step_timeout": "file"}
        self.spec = msgspec.structs.replace(SPEC, hang=hang, origins=origins)

    def do_beat(self, step: str, *ranks: str) -> None:
        """`beat 7 0 1`: ranks 0 and 1 reach step 7."""
        for rank in map(int, ranks):
            self.actor.samples[rank] = m.Sample(count=self.actor.samples[rank].count + 1, step=int(step))

    def do_sigstop(self, rank: str) -> None:
        """`sigstop 1`: somebody stops its process."""
        self.actor.states[int(rank)] = StallState.STOPPED

    def do_exit(self, rank: str, kind: str, number: str) -> None:
        """`exit 0 code 1`, `exit 1 signal 9`."""
        code, signal = (int(number), None) if kind == "code" else (None, int(number))
        exit = RankExit(code=code, signal=signal, order=0, wall_s=0.0, ran_s=self.now_s, stopped_by_us=False)
        self.actor.samples.pop(int(rank), None)
        self.actor.states.pop(int(rank), None)
        self.give(m.Exited(self.actor.generation, int(rank), exit, self.now_s))

    def do_cleared(self) -> None:
        """Nothing of the generation is left."""
        self.give(m.Cleared(self.actor.generation))

    def do_stop(self, *how: str) -> None:
        """`stop`, `stop now`, `stop 5`: the operator."""
        grace_s = float(how[0]) if how and how[0] != "now" else None
        self.tell(c.StopRequested(grace_s, now="now" in how, by="me"))

    def do_restart(self, *why: str) -> None:
        """`restart because`, `restart without b`: the operator."""
        without = why[1] if why and why[0] == "without" else ""
        self.tell(c.RestartRequested("" if without else " ".join(why), by="me", without=without))

    def do_wait(self, seconds: str) -> None:
        """`wait 10`: all look at the clock then, once."""
        self.now_s += float(seconds)
        for node in self.actors:
            self.give(m.Tick(), node)
        self.tell(c.Tick())

    # --- machines ------------------------------------------------------------------------------------------------

    def tell(self, event: c.Event) -> None:
        self.todo.append(lambda: self._tell(event))

    def give(self, event: m.Event, node: str = "") -> None:
        where = node or self.node
        self.todo.append(lambda: self._give(event, where))

    def _tell(self, event: c.Event) -> None:
        if self.coordinator is None:
            return
        for effect in self.coordinator.handle(event, self.now_s):
            match effect:
                case c.Persist(record):
                    self.journal = record
                    self.say("supd", f"journal: {record.phase}, generation {record.generation}")
                case c.Note(kind, text):
                    self.say("supd", f"event {kind}: {text}")
                case c.Want(nodes):
                    self.say("supd", f"wants {f'a runner on {some_of(sorted(nodes))}' if nodes else 'no more runners'}")
                case c.Send(node, incarnation, answer):
                    self.say("supd", f"to {incarnation}, answer {answer.number}: {_order(answer.order)}")
                    if incarnation == self.actors[node].incarnation:
                        self.give(m.Ordered(answer.order), node)

    def _give(self, event: m.Event, node: str) -> None:
        actor = self.actors[node]
        if actor.member is None:
            return
        for effect in actor.member.handle(event, self.now_s):
            self.say(actor.incarnation, self._perform(effect, actor, node))
            if isinstance(effect, m.End):
                actor.member = None
                self.tell(c.RunnerGone(node, actor.incarnation))

    def _perform(self, effect: m.Effect, actor: Actor, node: str) -> str:
        match effect:
            case m.Spawn(assignment):
                last = assignment.first_rank + assignment.nproc - 1
                return f"spawns ranks {assignment.first_rank}-{last}, master port {assignment.master_port}"
            case m.Signal(rank, number, tree):
                return f"sends {signal_name(number)} to rank {rank}{' and its tree' if tree else ''}"
            case m.Abort(ranks):
                return f"sends SIGABRT and SIGCONT to what beats of {rank_list(ranks)}"
            case m.KeepStacks(rank):
                return f"keeps what rank {rank} writes to stderr from now on"
            case m.TermLeftovers():
                return "sends SIGTERM to what belongs to no live rank"
            case m.Clear(generation, kill_at_s):
                return f"clears generation {generation} away, SIGKILL {kill_at_s - self.now_s:g} s from now"
            case m.LookUpOffer():
                actor.ports += 1
                address = f"10.0.0.{list(self.actors).index(node) + 1}"
                self.give(m.Offered(Offer(slots=2, address=address, port=actor.ports)), node)
                return "looks up what the node can give"
            case m.Persist(renewal):
                actor.disk = renewal
                return f"disk: {_report(renewal)}"
            case m.Renew(renewal):
                if self.coordinator is not None:
                    self.tell(c.Heard(node, actor.incarnation, renewal))
                return f"to supd, renewal {renewal.number}: {_report(renewal)}"
            case m.Look(generation):
                self.give(m.Looked(generation, dict(actor.samples)), node)
                return "looks at its ranks"
            case m.Inspect(generation, ranks):
                states = {rank: actor.states.get(rank, StallState.ALIVE) for rank in ranks}
                self.give(m.Inspected(generation, states), node)
                return f"sees what the processes of ranks {', '.join(map(str, ranks))} are doing"
            case m.End():
                return "ends"

    def say(self, who: str, what: str) -> None:
        self.lines.append(f"  {who:<5}{what}")


def _order(order: Order) -> str:
    match order:
        case Run(assignment):
            return f"run {assignment.generation}"
        case Stop(generation, grace_s, now):
            how = " now" if now else "" if grace_s is None else f" with {grace_s:g} s grace"
            return f"stop {generation}{how}"
        case Wait():
            return "wait"
        case Release():
            return "release"


def _report(renewal: Renewal) -> str:
    words = [renewal.part.value]
    if renewal.generation != NO_GENERATION:
        words.append(f"generation {renewal.generation}")
    for r in renewal.ranks:
        state = "started" if r.started else "spawned"
        if r.exit is not None:
            end = signal_name(r.exit.signal) if r.exit.signal is not None else f"code {r.exit.code}"
            state = f"ended by {end}" + (" after our stop" if r.exit.stopped_by_us else "")
        state += f", step {r.step}" if r.step is not None else ""
        state += " and hangs" if r.stall is not None and r.exit is None else ""
        words.append(f"rank {r.rank} {state}")
    if renewal.spawn_failure is not None:
        words.append(f"rank {renewal.spawn_failure.rank} cannot be spawned")
    if renewal.offer is not None:
        words.append(f"offers {renewal.offer.slots} ranks and port {renewal.offer.port}")
    return ", ".join(words)

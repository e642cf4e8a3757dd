"""A coordinator and the runners of one node, or of several, that do what a script says; a line for all they do."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from protocol import coordinator_events as c
from protocol import member_events as m
from protocol.coordinator import Coordinator
from protocol.ids import NO_GENERATION
from protocol.job import CheckpointTable, HangTable, PreemptionTable, RestartTable, StopTable
from protocol.member import Member
from protocol.messages.member import Offer, Part, RankExit, Renewal, SpawnFailure, StallState, Witness
from protocol.text import some_of
from tests.protocol.build import job_spec
from tests.transcripts import words

SPEC = job_spec(
    restart=RestartTable(max_restarts=3, backoff_s=10.0),
    stop=StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=30.0),
)
SUPD = "supd"
"""The name of the coordinator's process; a runner has that of its node."""

STEPS_MAX = 10_000
"""How often somebody looks at the clock in one `pass`."""


@dataclass
class Actor:
    """A node's runner: its machine, what it has on disk, what its ranks show."""

    member: Member | None = None
    incarnation: str = ""
    disk: Renewal | None = None
    ports: int = 29500
    samples: dict[int, m.Sample] = field(default_factory=dict)  # what every rank that is alive shows
    done: dict[int, int] = field(default_factory=dict)  # ranks that have said that they are done, and how often
    drain: c.Draining | None = None  # an operator wants it free
    signals: frozenset[str] = frozenset()  # that its supd was sent
    states: dict[int, StallState] = field(default_factory=dict)  # of processes; those that are not here are alive
    kill_at_s: float | None = None  # when its guard ends what runs there
    inbox: list[m.Event] | None = None  # what has come in while it is frozen; None: it is not

    @property
    def generation(self) -> int:
        return NO_GENERATION if self.member is None else self.member.generation

    @property
    def is_awake(self) -> bool:
        return self.member is not None and self.inbox is None


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
        self.cuts: set[frozenset[str]] = set()  # pairs of processes between which everything is lost
        self.node = "n1"  # to which the commands go
        self.lines: list[str] = []
        self.todo: deque[Callable[[], None]] = deque()
        self.said: set[str] = set()  # the gist of all lines so far
        self.shown_s: float | None = None  # while time passes: when the last line was said; None: it stands still

    @property
    def actor(self) -> Actor:
        return self.actors[self.node]

    def play(self, command: str) -> list[str]:
        """Carry out one line of a script; returns what came of it."""
        self.lines = []
        word, *rest = command.split()
        getattr(self, f"do_{word}")(*rest)
        self._carry_out()
        return self.lines

    def _carry_out(self) -> None:
        while self.todo:
            self.todo.popleft()()

    # --- commands: the fleet -------------------------------------------------------------------------------------

    def do_fleet(self, nnodes: str, *nodes: str) -> None:
        """`fleet 2:3 a b c`: the nodes there are, and how many the job wants."""
        least, most = map(int, nnodes.split(":"))
        topology = msgspec.structs.replace(self.spec.topology, nnodes=(least, most))
        self.spec = msgspec.structs.replace(self.spec, topology=topology)
        self.actors = {node: Actor(ports=29500 + 100 * place) for place, node in enumerate(nodes)}
        self.node = nodes[0]

    def do_grow(self) -> None:
        """`grow`: the job, which has not begun yet, has ranks on as many nodes as there are."""
        topology = msgspec.structs.replace(self.spec.topology, extra_nodes="grow")
        self.spec = msgspec.structs.replace(self.spec, topology=topology)

    def do_running(self, nnodes: str, *nodes: str) -> None:
        """`running 3:3 a b c`: a fleet whose ranks have all started, as fleet-crash.txt shows it; of that only what
        people see is told."""
        self.do_fleet(nnodes, *nodes)
        self.do_supd("starts")
        for node in nodes:
            self.do_on(node, "runner", "starts", f"{node}1")
            self._carry_out()
        members = [actor.member for actor in self.actors.values() if actor.member is not None]
        assert any(member.part is Part.LAUNCHING for member in members), "it does not begin"
        for place, (node, actor) in enumerate(self.actors.items()):
            if actor.member is not None and actor.member.part is Part.LAUNCHING:
                pid = 100 * (place + 1)
                self.do_on(node, "spawned", str(pid), str(pid + 1))
                self._carry_out()
                self.do_output(*map(str, actor.samples))
                self._carry_out()
        self.lines = [line for line in self.lines if line.startswith("  supd event")]

    def do_on(self, node: str, word: str, *rest: str) -> None:
        """`on b exit 2 code 1`: what follows is done there."""
        self.node = node
        getattr(self, f"do_{word}")(*rest)

    def do_away(self, *nodes: str) -> None:
        """`away c`: the supd of these nodes does not answer, that of all others does."""
        self.away = set(nodes)
        self._see_nodes()

    def _see_nodes(self) -> None:
        nodes = (
            c.RosterNode(node, node not in self.away, joined=i, drain=actor.drain, signals=actor.signals)
            for i, (node, actor) in enumerate(self.actors.items())
        )
        self.tell(c.Roster(tuple(nodes)))

    def do_supd(self, word: str, how: str = "") -> None:
        """`supd starts`, `supd dies`: the one that hosts the coordinator. `supd starts anew`: its journal is lost, and
        it has the job from the runners."""
        if how == "anew":
            self.journal = c.RunRecord()
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
            if self._reach(node, SUPD):
                self.give(m.Linked(up=True), node)

    def do_cut(self, *names: str) -> None:
        """`cut c d from supd a b`: from now on everything is lost between these and those; nobody is told."""
        middle = names.index("from")
        self.cuts |= {frozenset((one, other)) for one in names[:middle] for other in names[middle + 1 :]}

    def do_heal(self) -> None:
        """`heal`: nothing is cut any more."""
        self.cuts.clear()

    def do_crash(self, node: str) -> None:
        """`crash c`: its power is off. Only its disk is left; supd on c does not answer, and that is all one sees."""
        actor = self.actors[node]
        actor.member = actor.kill_at_s = None
        self.do_away(*self.away, node)

    def do_boot(self, node: str) -> None:
        """`boot c`: it is up again. supd there finds the lock of the runner free, sweeps, and reads what it left."""
        self._bury(node)
        self.do_away(*self.away - {node})

    # --- commands: runners and ranks -----------------------------------------------------------------------------

    def do_runner(self, word: str, incarnation: str) -> None:
        """`runner starts r1`, `runner dies r1`: supd notices, sweeps, and reads what it left."""
        actor = self.actor
        if word == "starts":
            actor.incarnation, actor.disk = incarnation, None
            actor.member = Member(self.spec, self.now_s, orphan_wait_s=3600.0, linger_s=60.0)
            self.give(m.Linked(up=True))
            return
        actor.member = actor.kill_at_s = None
        self._bury(self.node)

    def _bury(self, node: str) -> None:
        actor = self.actors[node]
        if actor.disk is not None:
            self.tell(c.Heard(node, actor.incarnation, actor.disk))
        self.tell(c.RunnerGone(node, actor.incarnation))

    def do_freeze(self, node: str) -> None:
        """`freeze c`: SIGSTOP to its runner, and to nothing else."""
        self.actors[node].inbox = []

    def do_thaw(self, node: str) -> None:
        """`thaw c`: it goes on with all that has come in."""
        actor = self.actors[node]
        inbox, actor.inbox = actor.inbox or [], None
        for event in inbox:
            self.give(event, node)

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
        self.spec = msgspec.structs.replace(self.spec, hang=hang, origins=origins)

    def do_beat(self, step: str, *ranks: str) -> None:
        """`beat 7 0 1`: ranks 0 and 1 reach step 7."""
        for rank in map(int, ranks):
            self.actor.samples[rank] = m.Sample(count=self.actor.samples[rank].count + 1, step=int(step))

    def do_saves(self, step: str) -> None:
        """`saves 500`: the marker says that a checkpoint of this step is there."""
        self.give(m.Saved(self.actor.generation, int(step), is_new=True))

    def do_done(self, *ranks: str) -> None:
        """`done 0 1`: these ranks call supd.done()."""
        for rank in map(int, ranks):
            self.actor.done[rank] = self.actor.done.get(rank, 0) + 1

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

    # --- commands: planned changes -------------------------------------------------------------------------------

    def do_marker(self, *preemption: str) -> None:
        """`marker`, `marker exit`, `marker wait-for-nodes`: the job, which has not begun yet, writes a marker and can
        grow at once; it gives up, or waits, where nodes are taken away."""
        table = PreemptionTable(signals=("SIGTERM",), then=preemption[0] if preemption else "exit")
        topology = msgspec.structs.replace(self.spec.topology, grow_min_interval_s=0.0)
        saves = CheckpointTable(marker="/latest")
        self.spec = msgspec.structs.replace(self.spec, checkpoint=saves, preemption=table, topology=topology)

    def do_drain(self, *nodes: str) -> None:
        """`drain b`: an operator wants it free at the next checkpoint."""
        for node in nodes:
            drain = c.Draining(at_checkpoint=True, go_s=self.now_s + 1800.0, by="me", reason="new NIC")
            self.actors[node].drain = drain
        self._see_nodes()

    def do_sigterm(self, *nodes: str) -> None:
        """`sigterm b c`: the supds there are told that their nodes will be taken away."""
        for node in nodes:
            self.actors[node].signals = frozenset({"SIGTERM"})
        self._see_nodes()

    def do_joins(self, node: str) -> None:
        """`joins c`: a node comes to the fleet."""
        self.actors[node] = Actor(ports=29500 + 100 * len(self.actors))
        self._see_nodes()

    # --- commands: the operator, and time ------------------------------------------------------------------------

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

    def do_pass(self, seconds: str) -> None:
        """`pass 10`: all look at the clock whenever they have to. What somebody says again is left out."""
        until_s, steps = round(self.now_s + float(seconds), 3), 0
        while (next_s := min(self._deadlines(), default=math.inf)) <= until_s:
            steps += 1
            assert steps < STEPS_MAX, f"somebody's deadline at {next_s} does not move"
            self.shown_s = self.now_s = max(self.now_s, next_s)
            for node, actor in self.actors.items():
                if actor.kill_at_s is not None and self.now_s >= actor.kill_at_s:
                    actor.kill_at_s = None
                    self.say(actor.incarnation, "its guard sends SIGKILL to every process that it has started")
                if actor.is_awake and _is_due(actor.member, self.now_s):
                    self.give(m.Tick(), node)
            if _is_due(self.coordinator, self.now_s):
                self.tell(c.Tick())
            self._carry_out()
        self.now_s, self.shown_s = until_s, None

    def _deadlines(self) -> Iterable[float]:
        for actor in self.actors.values():
            if actor.is_awake and actor.member is not None and actor.member.deadline_s is not None:
                yield actor.member.deadline_s
            if actor.kill_at_s is not None:
                yield actor.kill_at_s
        if self.coordinator is not None and self.coordinator.deadline_s is not None:
            yield self.coordinator.deadline_s

    # --- machines ------------------------------------------------------------------------------------------------

    def tell(self, event: c.Event) -> None:
        self.todo.append(lambda: self._tell(event))

    def give(self, event: m.Event, node: str = "") -> None:
        where = node or self.node
        self.todo.append(lambda: self._give(event, where))

    def _reach(self, *names: str) -> bool:
        """Whether a word gets from the first to the last, by way of those between; the coordinator is one of them."""
        is_there = self.coordinator is not None or SUPD not in names
        return is_there and not any(frozenset(pair) in self.cuts for pair in itertools.pairwise(names))

    def _fate(self, *names: str) -> str:
        """What to say of a word on that way."""
        return "" if self._reach(*names) or self.coordinator is None else " (lost)"

    def _node_of(self, incarnation: str) -> str:
        return next(node for node, actor in self.actors.items() if actor.incarnation == incarnation)

    def _tell(self, event: c.Event) -> None:
        if self.coordinator is None:
            return
        for effect in self.coordinator.handle(event, self.now_s):
            match effect:
                case c.Persist(record):
                    self.journal = record
                    self.say(SUPD, f"journal: {record.phase}, generation {record.generation}")
                case c.Note(kind, text):
                    self.say(SUPD, f"event {kind}: {text}")
                case c.Blame(node):
                    self.say(SUPD, f"blames {node}")
                case c.Want(nodes):
                    self.say(SUPD, f"wants {f'a runner on {some_of(sorted(nodes))}' if nodes else 'no more runners'}")
                case c.Send():
                    self._send(effect)
                case c.Ask(incarnation, question):
                    witness, about = self._node_of(incarnation), question.incarnation
                    whom = f"{incarnation}{self._fate(SUPD, witness)}"
                    self.say(SUPD, f"asks {whom}: when have you last given {about} your word?")
                    if self._reach(SUPD, witness):
                        self.give(m.Questioned(question), witness)

    def _send(self, send: c.Send) -> None:
        answer, way = send.answer, [SUPD]
        how = f"to {send.incarnation}"
        if send.via:
            how += f" by way of {send.via}"
            way.append(self._node_of(send.via))
        how += self._fate(*way, send.node)
        self.say(SUPD, f"{how}, answer {answer.number}: {words.order(answer.order)}")
        if send.incarnation == self.actors[send.node].incarnation and self._reach(*way, send.node):
            self.give(m.Answered(answer, is_direct=not send.via), send.node)

    def _give(self, event: m.Event, node: str) -> None:
        actor = self.actors[node]
        if actor.inbox is not None:
            actor.inbox.append(event)
        if not actor.is_awake or actor.member is None:
            return
        for effect in actor.member.handle(event, self.now_s):
            self._perform(effect, actor, node)
            if isinstance(effect, m.End):
                actor.member = None
                self.tell(c.RunnerGone(node, actor.incarnation))

    def _perform(self, effect: m.Effect, actor: Actor, node: str) -> None:
        who = actor.incarnation
        match effect:
            case m.Spawn(assignment):
                self.say(who, words.spawning(assignment))
            case m.Signal() | m.Abort() | m.KeepStacks() | m.TermLeftovers() | m.Clear() | m.KillAll():
                self.say(who, words.of_ranks(effect, self.now_s))
            case m.LookUpOffer():
                self.say(who, "looks up what the node can give")
                actor.ports += 1
                address = f"10.0.0.{list(self.actors).index(node) + 1}"
                self.give(m.Offered(Offer(slots=2, address=address, port=actor.ports, witness_port=28000)), node)
            case m.Persist(renewal):
                actor.disk = renewal
                self.say(who, f"disk: {words.report(renewal)}")
            case m.Renew():
                self._renew(effect, actor, node)
            case m.Look(generation):
                self.say(who, "looks at its ranks")
                self.give(m.Looked(generation, dict(actor.samples)), node)
            case m.Inspect(generation, ranks):
                states = {rank: actor.states.get(rank, StallState.ALIVE) for rank in ranks}
                self.say(who, f"sees what the processes of ranks {', '.join(map(str, ranks))} are doing")
                self.give(m.Inspected(generation, states), node)
            case m.LookForSave():
                pass  # what the marker says is handed in
            case m.LookForDone(generation):
                self.give(m.SeenDone(generation, {rank: actor.done.get(rank) for rank in actor.samples}), node)
            case m.Announce(_, reason):
                self.say(who, f"tells its ranks of the stop: {reason}")
            case m.Hold(until_s):
                actor.kill_at_s = until_s
                self.say(who, words.hold(effect))
            case m.Meet() | m.AskWords() | m.GiveWord() | m.Testify():
                self._perform_among_runners(effect, actor, node)
            case m.End():
                self.say(who, "ends")

    def _perform_among_runners(
        self, effect: m.Meet | m.AskWords | m.GiveWord | m.Testify, actor: Actor, node: str
    ) -> None:
        who = actor.incarnation
        match effect:
            case m.Meet(witnesses):
                names = some_of([witness.incarnation for witness in witnesses])
                self.say(who, f"connects to its witness{'es' if len(witnesses) > 1 else ''} {names}")
                met = frozenset(witness.incarnation for witness in witnesses if self._reach(node, witness.node))
                self.give(m.Reached(met), node)
            case m.AskWords(wanted):
                asked = [f"{w.incarnation}{self._fate(node, w.node)}" for w in _witnesses(actor)]
                self.say(who, f"asks {some_of(asked)} for {'its' if len(asked) == 1 else 'their'} word")
                for witness in _witnesses(actor):
                    if self._reach(node, witness.node):
                        self.give(m.WordAsked(node, who, wanted), witness.node)
            case m.GiveWord(incarnation, word):
                self.say(who, f"gives {incarnation} {'its' if word.is_given else 'no'} word")
                if self._reach(node, self._node_of(incarnation)):
                    self.give(m.WordHeard(who, word), self._node_of(incarnation))
            case m.Testify(testimony):
                self.say(who, words.testimony(testimony))
                if self._reach(node, SUPD):
                    self.tell(c.Testified(node, who, testimony))

    def _renew(self, effect: m.Renew, actor: Actor, node: str) -> None:
        who, renewal = actor.incarnation, effect.renewal
        told = words.report(renewal) + (", and its assignment" if renewal.assignment is not None else "")
        self.say(who, f"to supd{self._fate(node, SUPD)}, renewal {renewal.number}: {told}")
        if self._reach(node, SUPD):
            self.tell(c.Heard(node, who, renewal))
        for witness in _witnesses(actor) if effect.by_witnesses else ():
            if self._reach(node, witness.node, SUPD) and self.actors[witness.node].is_awake:
                self.say(witness.incarnation, f"passes on to supd what {who} says, renewal {renewal.number}")
                self.tell(c.Heard(node, who, renewal, witness.incarnation))

    def say(self, who: str, what: str) -> None:
        line = f"  {who:<5}{what}"
        is_again = words.gist(line) in self.said and not what.startswith(("journal", "event"))
        self.said.add(words.gist(line))
        if self.shown_s is None:
            self.lines.append(line)
        elif not is_again:
            moment = f"  at {round(self.now_s, 2):g} s"
            if moment not in self.lines:
                self.lines.append(moment)
            self.lines.append(line)


def _witnesses(actor: Actor) -> tuple[Witness, ...]:
    assignment = actor.member.assignment if actor.member is not None else None
    return assignment.witnesses if assignment is not None else ()


def _is_due(machine: Member | Coordinator | None, now_s: float) -> bool:
    return machine is not None and machine.deadline_s is not None and machine.deadline_s <= now_s

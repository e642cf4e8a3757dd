"""A coordinator and the runners of several nodes, back to back in seeded time: real machines, no IO.

Links are cut, slow and lossy; ranks, runners and the coordinator die, runners freeze. What must never happen, ranks of
two generations alive at once, is checked at every spawn; what must happen once the faults have ended is the test's.
tests/sim is the same with everything else that there is: disks, clocks that drift, supds, operators, users.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from protocol import coordinator_events as c
from protocol import member_events as m
from protocol.coordinator import Coordinator
from protocol.job import JobSpec
from protocol.member import Member
from protocol.messages.member import Assignment, Offer, RankExit, Renewal
from tests.protocol.timeline import Do, Timeline

HOST = "host"
"""Where the coordinator is; a place of its own, so that it can be cut off from every node."""


@dataclass
class Runner:
    """A runner's shell, its guard and its only rank."""

    incarnation: str
    member: Member
    runs: int | None = None  # the generation whose rank is alive
    hold_s: float = math.inf  # when the guard kills it
    record: Renewal | None = None
    cleared: int | None = None  # the newest generation that is, or will be in a moment
    is_alive: bool = True
    is_frozen: bool = False
    inbox: list[m.Event] = field(default_factory=list)  # what it reads when it is thawed


class Crew(Timeline):
    """One run on some nodes."""

    def __init__(self, spec: JobSpec, nodes: str, seed: int) -> None:
        super().__init__(10.0)
        self.spec, self.nodes = spec, nodes
        self.rng = random.Random(seed)
        self.epoch = 0
        self.loss, self.delay_s, self.held = 0.02, 0.05, 0.02  # `held`: share of messages that come up to 10 s late
        self.cuts: set[tuple[str, str]] = set()  # from, to
        self.journal = c.RunRecord()
        self.coordinator: Coordinator | None = None
        self.runners: dict[str, Runner] = {}
        self.starts = 0
        self.launched = 0  # generations
        self.open()

    # --- time and network ----------------------------------------------------------------------------------------

    def due(self) -> Iterator[tuple[float, Do]]:
        """The ticks of all machines, and the ends of leases."""
        if self.coordinator is not None and (due_s := self.coordinator.deadline_s) is not None:
            yield due_s, lambda: self.tell(c.Tick())
        for runner in self.runners.values():
            if runner.runs is not None:
                yield runner.hold_s, lambda runner=runner: self.end_rank(runner, signal=9)  # type: ignore[misc]
            if runner.is_alive and not runner.is_frozen and (due_s := runner.member.deadline_s) is not None:
                yield due_s, lambda runner=runner: self.give(runner, m.Tick())  # type: ignore[misc]

    def send(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """One message on its way; what is on its way outlives a cut."""
        if (source, target) in self.cuts or self.rng.random() < self.loss:
            return
        longest_s = 10.0 if self.rng.random() < self.held else self.delay_s
        self.after(self.rng.uniform(0.001, longest_s), arrive)

    # --- the coordinator -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """It begins, from what its journal has."""
        self.epoch += 1
        self.coordinator = Coordinator(self.spec, self.journal, self.epoch, self.rng.random)
        self.tell(c.Opened())
        self.tell(c.Roster(tuple(c.RosterNode(node, is_up=True, joined=i) for i, node in enumerate(self.nodes))))
        self.see_wants()

    def tell(self, event: c.Event) -> None:
        """Hand the coordinator an event, if it is there."""
        if self.coordinator is None:
            return
        for effect in self.coordinator.handle(event, self.now_s):
            match effect:
                case c.Persist(record):
                    self.journal = record
                case c.Send(node, incarnation, answer, via):
                    self._answer(node, incarnation, m.Answered(answer, is_direct=not via), via[:1])
                case c.Ask(incarnation, question):
                    self._carry(HOST, incarnation, m.Questioned(question))
                case c.Want() | c.Note() | c.Blame():
                    pass

    def _answer(self, node: str, incarnation: str, answered: m.Answered, hop: str) -> None:
        if not hop:
            self._carry(HOST, incarnation, answered)
        else:
            self.send(HOST, hop, lambda: self._carry(hop, incarnation, answered))

    def _carry(self, source: str, incarnation: str, event: m.Event) -> None:
        """To the runner of this name, if it is there when it comes."""
        self.send(source, incarnation[0], lambda: self._deliver(incarnation, event))

    def _deliver(self, incarnation: str, event: m.Event) -> None:
        runner = self.runners.get(incarnation[0])
        if runner is not None and runner.incarnation == incarnation:
            self.give(runner, event)

    # --- supd ----------------------------------------------------------------------------------------------------

    def see_wants(self) -> None:
        """Each second: what is wanted is said again and again, and what has been buried is told until it was heard."""
        if self.coordinator is None:
            return
        for node in self.nodes:
            runner = self.runners.get(node)
            is_linked = not {(node, HOST), (HOST, node)} & self.cuts
            if runner is not None and not runner.is_alive and runner.runs is None and is_linked:
                del self.runners[node]
                if runner.record is not None:
                    self.tell(c.Heard(node, runner.incarnation, runner.record))
                self.tell(c.RunnerGone(node, runner.incarnation))
            if node in self.coordinator.rendezvous.wanted and is_linked:
                self._ensure(node)
        epoch = self.epoch
        self.after(1.0, lambda: self.see_wants() if epoch == self.epoch else None)

    def _ensure(self, node: str) -> None:
        if node not in self.runners:
            self.starts += 1
            member = Member(self.spec, self.now_s, orphan_wait_s=1e6, linger_s=1e6)
            self.runners[node] = Runner(f"{node}{self.starts}", member)
            self.give(self.runners[node], m.Linked(up=True))

    # --- a runner ------------------------------------------------------------------------------------------------

    def give(self, runner: Runner, event: m.Event) -> None:
        """Hand a runner an event, if it lives."""
        if runner.is_frozen and runner.is_alive:
            runner.inbox.append(event)
        elif runner.is_alive:
            for effect in runner.member.handle(event, self.now_s):
                self._perform(runner, effect)

    def _perform(self, runner: Runner, effect: m.Effect) -> None:
        node, given = runner.incarnation[0], runner.member.assignment
        witnesses = given.witnesses if given is not None else ()
        match effect:
            case m.Spawn(assignment):
                self._spawn(runner, assignment)
            case m.Signal() | m.Abort():
                self.after(self.rng.uniform(0, 0.3), lambda: self.end_rank(runner, signal=15))
            case m.KillAll():
                self.end_rank(runner, signal=9)
            case m.Clear(generation, _) if runner.cleared == generation:
                pass  # under way
            case m.Clear(generation, _):
                runner.cleared = generation
                self.after(self.rng.uniform(0, 0.1), lambda: self.give(runner, m.Cleared(generation)))
            case m.LookUpOffer(not_port):
                port = self.rng.choice([port for port in range(4000, 4009) if port != not_port])
                offer = Offer(slots=1, address=node, port=port, witness_port=5000)
                self.after(0.01, lambda: self.give(runner, m.Offered(offer)))
            case m.Persist(renewal):
                runner.record = renewal
            case m.Hold(until_s):
                runner.hold_s = math.inf if until_s is None else until_s
            case m.Renew(renewal, by_witnesses):
                heard = c.Heard(node, runner.incarnation, renewal)
                self.send(node, HOST, lambda: self.tell(heard))
                for witness in witnesses if by_witnesses else ():
                    self._relay(node, witness.incarnation, heard)
            case m.AskWords(wanted):
                for witness in witnesses:
                    self._carry(node, witness.incarnation, m.WordAsked(node, runner.incarnation, wanted))
            case m.GiveWord(incarnation, word):
                self._carry(node, incarnation, m.WordHeard(runner.incarnation, word))
            case m.Testify(testimony):
                self.send(node, HOST, lambda: self.tell(c.Testified(node, runner.incarnation, testimony)))
            case m.End():
                self.kill_runner(node)
            case m.Meet() | m.Look() | m.Inspect() | m.TermLeftovers() | m.KeepStacks():
                pass
            case m.LookForSave() | m.LookForDone() | m.Announce():
                pass

    def _relay(self, node: str, witness: str, heard: c.Heard) -> None:
        def pass_on() -> None:
            runner = self.runners.get(witness[0])
            if runner is not None and runner.incarnation == witness and runner.is_alive and not runner.is_frozen:
                told = c.Heard(heard.node, heard.incarnation, heard.renewal, witness)
                self.send(witness[0], HOST, lambda: self.tell(told))

        self.send(node, witness[0], pass_on)

    def _spawn(self, runner: Runner, assignment: Assignment) -> None:
        others = {one.incarnation: one.runs for one in self.runners.values() if one.runs is not None}
        assert set(others.values()) <= {assignment.generation}, f"{others} beside {assignment.generation}"
        runner.runs, self.launched = assignment.generation, max(self.launched, assignment.generation)
        self.give(runner, m.Launched(assignment.generation, (100,)))
        self.after(0.1, lambda: self.give(runner, m.Wrote(assignment.generation, assignment.first_rank)))

    def end_rank(self, runner: Runner, *, signal: int | None = None) -> None:
        """It ends, if it lives; its runner is told a moment later."""
        generation, runner.runs = runner.runs, None
        given = runner.member.assignment
        if generation is None or given is None:
            return
        code = 1 if signal is None else None
        exit = RankExit(code=code, signal=signal, order=0, wall_s=0.0, ran_s=1.0, stopped_by_us=False)
        told = m.Exited(generation, given.first_rank, exit, self.now_s)
        self.after(0.01, lambda: self.give(runner, told))

    # --- faults --------------------------------------------------------------------------------------------------

    def crash(self, nodes: str) -> None:
        """The ranks on these nodes fail."""
        for node in nodes:
            if node in self.runners:
                self.end_rank(self.runners[node])

    def cut_off(self, nodes: str) -> None:
        """These nodes reach only each other."""
        rest = {HOST, *self.nodes} - set(nodes)
        self.cuts |= {pair for node in nodes for other in rest for pair in ((node, other), (other, node))}

    def cut_link(self, one: str, other: str, *, both_ways: bool) -> None:
        """What one says does not reach the other."""
        self.cuts |= {(one, other), (other, one)} if both_ways else {(one, other)}

    def heal(self) -> None:
        """All links are whole."""
        self.cuts.clear()

    def kill_runner(self, node: str) -> None:
        """It dies, and its guard ends its rank at once."""
        if (runner := self.runners.get(node)) is not None:
            runner.is_alive, runner.runs = False, None

    def freeze(self, node: str, seconds: float) -> None:
        """It stands still, its guard does not; what comes in the meantime is read after."""
        runner = self.runners.get(node)
        if runner is None or runner.is_frozen:
            return
        runner.is_frozen = True

        def thaw() -> None:
            runner.is_frozen, inbox = False, runner.inbox
            runner.inbox = []
            for event in inbox:
                self.give(runner, event)

        self.after(seconds, thaw)

    def restart_coordinator(self, away_s: float) -> None:
        """It is killed, and away for a while."""
        if self.coordinator is not None:
            self.coordinator = None
            self.after(away_s, self.open)

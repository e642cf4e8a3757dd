"""A runner with its guard and its record: the real machine of a member, in a process that may die or be slow."""

from collections.abc import Callable
from typing import Any, Protocol

from protocol.job import Job
from protocol.member import Member
from protocol.member_events import (
    NOTHING,
    Answered,
    AskWords,
    Clear,
    Cleared,
    Dismissed,
    Effect,
    End,
    GiveWord,
    Hold,
    Inspect,
    Inspected,
    KillAll,
    Linked,
    Look,
    Looked,
    LookForDone,
    LookForSave,
    LookUpOffer,
    Meet,
    Noticed,
    Offered,
    Persist,
    Questioned,
    Reached,
    Renew,
    Saved,
    SeenDone,
    Signal,
    Spawn,
    Testify,
    Tick,
    WordAsked,
    WordHeard,
)
from protocol.messages.member import (
    Answer,
    AnswerFor,
    Assignment,
    Hello,
    JobTold,
    JobWanted,
    Offer,
    Question,
    Renewal,
    RenewalOf,
    ToRunner,
    Welcome,
)
from protocol.messages.witness import PassedOn, PassOn, ToRunnerPeer, Word, WordWanted
from protocol.versions import VERSIONS
from tests.sim.guard import Guard, Page
from tests.sim.kernel import BootClock, Clock, Loop, Process, Write
from tests.sim.marker import Saves
from tests.sim.network import Line, Network, Server, address_of
from tests.sim.peers import Peers
from tests.sim.workers import Crew, Onlooker, Program, Worker

ORPHAN_WAIT_S = 25.0
LINGER_S = 10.0


class Machine(Process):
    """A machine: what its node offers, and what lies on its disk. It is no process, and never dies. `place` is where it
    is reached: the name of its node, but for a second machine with that name."""

    def __init__(self, clock: Clock, name: str, boot: BootClock, place: str) -> None:
        super().__init__(clock, name, boot)
        self.place = place
        self.records: dict[str, Renewal] = {}  # incarnation -> what a runner has put on disk
        self.runners: dict[str, Runner] = {}  # whose lock is held, or whose tree is not swept
        self.nproc = 1  # ranks that it offers; 0: as many as the job says
        self.digest: dict[str, str] = {}
        self.busy_until_s = 0.0  # its devices are somebody else's
        self.is_broken = False  # it can run no rank
        self.is_on = True
        self.follows = ""  # the host, as its supd has told its runners

    def starts_again(self) -> None:
        """Its boot-time clock counts anew, and goes as wrong as before."""
        self.boot = BootClock(-self.clock.now_s * self.boot.rate, self.boot.rate)


class Seen(Onlooker, Protocol):
    """Who sees what runners do."""

    def on_runner_started(self, runner: "Runner") -> None:
        """There is another one."""

    def on_runner_ended(self, runner: "Runner") -> None:
        """It is gone, or was told to end by somebody who is not the coordinator."""

    def on_reported(self, runner: "Runner", renewal: Renewal) -> None:
        """It tells the coordinator."""

    def on_part(self, runner: "Runner", before: Any, after: Any) -> None:
        """A member's part of its generation has changed."""

    def on_ordered(self, runner: "Runner", member: Member, answer: Answer) -> None:
        """An answer reaches it."""


class Runner(Process):
    """One runner on one machine, for one run."""

    def __init__(
        self,
        machine: Machine,
        network: Network,
        find: Callable[[], tuple[Server, str] | None],
        onlooker: Seen,
        program: Program,
        on_death: Callable[[Worker], None],
        run: str,
        incarnation: str,
    ) -> None:
        super().__init__(machine.clock, incarnation, machine.boot)
        self.machine = machine
        self.run = run
        self.incarnation = incarnation
        self.member: Member | None = None  # until it has heard what its job is
        self.crew = Crew(machine, onlooker, program, run, machine.name, incarnation, self.put, on_death)
        self.saves = Saves(program.marker)
        self.page = Page()
        self._network = network
        self._onlooker = onlooker
        self._loop: Loop | None = None
        self._job: Job | None = None
        self._epoch = 0  # the highest that it has heard of
        self.answered_s: float | None = None  # when a coordinator of that one has answered it
        machine.runners[incarnation] = self
        self.guard = self._new_guard()
        onlooker.on_runner_started(self)
        self.peers = Peers(self, network, machine.name, self._hello, self._on_peer, lambda who: self.put(Reached(who)))
        self.line = Line(
            self, network, machine.name, find, self._hello, self._on_message, lambda: self.put(Linked(up=False))
        )
        self.after(ORPHAN_WAIT_S, self._give_up_unmet)

    @property
    def lock_is_held(self) -> bool:
        """Whether the runner or its guard lives."""
        return self.is_alive or self.guard.is_alive

    @property
    def is_guarded(self) -> bool:
        """Whether its guard sees the end of a lease when it comes."""
        return self.guard.is_alive and self.guard.is_awake

    # --- what it hears -------------------------------------------------------------------------------------------

    def put(self, event: object) -> None:
        """Hand its machine an event, if it lives; once it is awake."""
        self.do(lambda: self._put(event))

    def _put(self, event: object) -> None:
        if self._loop is not None and self.member is not None:
            before = self.member.part
            if isinstance(event, Cleared):  # before that is told, all that was saved is
                self._tell_save(self.saves.look(event.generation))
            self._loop.put(event)
            if self.member.part is not before:
                self._onlooker.on_part(self, before, self.member.part)

    def _hello(self) -> Hello:
        answered_s = None if self.answered_s is None else self.now_s - self.answered_s
        return Hello(
            versions=VERSIONS,
            fleet="f",
            node=self.machine.name,
            run=self.run,
            incarnation=self.incarnation,
            epoch=self._epoch,
            answered_s=answered_s,
        )

    def _on_message(self, message: ToRunner) -> None:
        """The coordinator, on our own connection."""
        match message:
            case Welcome(epoch=epoch, job=job):
                if self._is_present(epoch):
                    self._begin(job)
                    self._put(Linked(up=True))
            case JobWanted(epoch=epoch):
                if self._is_present(epoch) and self._job is not None:
                    self.line.introduce(JobTold(self._job))
            case Answer():
                self._on_answer(message, is_direct=True)
            case AnswerFor(incarnation=incarnation, answer=answer):
                self.peers.send(incarnation, PassedOn(answer))
            case Question():
                self._put(Questioned(message))
            case _:
                raise AssertionError(message)

    def _is_present(self, epoch: int) -> bool:
        """Whether that is not the word of a coordinator that was replaced; the machine looks at answers itself."""
        if epoch < self._epoch:
            self.clock.seen["refused: word of a coordinator that was replaced"] += 1
            return False
        self._epoch = epoch
        return True

    def _on_answer(self, answer: Answer, *, is_direct: bool) -> None:
        if self._is_present(answer.epoch):
            self.answered_s = self.now_s
        if self.member is not None:
            self._onlooker.on_ordered(self, self.member, answer)
            self._put(Answered(answer, is_direct))

    def _on_peer(self, node: str, incarnation: str, message: ToRunnerPeer) -> None:
        """Another runner."""
        match message:
            case PassOn(renewal):
                self.line.send(RenewalOf(node, incarnation, renewal))
            case PassedOn(answer):
                self.clock.seen["passed on: answer"] += 1
                self._on_answer(answer, is_direct=False)
            case WordWanted():
                self._put(WordAsked(node, incarnation, message))
            case Word():
                self._put(WordHeard(incarnation, message))
            case Hello():
                raise AssertionError(message)

    def _begin(self, job: Job) -> None:
        if self.member is None:
            self._job, self.crew.revision = job, job.revision
            self.member = Member(
                job.spec, self.now_s, orphan_wait_s=ORPHAN_WAIT_S, linger_s=LINGER_S, revision=job.revision
            )
            self._loop = Loop(self, self.member, self._perform, Tick())

    def _give_up_unmet(self) -> None:
        if self.member is None:
            self._end()

    # --- what it does --------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Write | None:
        match effect:
            case Spawn(assignment):
                self._spawn(assignment)
            case Look(generation):
                live = {n: NOTHING for n, worker in self.crew.workers.items() if worker.is_there}
                self._later(Looked(generation, live))
            case Inspect(generation):
                self._later(Inspected(generation, {}))
            case LookForSave(generation, settles=True):
                takes_s = self.clock.rng.uniform(0.0, 0.02)
                return Write(takes_s, lambda: self._tell_save(self.saves.look(generation, is_new=False)))
            case LookForSave(generation):
                self.after(self.clock.rng.uniform(0.0, 0.02), lambda: self._tell_save(self.saves.look(generation)))
            case LookForDone(generation):
                living = {n: worker for n, worker in self.crew.workers.items() if worker.is_there}
                self._later(SeenDone(generation, {n: 1 if one.is_done else None for n, one in living.items()}))
            case Signal(rank, number):
                self.crew.signal(rank, number)
            case KillAll():
                self.tell("ends its ranks: the lease is over")
                self.crew.kill_all()
            case Clear(generation, kill_at_s):
                self.crew.clear(generation, max(kill_at_s - self.now_s, 0.0))
            case LookUpOffer(not_port):
                offer = self._offer(not_port)
                self.after(self.clock.rng.uniform(0.005, 0.1), lambda: self.put(Offered(offer)))
            case Persist(renewal):
                return Write(0.0, lambda: self._record(renewal))
            case Renew(renewal, by_witnesses):
                self._onlooker.on_reported(self, renewal)
                self.line.send(renewal)
                if by_witnesses:
                    self.peers.send_all(PassOn(renewal))
            case Meet(witnesses):
                self.peers.meet(witnesses)
            case AskWords(wanted):
                self.peers.send_all(wanted)
            case GiveWord(incarnation, word):
                self.clock.seen[f"word: {'given' if word.is_given else 'refused'}"] += 1
                self.peers.send(incarnation, word)
            case Testify(testimony):
                self.line.send(testimony)
            case Hold(until_s):
                self._hold(until_s)
            case End():
                self._end()
            case _:  # what is for hangs and for leftovers that obey
                pass
        return None

    def _spawn(self, assignment: Assignment) -> None:
        self.tell("spawns g{} ranks {}+{}", assignment.generation, assignment.first_rank, assignment.nproc)
        is_held = self.page.until_s is not None and self.page.until_s > self.now_s
        assert is_held is bool(assignment.witnesses), f"R1: {self.incarnation} spawns, and its guard knows {self.page}"
        self._tell_save(self.saves.begin(assignment.generation))
        self.crew.launch(assignment)

    def _hold(self, until_s: float | None) -> None:
        was_held, self.page.until_s = self.page.until_s is not None, until_s
        if not was_held:
            self.guard.poke()

    def _tell_save(self, saved: Saved | None) -> None:
        if saved is not None and self._loop is not None:
            self._loop.put(saved)

    def _later(self, event: object) -> None:
        self.after(0.0, lambda: self.put(event))

    def _record(self, renewal: Renewal) -> None:
        self.machine.records[self.incarnation] = renewal

    def _offer(self, not_port: int | None) -> Offer:
        machine, address, witness_port = self.machine, address_of(self.machine.name), self.peers.port
        if machine.is_broken:
            return Offer(slots=0, address=address, port=0, problem="no device", knows_devices=True)
        if self.clock.now_s < machine.busy_until_s:
            waits_for = f"devices of {machine.name}"
            return Offer(slots=0, address=address, port=0, waits_for=waits_for, knows_devices=True)
        port = self.clock.rng.choice([p for p in (5001, 5002, 5003) if p != not_port])
        slots = machine.nproc or self._nproc
        return Offer(
            slots=slots,
            address=address,
            port=port,
            digest=machine.digest,
            witness_port=witness_port,
            knows_devices=True,
        )

    @property
    def _nproc(self) -> int:
        """What its job says."""
        nproc = self.member.spec.topology.nproc_per_node if self.member is not None else 0
        assert isinstance(nproc, int), "an offer of as many ranks as nobody knows"
        return nproc

    def _end(self) -> None:
        """It has nothing left to do: an orderly end, and its guard's after it."""
        self.tell("ends")
        assert not self.crew.may_run, f"{self.incarnation} ends before its workers"
        self._onlooker.on_runner_ended(self)
        super().kill()
        self._network.end_of(self)
        self.guard.poke()

    # --- what happens to it --------------------------------------------------------------------------------------

    def notice(self, why: str) -> None:
        """Its node is about to be taken away, as it has heard; "": it is not any more."""
        self.tell("is told: {}", why or "no notice any more")
        self.put(Noticed(why))

    def dismiss(self) -> None:
        """SIGTERM, by somebody who is not the coordinator."""
        self._onlooker.on_runner_ended(self)
        if self.member is None:
            self.do(self._end)
        else:
            self.put(Dismissed())

    def kill(self) -> None:
        """SIGKILL: the guard then sweeps, if it lives."""
        if not self.is_alive:
            return
        self._onlooker.on_runner_ended(self)
        self.tell("is killed{}", "" if self.guard.is_alive else ", without a guard")
        super().kill()
        self._network.end_of(self)
        self.crew.orphan()
        self.crew.is_unwatched = not self.guard.is_alive
        self.guard.poke()

    def kill_guard(self) -> None:
        """SIGKILL to the guard: the runner starts another."""
        self.tell("loses its guard")
        self.guard.kill()
        self.after(self.clock.rng.uniform(0.01, 0.1), self._replace_guard)

    def kill_both(self) -> None:
        """SIGKILL to both at once: only supd can end what is left."""
        self.guard.kill()
        self.kill()

    def _replace_guard(self) -> None:
        if not self.guard.is_alive:
            self.guard = self._new_guard()

    def _new_guard(self) -> Guard:
        return Guard(self.machine, self.incarnation, self.page, self.crew, lambda: self.is_alive)

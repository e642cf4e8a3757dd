"""The machines among peers that say anything: what they do must be something that can be said, stored and read back.

Each play is one machine and one seed. What is our own shell's to say (a spawn that ended, a tree that is gone) is
said as it is; what comes from a peer is anything that its decoder lets through, mostly near to what could be true.
No word of a peer may have a machine ask for its own next turn at once, again and again.
"""

import math
from collections.abc import Callable
from functools import partial
from random import Random

from msgspec.structs import replace

from protocol import coordinator_events as c
from protocol import member_events as m
from protocol.absence import node_state
from protocol.coordinator import Coordinator
from protocol.job import HangTable, Job, JobSpec, RestartTable, RunTable, StopTable, Submitter, TopologyTable
from protocol.member import Member
from protocol.messages import decoder, encode
from protocol.messages.member import (
    Answer,
    Assignment,
    Offer,
    Order,
    Part,
    Question,
    RankExit,
    RankReport,
    Release,
    Renewal,
    RenewalOf,
    Run,
    StallState,
    Stop,
    Tell,
    Testimony,
    Wait,
    Witness,
    decode_to_coordinator,
    decode_to_runner,
)
from protocol.messages.witness import PassOn, Word, WordWanted, decode_peer
from protocol.seating import seats_for
from protocol.timing import DEFAULTS, Timing
from protocol.view import run_status
from tests.fuzz import tables
from tests.fuzz.anything import anything

NODES = ("a", "b", "c", "z")
RUN = "train@000001"
NPROC = 2
STEPS = 60
TURNS_MAX = 3
"""Ticks that may fall due at one time."""

TIMES_S = (0.0, 0.1, 0.3, 0.3, 0.9, 5.0)
"""That may pass between two events. Where more than a second passes, the coordinator takes itself for held up."""

FAST = Timing(renew_s=0.5, alone_s=1.0, suspect_s=1.2, fence_s=1.7, ttl_s=2.2, word_s=0.8)

SPECS = tuple(
    JobSpec(
        name="train",
        run=RunTable(script="t.py"),
        topology=TopologyTable(nnodes=nnodes, nproc_per_node=NPROC, extra_nodes=extra),
        restart=RestartTable(max_restarts=-1, backoff_s=0.5, backoff_max_s=2.0, on_startup_failure="restart"),
        stop=StopTable(grace_s=2.0, finish_timeout_s=3.0),
        hang=HangTable(step_timeout_s=1.0),
        origins={"hang.step_timeout": "file"},
    )
    for nnodes, extra in (((1, 1), "standby"), ((2, 3), "standby"), ((1, 3), "grow"), ((3, 3), "standby"))
)
SUBMITTER = Submitter(folder="/", source="j.toml", python="python3", env={}, limits={}, umask=0o22, user="me")

any_renewal = anything(Renewal)
any_answer = anything(Answer)
any_assignment = anything(Assignment)
any_testimony = anything(Testimony)
any_question = anything(Question)
any_wanted = anything(WordWanted)
any_word = anything(Word)
decode_record = decoder(c.RunRecord)


# --- the coordinator and its runners -----------------------------------------------------------------------------


class Said:
    """What the coordinator has said, for those to whom it was said."""

    def __init__(self) -> None:
        self.orders: dict[tuple[str, str], Order] = {}  # by node and incarnation, the newest one
        self.questions: list[tuple[str, Question]] = []  # with the witness's incarnation
        self.records = [c.RunRecord()]  # all that was ever in the journal


def coordinator(rng: Random) -> None:
    """One run among runners that say anything, and a supd that restarts now and then: with its journal, with an old
    one, or without."""
    spec, now_s, said = rng.choice(SPECS), 10.0, Said()
    begin = partial(Coordinator, spec, timing=rng.choice((DEFAULTS, FAST)), keeps_isolated=rng.random() < 0.2)
    machine = begin(said.records[0], 1, rng.random)
    events: list[c.Event] = [c.Opened(), _roster(rng, all_up=True)]
    for step in range(STEPS):
        for event in events:
            _heed(machine.handle(event, now_s), said)
        for _ in range(TURNS_MAX):
            if machine.deadline_s is not None and machine.deadline_s <= now_s:
                _heed(machine.handle(c.Tick(), now_s), said)
        assert machine.deadline_s is None or machine.deadline_s > now_s, "a deadline that no tick moves"
        if step % 10 == 0:
            _show(machine, spec, now_s)
        now_s += rng.choice(TIMES_S)
        if rng.random() < 0.03:
            record = said.records[-1] if rng.random() < 0.6 else rng.choice(said.records)
            machine = begin(record, machine.epoch + 1, rng.random)
            events = [c.Opened(), _roster(rng)]
        else:
            machine.epoch += rng.random() < 0.02  # the shell has heard of a later one
            events = [_coordinator_event(rng, said, machine)]


def _heed(effects: list[c.Effect], said: Said) -> None:
    for effect in effects:
        match effect:
            case c.Persist(record):
                said.records.append(decode_record(encode(record)))
            case c.Send(node, incarnation, answer):
                decode_to_runner(encode(answer))
                said.orders[node, incarnation] = answer.order
            case c.Ask(incarnation, question):
                decode_to_runner(encode(question))
                said.questions.append((incarnation, question))
            case c.Note():
                encode(effect.detail)
                effect.text.encode()
            case c.Blame():
                assert effect.node in NODES
            case c.Want():
                assert effect.nodes <= set(NODES)


def _show(machine: Coordinator, spec: JobSpec, now_s: float) -> None:
    """What people are told of it can be told."""
    job = Job(run=RUN, spec=spec, submitter=SUBMITTER)
    encode(
        run_status(machine, job, now_s, submitted_wall_s=0.0, ended_wall_s=None, logs_dir="", with_ranks=True),
    )
    for node in NODES:
        encode(node_state(machine, node, now_s))


def _coordinator_event(rng: Random, said: Said, machine: Coordinator) -> c.Event:
    node = rng.choice(NODES)
    incarnation = rng.choice((f"{node}1", f"{node}1", f"{node}2", "a1"))
    via = rng.choice(("a1", "b1", "c1", "z1")) if rng.random() < 0.2 else ""
    dice = rng.random()
    if dice < 0.45:
        who = rng.choice(list(said.orders)) if said.orders else (node, incarnation)
        return c.Heard(*who, plausible(rng, said.orders.get(who, Wait()), who[0], _ahead_of(machine)), via)
    if dice < 0.62:
        return c.Heard(node, incarnation, any_renewal(rng), via)
    if dice < 0.64:  # of a coordinator of which this one knows nothing
        return c.Heard(node, incarnation, plausible(rng, Tell(), node, _ahead_of(machine)), via)
    if dice < 0.72:
        return _testified(rng, said, node, incarnation)
    if dice < 0.76:
        return c.RunnerGone(node, incarnation)
    if dice < 0.78:
        return c.RunnerFailed(node, "no room")
    if dice < 0.80:
        return c.NodeLost(node, "me")
    if dice < 0.83:
        return c.RestartRequested("because", "me", without=rng.choice(("", "", *NODES)))
    if dice < 0.84:
        return c.StopRequested(rng.choice((None, 0.0, 5.0)), now=rng.random() < 0.5, by="me")
    return _roster(rng) if dice < 0.9 else c.Tick()


def _ahead_of(machine: Coordinator) -> int:
    """A generation that this coordinator has no record of: the one that it is told of, if any."""
    return machine.generation + 1 if machine.takeover is None else machine.takeover.generation


def _testified(rng: Random, said: Said, node: str, incarnation: str) -> c.Testified:
    """An answer to some question, true or not, by who was asked or by somebody else; or one to none."""
    testimony: Testimony = any_testimony(rng)
    if said.questions and rng.random() < 0.8:
        witness, question = rng.choice(said.questions[-5:])
        about = {"number": question.number, "node": question.node, "incarnation": question.incarnation}
        testimony = replace(testimony, **about)
        incarnation = witness if rng.random() < 0.8 else incarnation
    return c.Testified(node, incarnation, testimony)


def _roster(rng: Random, *, all_up: bool = False) -> c.Roster:
    return c.Roster(
        tuple(
            c.RosterNode(node, is_up=all_up or rng.random() < 0.8, may_come=rng.random() < 0.3, joined=i)
            for i, node in enumerate(NODES)
            if all_up or rng.random() < 0.9
        )
    )


def plausible(rng: Random, order: Order, node: str, ahead: int) -> Renewal:
    """What a runner with this order might say next, now and then with a field of anything. Where it is to tell what it
    runs that is generation `ahead`."""
    number = rng.randint(1, 1000)
    offer = Offer(slots=NPROC, address="10.0.0.1", port=rng.randint(4000, 4009), witness_port=rng.choice((0, 5000)))
    match order:
        case Run(a):
            said = _of_generation(rng, number, a)
        case Tell():
            given = _told(rng, ahead, node)
            said = replace(_of_generation(rng, number, given), generation=ahead, assignment=given)
        case Stop(generation):
            said = Renewal(number=number, generation=generation, part=Part.STOPPED, offer=offer)
        case Wait() | Release():
            said = Renewal(number=number, offer=offer)
    if said.part in m.SETTLED:
        said = replace(said, offer=offer)
    if rng.random() < 0.2:
        odd, name = any_renewal(rng), rng.choice(Renewal.__struct_fields__)
        said = replace(said, **{name: getattr(odd, name)})
    return said


def _of_generation(rng: Random, number: int, a: Assignment) -> Renewal:
    """Some part of its life, with all its ranks (as many as there may be)."""
    parts = (Part.LAUNCHING, Part.LAUNCHED, Part.RUNNING, Part.RUNNING, Part.STOPPING, Part.STOPPED, Part.FINISHED)
    part = rng.choice(parts)
    ended = RankExit(code=int(part is not Part.FINISHED), order=0, wall_s=0.0, ran_s=1.0, stopped_by_us=False)
    exit = ended if part in (Part.STOPPING, Part.STOPPED, Part.FINISHED) else None
    fenced_s = 4.6 if part in (Part.STOPPING, Part.STOPPED) and rng.random() < 0.2 else None
    ranks = tuple(
        RankReport(rank=a.first_rank + i, local_rank=i, pid=100 + i, started=part is Part.RUNNING, exit=exit)
        for i in range(min(a.nproc, NPROC))
    )
    return Renewal(number=number, generation=a.generation, part=part, ranks=ranks, fenced_s=fenced_s)


def _told(rng: Random, generation: int, node: str) -> Assignment:
    """What a runner says that another coordinator gave it; now and then that is a lie."""
    offers = {name: Offer(slots=NPROC, address="10.0.0.1", port=4000, witness_port=5000) for name in NODES[:3]}
    runners = {name: f"{name}1" for name in offers}
    seats = seats_for(generation, offers, runners, "", DEFAULTS, has_witnesses=rng.random() < 0.8)
    given = seats.get(node, rng.choice(list(seats.values()))).assignment
    if rng.random() < 0.3:
        odd, name = any_assignment(rng), rng.choice(Assignment.__struct_fields__)
        given = replace(given, **{name: getattr(odd, name)})
    return given


# --- a runner, its coordinator, and other runners ----------------------------------------------------------------


class Heard:
    """What a runner's peers have heard of it: what they say next has mostly to do with that."""

    def __init__(self) -> None:
        self.renewal = 0  # its newest one's number
        self.wanted = WordWanted(number=0, generation=0)


def member(rng: Random) -> None:
    """One runner whose coordinator and fellow runners say anything; its own node says what is true."""
    machine = Member(rng.choice(SPECS), 10.0, orphan_wait_s=100.0, linger_s=10.0)
    now_s, due, heard = 10.0, list[m.Event](), Heard()
    for _ in range(STEPS):
        event: m.Event | None
        dice = rng.random()
        if due and dice < 0.4:
            event = due.pop(0)
            if not _is_true(machine, event):
                continue
        elif dice < 0.65:
            event = m.Answered(_read(_an_answer(rng, machine.generation, heard.renewal)), is_direct=rng.random() < 0.7)
        elif dice < 0.85:
            event = _of_a_peer(rng, machine, heard)
        elif dice < 0.88:
            event = m.Linked(up=rng.random() < 0.7)
        else:
            event = m.Tick()
        until_s, given, turns = machine.lease.until_s, machine.assignment, 0
        while event is not None:
            for effect in machine.handle(event, now_s):
                due += _consequences(rng, machine, effect, heard, now_s)
            if machine.deadline_s is None:
                return  # it has ended
            _check_lease(machine, event, now_s)
            if isinstance(event, m.WordHeard) and event.incarnation not in _witnesses(given):
                assert machine.lease.until_s == until_s, "the word of who is no witness counts"
            assert turns <= TURNS_MAX, "a deadline that no tick moves"
            event, turns = m.Tick() if machine.deadline_s <= now_s else None, turns + 1
        now_s += rng.choice(TIMES_S)


def _check_lease(machine: Member, event: m.Event, now_s: float) -> None:
    lease = machine.lease
    assert not lease.is_over(now_s), "a lease is over, and nothing is done about it"
    if _witnesses(machine.assignment) and not lease.is_fenced:
        assert lease.until_s <= now_s + lease.timing.fence_s, f"{event} gives more than a whole lease"


def _witnesses(given: Assignment | None) -> set[str]:
    return {witness.incarnation for witness in given.witnesses} if given is not None else set()


def _of_a_peer(rng: Random, machine: Member, heard: Heard) -> m.Event:
    """What another runner says, or the coordinator of one."""
    incarnations = [*_witnesses(machine.assignment), "a1", "z9"]
    who, dice = rng.choice(incarnations), rng.random()
    if dice < 0.5:
        word: Word = any_word(rng)
        if rng.random() < 0.8:
            number = max(0, heard.wanted.number - rng.randint(0, 2))
            word = replace(word, number=number, generation=heard.wanted.generation)
        return m.WordHeard(who, word)
    if dice < 0.75:
        wanted: WordWanted = any_wanted(rng)
        return m.WordAsked("b", who, wanted if rng.random() < 0.3 else replace(wanted, generation=machine.generation))
    if dice < 0.9:
        question: Question = any_question(rng)
        return m.Questioned(question)
    return m.Reached(frozenset(rng.sample(incarnations, rng.randint(0, 2))))


def _is_true(machine: Member, event: m.Event) -> bool:
    """Whether a runner's shell would still say it: no rank ends twice, and no tree is cleared twice."""
    match event:
        case m.Exited(generation, rank):
            return generation == machine.generation and machine.ranks[rank].exit is None
        case m.Cleared(generation):
            return generation == machine.generation and machine.part not in m.SETTLED
        case _:
            return True


def _read(answer: Answer) -> Answer:
    """As it comes out of the wire."""
    message = decode_to_runner(encode(answer))
    assert isinstance(message, Answer)
    return message


def _an_answer(rng: Random, generation: int, number: int) -> Answer:
    answer: Answer = any_answer(rng)
    match answer.order:
        case Run(assignment) if rng.random() < 0.7:  # the next one
            order: Order = Run(assignment=_next(rng, assignment, generation))
        case Stop() as stop if rng.random() < 0.7:
            order = replace(stop, generation=generation)
        case Release() if rng.random() < 0.8:  # there would be little to talk about
            order = Tell()
        case order:
            pass
    if rng.random() < 0.8:
        answer = replace(answer, number=max(0, number - rng.randint(0, 1)), epoch=1)
    return replace(answer, order=order)


def _next(rng: Random, assignment: Assignment, generation: int) -> Assignment:
    timing = rng.choice((DEFAULTS, FAST, assignment.timing))
    return replace(assignment, generation=min(generation, 2**63) + 1, nproc=min(assignment.nproc, 8), timing=timing)


def _consequences(rng: Random, machine: Member, effect: m.Effect, heard: Heard, now_s: float) -> list[m.Event]:
    generation = machine.generation
    match effect:
        case m.Spawn(assignment):
            ranks = range(assignment.first_rank, assignment.first_rank + assignment.nproc)
            started = [m.Wrote(generation, rank) for rank in ranks[:8] if rng.random() < 0.9]
            return [m.Launched(generation, tuple(range(100, 100 + assignment.nproc))), *started]
        case m.Signal(rank, number, _):
            return [_killed(generation, rank, number, now_s)]
        case m.KillAll():
            return [_killed(generation, rank, 9, now_s) for rank in machine.ranks]
        case m.Clear():
            return [m.Cleared(generation)]
        case m.LookUpOffer():
            return [m.Offered(Offer(slots=NPROC, address="10.0.0.1", port=4000))]
        case m.Look():
            return [m.Looked(generation, {rank: m.Sample(count=rng.randint(0, 3)) for rank in machine.ranks})]
        case m.LookForSave():
            return [m.Saved(generation, rng.randint(0, 3), rng.random() < 0.5)]
        case m.LookForDone():
            return [m.SeenDone(generation, {rank: rng.choice((None, 1, 2)) for rank in machine.ranks})]
        case m.Inspect(_, ranks):
            return [m.Inspected(generation, dict.fromkeys(ranks, StallState.ALIVE))]
        case m.Persist(renewal):
            decode_to_coordinator(encode(renewal))
        case m.Renew(renewal):
            decode_to_coordinator(encode(RenewalOf(node="b", incarnation="b1", renewal=renewal)))
            decode_peer(encode(PassOn(renewal=renewal)))
            heard.renewal = renewal.number
        case m.AskWords(wanted):
            decode_peer(encode(wanted))
            heard.wanted = wanted
        case m.GiveWord(_, word):
            decode_peer(encode(word))
        case m.Testify(testimony):
            decode_to_coordinator(encode(testimony))
        case m.Hold(until_s):
            assert until_s is None or math.isfinite(until_s)
        case m.Meet(witnesses):
            assert all(isinstance(witness, Witness) for witness in witnesses)
        case m.Announce(_, _, signal_at_s, kill_at_s):
            assert signal_at_s <= kill_at_s or kill_at_s <= now_s
        case m.Abort() | m.KeepStacks() | m.TermLeftovers() | m.End():
            pass
    return []


def _killed(generation: int, rank: int, number: int, now_s: float) -> m.Exited:
    exit = RankExit(signal=number, order=0, wall_s=0.0, ran_s=1.0, stopped_by_us=False)
    return m.Exited(generation, rank, exit, now_s)


PLAYS: dict[str, Callable[[Random], None]] = {
    "coordinator": coordinator,
    "member": member,
    "fleet": tables.fleet,
    "node": tables.node,
}

"""The machines among peers that say anything: what they do must be something that can be said, stored and read back.

Each play is one machine and one seed. What is our own shell's to say (a spawn that ended, a tree that is gone) is
said as it is; what comes from a peer is anything that its decoder lets through, mostly near to what could be true.
"""

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from protocol import coordinator_events as c
from protocol import fleet_events as f
from protocol import member_events as m
from protocol import node as n
from protocol.coordinator import Coordinator
from protocol.fleet import Fleet
from protocol.job import HangTable, JobSpec, RestartTable, RunTable, StopTable, TopologyTable
from protocol.member import Member
from protocol.messages import decoder, encode
from protocol.messages.fleet import Join, NodeOrder
from protocol.messages.member import (
    Answer,
    Offer,
    Order,
    Part,
    RankExit,
    RankReport,
    Release,
    Renewal,
    Run,
    StallState,
    Stop,
    Wait,
    decode_to_coordinator,
    decode_to_runner,
)
from protocol.node import Node
from tests.fuzz.anything import anything

NODES = ("a", "b", "c", "z")
RUNS = ("train@000001", "other@000002")
NPROC = 2
STEPS = 60

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

any_renewal = anything(Renewal)
any_answer = anything(Answer)
any_join = anything(Join)
any_order = anything(NodeOrder)
decode_record = decoder(c.RunRecord)
decode_node_record = decoder(f.NodeRecord)


# --- the coordinator and its runners -----------------------------------------------------------------------------


def coordinator(rng: Random) -> None:
    """One run among runners that say anything, and a supd that restarts now and then."""
    spec, now_s = rng.choice(SPECS), 10.0
    record, told = c.RunRecord(), dict[tuple[str, str], Order]()
    machine = Coordinator(spec, record, 1, rng.random)
    events: list[c.Event] = [c.Opened(), _roster(rng, all_up=True)]
    for _ in range(STEPS):
        for event in events:
            for effect in machine.handle(event, now_s):
                match effect:
                    case c.Persist(record):
                        decode_record(encode(record))
                    case c.Send(node, incarnation, answer):
                        decode_to_runner(encode(answer))
                        told[node, incarnation] = answer.order
                    case c.Note():
                        encode(effect.detail)
                        effect.text.encode()
                    case c.Want():
                        assert effect.nodes <= set(NODES)
        now_s += rng.choice((0.0, 0.1, 1.0, 5.0))
        if rng.random() < 0.03:
            machine = Coordinator(spec, record, machine.epoch + 1, rng.random)
            events = [c.Opened(), _roster(rng)]
        else:
            events = [_coordinator_event(rng, told)]


def _coordinator_event(rng: Random, told: dict[tuple[str, str], Order]) -> c.Event:
    node = rng.choice(NODES)
    incarnation = rng.choice((f"{node}1", f"{node}1", f"{node}2", "a1"))
    dice = rng.random()
    if dice < 0.45:
        who = rng.choice(list(told)) if told else (node, incarnation)
        return c.Heard(*who, plausible(rng, told.get(who, Wait())))
    if dice < 0.7:
        return c.Heard(node, incarnation, any_renewal(rng))
    if dice < 0.75:
        return c.RunnerGone(node, incarnation)
    if dice < 0.78:
        return c.RunnerFailed(node, "no room")
    if dice < 0.82:
        return c.RestartRequested("because", "me", without=rng.choice(("", "", *NODES)))
    if dice < 0.83:
        return c.StopRequested(rng.choice((None, 0.0, 5.0)), now=rng.random() < 0.5, by="me")
    return _roster(rng) if dice < 0.9 else c.Tick()


def _roster(rng: Random, *, all_up: bool = False) -> c.Roster:
    return c.Roster(
        tuple(
            c.RosterNode(node, is_up=all_up or rng.random() < 0.8, may_come=rng.random() < 0.3, joined=i)
            for i, node in enumerate(NODES)
            if all_up or rng.random() < 0.9
        )
    )


def plausible(rng: Random, order: Order) -> Renewal:
    """What a runner with this order might say next, now and then with a field of anything."""
    number = rng.randint(1, 1000)
    offer = Offer(slots=NPROC, address="10.0.0.1", port=rng.randint(4000, 4009))
    match order:
        case Run(a):
            parts = (
                Part.LAUNCHING,
                Part.LAUNCHED,
                Part.RUNNING,
                Part.RUNNING,
                Part.STOPPING,
                Part.STOPPED,
                Part.FINISHED,
            )
            part = rng.choice(parts)
            code = 0 if part is Part.FINISHED else 1
            ended = RankExit(code=code, order=0, wall_s=0.0, ran_s=1.0, stopped_by_us=False)
            exit = ended if part in (Part.STOPPING, Part.STOPPED, Part.FINISHED) else None
            ranks = tuple(
                RankReport(rank=a.first_rank + i, local_rank=i, pid=100 + i, started=part is Part.RUNNING, exit=exit)
                for i in range(a.nproc)
            )
            settled = part in m.SETTLED
            said = Renewal(
                number=number, generation=a.generation, part=part, ranks=ranks, offer=offer if settled else None
            )
        case Stop(generation):
            said = Renewal(number=number, generation=generation, part=Part.STOPPED, offer=offer)
        case Wait() | Release():
            said = Renewal(number=number, offer=offer)
    if rng.random() < 0.2:
        odd, name = any_renewal(rng), rng.choice(Renewal.__struct_fields__)
        said = replace(said, **{name: getattr(odd, name)})
    return said


# --- a runner and its coordinator --------------------------------------------------------------------------------


def member(rng: Random) -> None:
    """One runner whose coordinator says anything; its own node says what is true."""
    machine = Member(rng.choice(SPECS), 10.0, orphan_wait_s=100.0, linger_s=10.0)
    now_s, due = 10.0, list[m.Event]()
    for _ in range(STEPS):
        dice = rng.random()
        if due and dice < 0.5:
            event = due.pop(0)
            if not _is_true(machine, event):
                continue
        elif dice < 0.75:
            event = m.Ordered(_read(_an_answer(rng, machine.generation)).order)
        elif dice < 0.8:
            event = m.Linked(up=rng.random() < 0.7)
        else:
            event = m.Tick()
        for effect in machine.handle(event, now_s):
            due += _consequences(rng, machine, effect, now_s)
        now_s += rng.choice((0.0, 0.1, 1.0, 5.0))


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


def _an_answer(rng: Random, generation: int) -> Answer:
    answer: Answer = any_answer(rng)
    match answer.order:
        case Run(assignment) if rng.random() < 0.7:  # the next one
            order: Order = Run(assignment=replace(assignment, generation=min(generation, 2**63) + 1))
        case Stop() as stop if rng.random() < 0.7:
            order = replace(stop, generation=generation)
        case order:
            pass
    return replace(answer, order=order)


def _consequences(rng: Random, machine: Member, effect: m.Effect, now_s: float) -> list[m.Event]:
    generation = machine.generation
    match effect:
        case m.Spawn(assignment):
            ranks = range(assignment.first_rank, assignment.first_rank + assignment.nproc)
            started = [m.Wrote(generation, rank) for rank in ranks[:8] if rng.random() < 0.9]
            return [m.Launched(generation, tuple(range(100, 100 + assignment.nproc))), *started]
        case m.Signal(rank, number, _):
            exit = RankExit(signal=number, order=0, wall_s=0.0, ran_s=1.0, stopped_by_us=False)
            return [m.Exited(generation, rank, exit, now_s)]
        case m.Clear():
            return [m.Cleared(generation)]
        case m.LookUpOffer():
            return [m.Offered(Offer(slots=NPROC, address="10.0.0.1", port=4000))]
        case m.Look():
            return [m.Looked(generation, {rank: m.Sample(count=rng.randint(0, 3)) for rank in machine.ranks})]
        case m.Inspect(_, ranks):
            return [m.Inspected(generation, dict.fromkeys(ranks, StallState.ALIVE))]
        case m.Persist(renewal) | m.Renew(renewal):
            decode_to_coordinator(encode(renewal))
        case m.Abort() | m.KeepStacks() | m.TermLeftovers() | m.End():
            pass
    return []


# --- the node table, and a node ----------------------------------------------------------------------------------


def fleet(rng: Random) -> None:
    """The node table among nodes that say anything, on connections that come and go."""
    host = Join(
        versions=(1,),
        fleet="default",
        node="a",
        identity="identity-of-a",
        incarnation=1,
        address="host",
        port=29410,
        join=("host:29410",),
    )
    machine = Fleet(host, 1, lambda node: rng.choice(("", "", RUNS[0])))
    kept: dict[str, f.NodeRecord] = {}
    now_s, events = 10.0, list[f.Event]([f.Opened(())])
    for step in range(STEPS):
        event = events.pop(0) if events else _fleet_event(rng, step)
        before = machine.roster()
        effects = machine.handle(event, now_s)
        for effect in effects:
            match effect:
                case f.Persist(record):
                    assert decode_node_record(encode(record)) == record
                    kept[record.name] = record
                case f.Probe(link):
                    if rng.random() < 0.8:
                        events.append(f.Probed(link, ok=rng.random() < 0.8, why="refused"))
                case f.Admit(_, joined):
                    encode(joined)
                case f.Refuse(_, refused):
                    encode(refused)
                case c.Note():
                    encode(effect.detail)
                case f.Forget(name):
                    del kept[name]
                case f.Drop() | f.RosterChanged():
                    pass
        assert (machine.roster() != before) == (f.RosterChanged() in effects)
        encode(machine.status(now_s))
        now_s += rng.choice((0.0, 0.1, 1.0, 5.0))


def _fleet_event(rng: Random, step: int) -> f.Event:
    link, dice = rng.randint(max(0, step - 5), step), rng.random()
    if dice < 0.5:
        join: Join = any_join(rng)
        if rng.random() < 0.7:
            join = replace(join, fleet="default", versions=(1,), join=("host:29410",))
        return f.Asked(link, join, wall_s=rng.choice((0.0, 60.0, 1e9)))
    if dice < 0.8:
        return f.Heard(link)
    return f.Unlinked(link) if dice < 0.9 else f.Tick()


def node(rng: Random) -> None:
    """A node whose host says anything."""
    machine = Node({"a1": RUNS[0]})
    now_s, due, started = 10.0, list[n.Event](), 1
    for _ in range(STEPS):
        dice = rng.random()
        if due and dice < 0.5:
            event = due.pop(0)
        elif dice < 0.8:
            event = n.Ordered(any_order(rng))
        else:
            event = rng.choice((n.LinkUp(), n.LinkDown(), n.Tick()))
        for effect in machine.handle(event, now_s):
            match effect:
                case n.Ensure(run):
                    started += 1
                    given = n.Given(run, f"a{started}")
                    due += [given, n.Buried(run, given.incarnation, any_renewal(rng))]
                    if rng.random() < 0.3:
                        due[-2:] = [n.StartFailed(run, "no room")]
                case n.Report(report):
                    encode(report)
                case n.Forget():
                    pass
        now_s += rng.choice((0.0, 0.1, 1.0, 5.0))


PLAYS: dict[str, Callable[[Random], None]] = {
    "coordinator": coordinator,
    "member": member,
    "fleet": fleet,
    "node": node,
}

"""The node table among nodes that say anything, and a node whose host does: plays as in machines.py."""

from random import Random

from msgspec.structs import replace

from protocol import coordinator_events as c
from protocol import fleet_events as f
from protocol import node as n
from protocol.fleet import Fleet
from protocol.messages import decoder, encode
from protocol.messages.fleet import Join, NodeOrder, NodeReport
from protocol.messages.member import Renewal
from protocol.node import Node
from tests.fuzz.anything import anything

STEPS = 60
RUN = "train@000001"
NODES = ("a", "b", "c", "z")

any_renewal = anything(Renewal)
any_join = anything(Join)
any_order = anything(NodeOrder)
any_report = anything(NodeReport)
decode_node_record = decoder(f.NodeRecord)


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
    machine = Fleet(host, 1, lambda node: rng.choice(("", "", RUN)))
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
    if dice < 0.7:
        return f.Heard(link)
    if dice < 0.8:
        return _upkeep(rng, link)
    if dice < 0.95:
        return f.Unlinked(link) if dice < 0.9 else f.DeclaredLost(rng.choice(NODES))
    return f.Tick()


def _upkeep(rng: Random, link: f.Link) -> f.Event:
    """What operators and runs say of nodes, and nodes of signals."""
    name = rng.choice(NODES)
    drain = f.Drain(by="ada", go_wall_s=rng.choice((0.0, 1e9)))
    return rng.choice(
        (
            f.DrainRequested(name, drain, 60.0),
            f.UndrainRequested(name, "ada"),
            f.Troubled(name, 60.0),
            f.Seated(frozenset(rng.sample(NODES, 2))),
            f.Signalled(rng.choice((None, link)), any_report(rng).signals),
        )
    )


def node(rng: Random) -> None:
    """A node whose host says anything."""
    machine = Node({"a1": RUN})
    now_s, due, started = 10.0, list[n.Event](), 1
    for _ in range(STEPS):
        dice = rng.random()
        if due and dice < 0.5:
            event = due.pop(0)
        elif dice < 0.8:
            event = n.Ordered(any_order(rng))
        else:
            event = rng.choice((n.LinkUp(), n.LinkDown(), n.Signalled({"SIGUSR1": started}), n.Tick()))
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
                case n.Forget() | n.Clear():
                    pass
        now_s += rng.choice((0.0, 0.1, 1.0, 5.0))

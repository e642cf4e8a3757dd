"""What operators want of nodes and of runs that go on, and how machines are told that they will be taken away."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from protocol.coordinator_events import LIVE, Event, Phase, ResumeRequested, ScaleRequested
from protocol.fleet_events import Drain, DrainRequested, UndrainRequested
from tests.sim.plan_truth import Drained
from tests.sim.runner import Runner
from tests.sim.setup import NOTICE

if TYPE_CHECKING:
    from tests.sim.troubles import Troubles
    from tests.sim.world import World

DEADLINES_S = (2.0, 10.0, 20.0)


def _do(world: "World", act: Callable[[], None]) -> bool:
    """At the coordinator, if there is one now."""
    if world.host is None or not world.is_host_up:
        return False
    world.host.process.do(act)
    return True


def drain(t: "Troubles", *, at: str = "checkpoint") -> bool:
    """A node is to be free."""
    world, node, rng = t.world, t._node(), t.world.clock.rng
    wait_s = 0.0 if at == "now" else rng.choice(DEADLINES_S)
    return _do(world, lambda: drain_now(world, node, wait_s, at_checkpoint=at == "checkpoint"))


def drain_now(world: "World", node: str, wait_s: float, *, at_checkpoint: bool) -> None:
    """The same, of this node, within so long."""
    now_s, host = world.clock.now_s, world.host
    assert host is not None
    wish = Drain(by="me", at_checkpoint=at_checkpoint, go_wall_s=now_s + wait_s)
    world.clock.tell("operator", "drains {}, at a checkpoint: {}, within {} s", node, at_checkpoint, wait_s)
    truth = world.truth.nodes
    taken = Drained(at_checkpoint, now_s, now_s + wait_s)
    host.keep_up(DrainRequested(node, wish, now_s), lambda: truth.drain(node, taken))


def undrain(t: "Troubles", node: str = "") -> bool:
    """A node may be used again."""
    world, truth = t.world, t.world.truth.nodes
    node = node or t.world.clock.rng.choice([*truth.drains, t._node()])
    return _do(world, lambda: undrain_now(world, node))


def undrain_now(world: "World", node: str) -> None:
    """The same, of this node."""
    truth, host = world.truth.nodes, world.host
    assert host is not None
    world.clock.tell("operator", "undrains {}", node)
    truth.lifting.add(node)
    host.keep_up(UndrainRequested(node, "me"), lambda: truth.undrain(node, world.clock.now_s))


def _ask(t: "Troubles", wish: Callable[[str], Event], phases: frozenset[Phase]) -> bool:
    runs = [name for name, record in t.world.journal.runs.items() if record.phase in phases]
    if runs:
        run = t.world.clock.rng.choice(runs)
        t.world.operate(run, wish(run))
    return bool(runs)


GOING_ON = frozenset({*LIVE, Phase.FORMING, Phase.BACKOFF, Phase.HELD})


def scale(t: "Troubles") -> bool:
    """A run is to be on other numbers of nodes."""
    rng, usable = t.world.clock.rng, len(t.world.truth.could)
    least = rng.randint(1, max(usable, 1))
    nnodes = least, least + rng.choice((0, 1, 2))
    return _ask(t, lambda run: ScaleRequested(nnodes, rng.choice(DEADLINES_S), "me"), GOING_ON)


def resume(t: "Troubles") -> bool:
    """A run that is held is to go on."""
    return _ask(t, lambda run: ResumeRequested("me"), frozenset({Phase.HELD}))


def reload(t: "Troubles") -> bool:
    """A run is to go on with another revision of its job."""
    world, run = t.world, t._active_run()
    return run is not None and _do(world, lambda: _reload(world, run))


def _reload(world: "World", run: str) -> None:
    host = world.host
    assert host is not None
    machine, job = host.runs[run].machine, world.journal.jobs[run]
    if machine.is_final or machine.stop is not None or machine.refuses_restart or host.is_reloading:
        return
    revision = job.revision + 1
    spec = replace(job.spec, run=replace(job.spec.run, args=(str(revision),)))
    world.truth.specs[run, revision] = spec
    world.clock.tell("operator", "reloads {}: revision {}", run, revision)
    host.reload(run, replace(job, spec=spec, revision=revision), lambda: None)


# --- notices ---------------------------------------------------------------------------------------------------------


def _signal(t: "Troubles", node: str) -> bool:
    supd, world = t.world.supds.get(node), t.world
    if supd is None or not supd.is_alive or (node == world.truth.host and world.moves.is_on):
        return False
    name = world.clock.rng.choice(NOTICE)
    supd.signal(name)
    if name == "SIGTERM":  # it tells of it, and ends
        supd.after(0.5, lambda: world.kill_supd(node, t._away_s()))
    else:
        world.truth.nodes.noticed[node] = name
    world.truth.nodes.told_s[node] = world.clock.now_s
    world.truth.shake(node)
    return True


def notify_supd(t: "Troubles") -> bool:
    """A signal to a supd."""
    return _signal(t, t._node())


def notify_several(t: "Troubles") -> bool:
    """The same to several."""
    names = t.world.setup.names
    return sum(_signal(t, node) for node in t.world.clock.rng.sample(names, min(2, len(names)))) > 0


def notify_runner(t: "Troubles") -> bool:
    """A notice that its runner hears of; it may be withdrawn."""
    runner = t._runner()
    if runner is None:
        return False
    _tell_runner(t.world, runner, "notice_command ended with 0")
    if t.world.clock.chance(0.5):
        t.world.clock.after(t.world.clock.rng.uniform(0.2, 10.0), lambda: _tell_runner(t.world, runner, ""))
    return True


def _tell_runner(world: "World", runner: Runner, why: str) -> None:
    runner.notice(why)
    truth, node = world.truth.nodes, runner.machine.name
    if why:
        truth.told_s[node] = world.clock.now_s
    else:
        truth.lifted_s[node] = world.clock.now_s


def withdraw(t: "Troubles") -> bool:
    """A notice that a runner has told of is withdrawn."""
    machines = t.world.machines.values()
    told = [r for m in machines for r in m.runners.values() if r.is_alive and r.member and r.member.notice]
    if told:
        _tell_runner(t.world, t.world.clock.rng.choice(told), "")
    return bool(told)


KEEPERS: dict[str, Callable[["Troubles"], bool]] = {
    "operator drains": drain,
    "operator drains now": partial(drain, at="now"),
    "operator drains at a time": partial(drain, at="time"),
    "operator undrains": undrain,
    "operator scales": scale,
    "operator reloads": reload,
    "operator resumes": resume,
    "supd is sent a notice": notify_supd,
    "nodes are given notice at once": notify_several,
    "runner is given notice": notify_runner,
    "notice is withdrawn": withdraw,
}

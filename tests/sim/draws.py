"""What one seed draws.

Every kind of trouble is on in some seeds only: much of one kind shows what a little of each would hide.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from protocol.job import JobSpec, ProgressTable, RendezvousTable, RestartTable, RunTable, StopTable, TopologyTable
from protocol.timing import DEFAULTS, KILL_S
from tests.sim.cuts import both_ways
from tests.sim.network import CALM, Weather
from tests.sim.plans import add_plans
from tests.sim.setup import (
    AIMED,
    BLINKS,
    ENDING,
    FAST,
    GENTLE,
    HOST,
    MOVE,
    NAMES,
    RATES,
    SILENCES,
    USUAL_S,
    Setup,
    twin_of,
)
from tests.sim.workers import Program

Nodes = tuple[int, int]
"""The least and the most nodes that a fleet has."""


def draw(rng: random.Random, nodes: Nodes | None = None) -> Setup:
    """A world of this seed: of so many nodes, or of 3 to 8."""
    kinds = ("rough",) * 7 + ("cuts",) * 3 + ("words",) * 2 + ("gentle",) * 2 + ("alone", "ending") + ("steady",) * 2
    kind = rng.choice(kinds)
    return _draw_steady(rng, nodes) if kind == "steady" else _draw_rough(rng, kind, nodes)


def setup_of(seed: int, rng: random.Random, nodes: Nodes | None = None) -> Setup:
    """All that a seed draws; `rng` is its main stream of chance, from which a world goes on."""
    setup = add_plans(draw(rng, nodes), random.Random(f"plans of {seed}"))
    return add_moves(setup, random.Random(f"moves of {seed}"))


def add_moves(setup: Setup, rng: random.Random) -> Setup:
    """The same world, with a coordinator that is moved while it lives, or without."""
    if setup.kind not in ("rough", "cuts", "steady") or setup.keeps_isolated or setup.twin or rng.random() > 0.15:
        return setup
    return replace(setup, every_s={**setup.every_s, MOVE: rng.choice((6.0, 15.0))})


def _draw_names(rng: random.Random, usual: Sequence[int], nodes: Nodes | None) -> tuple[str, ...]:
    return NAMES[: rng.choice(usual) if nodes is None else rng.randint(*nodes)]


def _draw_rough(rng: random.Random, kind: str, nodes: Nodes | None) -> Setup:
    """Where generations end."""

    def maybe(probability: float, value: float) -> float:
        return value if rng.random() < probability else 0.0

    is_gentle = kind == "gentle"
    is_alone = kind == "alone"  # one node, which fails again and again
    is_ending = kind == "ending"  # its ranks finish one after the other, and then their runners die, and the host
    has_words = kind == "words"  # nothing goes wrong but what is aimed at words
    has_cuts = has_words or kind == "cuts"  # ... but that machines don't reach each other, or stand still
    names = _draw_names(rng, (3, 5, 6, 7, 8) if has_cuts else (3, 3, 4, 4, 5, 5, 6, 8), nodes)
    has_host = rng.random() < (0.0 if has_words else 0.5 if has_cuts else 0.8)  # else the job keeps off the host
    usable = len(names) - (not has_host)
    least = 1 if is_alone else rng.choice((1, 2)) if has_cuts else rng.randint(1, usable)
    most = 1 if is_alone else usable if has_cuts else rng.randint(least, usable + rng.choice((0, 2)))
    spec = JobSpec(
        name="j",
        run=RunTable(script="t.py"),
        topology=TopologyTable(
            nnodes=(least, most),
            nproc_per_node=1,
            extra_nodes="grow" if has_cuts else rng.choice(("standby", "grow", "grow")),
            exclude=() if has_host else (HOST,),
            node_labels={"zone": "x"} if rng.random() < 0.1 else {},
            rank_order=rng.choice(("name", "name", "join", "label:zone")),
        ),
        rendezvous=RendezvousTable(
            join_timeout_s=rng.choice((12.0, 30.0, 30.0)), last_call_s=rng.choice((0.0, 2.0, 8.0, 8.0))
        ),
        restart=RestartTable(
            max_restarts=rng.choice((0, 3, 10, -1, -1)),
            backoff_s=rng.choice((0.0, 0.5, 2.0)),
            backoff_max_s=4.0,
            stable_after_s=rng.choice((5.0, 600.0)),
            exclude_node_after=0,  # the rules about waiting for nodes know of none that is left out
            start_after_s=rng.choice((0.5, 3.0)),
            on_startup_failure=rng.choice(("fail", "restart", "restart")),
            never_on_exit=rng.choice(((), (), (77,))),
            always_on_exit=rng.choice(((), (), (1,))),
            policy=rng.choice(("on-failure",) * (2 if is_alone else 5) + ("never",)),
        ),
        stop=StopTable(
            grace_s=rng.choice((0.5, 2.0, 5.0)),
            pre_signal=rng.choice(("", "", "SIGUSR1")),
            pre_wait_s=1.0,
            finish_timeout_s=rng.choice((None, None, 2.0)),
        ),
        progress=ProgressTable(source="none"),
    )
    program = Program(
        trains_s=None if has_cuts else rng.choice((0.4, 2.0, 8.0) if is_ending else (None, None, 0.4, 2.0, 8.0)),
        spread_s=12.0 if is_ending else rng.choice((0.1, 4.0, 12.0)),
        deaf=maybe(0.3, 0.2),
        leaves=maybe(0.4, 0.3),
        kills_s=rng.choice(((0.0, 0.01), (0.0, KILL_S))),
        stuck=maybe(0.2, 0.3),
        stuck_s=rng.choice(((1.0, 4.0), (4.0, 15.0))),
        follows=rng.choice((0.0, 0.5, 1.0)),
        unspawnable=maybe(0.15, 0.1),
        fails_early=maybe(0.6, 0.3) if is_alone else maybe(0.15, 0.1),
        spawns_s=rng.choice(((0.005, 0.05), (0.05, 1.5))),
    )
    weather = CALM
    if rng.random() < (0.3 if has_words else 0.6):
        weather = Weather(
            loss=maybe(0.6, rng.choice((0.02, 0.2))),
            double=maybe(0.5, 0.1),
            hold=maybe(0.6, rng.choice((0.01, 0.1))),
            hold_max_s=rng.choice((0.5, 6.0)),
            delay_s=rng.choice(((0.0002, 0.002), (0.001, 0.2))),
        )
    if is_gentle:
        weather = rng.choice((CALM, Weather(loss=0.2)))
    every_s = {}
    for what in () if is_ending or has_words else GENTLE if is_gentle else SILENCES if has_cuts else RATES:
        if rng.random() < (0.4 if is_gentle or has_cuts else 0.3):
            every_s[what] = USUAL_S.get(what, 15.0) * rng.choice((0.3, 1.0, 1.0, 3.0))
    if has_words:
        every_s = {"two cuts": 12.0, "host killed as a link is cut": 30.0}
    elif is_ending and not has_host:
        every_s = {"operator restarts twice": 2.0}
    elif has_cuts:
        every_s["group cut off"] = rng.choice((10.0, 30.0))
        every_s["cut that moves"] = rng.choice((10.0, 30.0))
    others = [name for name in names if name != HOST]
    twin = rng.choice(others) if not (is_gentle or has_cuts) and rng.random() < 0.1 else ""
    return Setup(
        names=names,
        spec=spec,
        program=program,
        weather=weather,
        every_s=every_s,
        aimed=dict.fromkeys(ENDING, 0.5)
        if is_ending
        else {what: rng.choice((0.1, 0.4)) for what in AIMED if rng.random() < 0.4 and not (is_gentle or has_cuts)},
        begins_s=rng.choice((rng.uniform(0.0, 2.0), rng.uniform(5.0, 8.0))),
        calm_s=rng.choice((0.0, 0.0, 0.0, 11.0)),
        faults_s=rng.uniform(40.0, 80.0) if has_words else rng.uniform(15.0, 45.0),
        nproc=rng.choice((1, 1, 2)),
        labels={name: {"zone": rng.choice("xxxy")} for name in names},
        digests={rng.choice(names): "other"} if rng.random() < 0.08 else {},
        broken=(rng.choice(others),) if rng.random() < 0.06 else (),
        timing=rng.choice((DEFAULTS, FAST) if has_cuts and not has_words else (DEFAULTS, DEFAULTS, FAST)),
        keeps_isolated=rng.random() < 0.1,
        kind=kind,
        strikes_phases=maybe(0.35, 0.5) * (not is_ending),
        late={
            name: rng.uniform(0.0, 12.0) for name in (*others, *([twin_of(twin)] if twin else [])) if rng.random() < 0.3
        },
        start_fails=maybe(0.35, rng.choice((0.1, 0.6, 0.9))) * (not is_gentle),
        slow_write=maybe(0.3, rng.choice((0.1, 0.5))) * (not is_gentle),
        gives_s=rng.choice(((0.002, 0.05), (0.3, 1.5))),
        sweep_s=rng.choice(((0.01, 0.1), (0.1, 4.0))),
        away_s=rng.choice(((0.2, 3.0), (2.0, 15.0))),
        allow_mixed=rng.random() < 0.1,
        twin=twin,
        is_gentle=is_gentle,
        stops_at_end=rng.choice(("stop", "now")),
    )


def _draw_steady(rng: random.Random, nodes: Nodes | None) -> Setup:
    """Where none may end: the host and supds suffer, or one link between the host and a member is cut now and then."""
    names = _draw_names(rng, (3, 4, 5, 6, 8), nodes)
    has_host = rng.random() < 0.8
    members = [name for name in names if name != HOST or has_host]
    link = both_ways([(HOST, rng.choice([name for name in members if name != HOST]))])
    has_link = rng.random() < 0.4
    is_long = not has_link and rng.random() < 0.1  # the coordinator is away for minutes
    spec = JobSpec(
        name="j",
        run=RunTable(script="t.py"),
        topology=TopologyTable(
            nnodes=(len(members), len(members)), nproc_per_node=1, exclude=() if has_host else (HOST,)
        ),
        rendezvous=RendezvousTable(join_timeout_s=30.0),
        progress=ProgressTable(source="none"),
    )
    weather = rng.choice((CALM, Weather(loss=0.02), Weather(loss=0.05, double=0.1, delay_s=(0.001, 0.1))))
    blinks = [what for what in BLINKS if rng.random() < 0.6] or [rng.choice(BLINKS)]
    cut = rng.choice((link, link[:1], link[1:]))
    return Setup(
        names=names,
        spec=spec,
        program=Program(),
        weather=weather,
        every_s={"the link cut": 8.0} if has_link else dict.fromkeys(blinks, 100.0 if is_long else 10.0),
        calm_s=11.0,
        faults_s=600.0 if is_long else rng.uniform(20.0, 60.0),
        nproc=rng.choice((1, 2)),
        away_s=(60.0, 600.0) if is_long else rng.choice(((0.2, 3.0), (2.0, 15.0), (5.0, 40.0))),
        timing=rng.choice((DEFAULTS, FAST)) if weather is CALM else DEFAULTS,
        link=tuple(cut) if has_link else (),
        must_go_on=True,
        kind="steady",
        is_gentle=True,
        stops_at_end=rng.choice(("stop", "now")),
    )

"""What some seeds draw beside the usual: planned changes and notices, or several runs that share the nodes.

From a stream of chance of its own: all else of these worlds is as it was drawn, and so are all other worlds.
"""

import random
from dataclasses import replace

from msgspec.structs import replace as changed

from protocol.job import CheckpointTable, JobSpec, PreemptionTable
from protocol.signals import signal_number
from tests.sim.setup import LOST, NOTICE, Further, Setup

WARNING = "SIGUSR1"
DRAINS = ("operator drains", "operator drains now", "operator drains at a time", "operator undrains")
CHANGES = (*DRAINS, "operator scales", "operator reloads", "operator resumes")
NOTICES = ("supd is sent a notice", "runner is given notice", "nodes are given notice at once", "notice is withdrawn")

USUAL_S = 7.0
"""How far apart such things are."""


def add_plans(setup: Setup, rng: random.Random) -> Setup:
    """The same world, with such things, or without."""
    if setup.kind not in ("rough", "gentle") or rng.random() > 0.7:
        return setup
    every_s = {what: s for what, s in setup.every_s.items() if what not in LOST and rng.random() < 0.7}
    setup = replace(setup, every_s=every_s, twin="", faults_s=rng.uniform(25.0, 50.0))
    setup = replace(setup, strikes_phases=rng.choice((0.0, 0.5)))
    setup = replace(setup, spec=_with_budgets(setup.spec, rng))
    return _planned(setup, rng) if rng.random() < 0.6 else _sharing(setup, rng)


def _with_budgets(spec: JobSpec, rng: random.Random) -> JobSpec:
    """Another policy, with checkpoints and a warning or without."""
    has_saves = rng.random() < 0.8
    return changed(
        spec,
        checkpoint=CheckpointTable(marker="m" if has_saves else ""),
        stop=changed(
            spec.stop, pre_signal=WARNING if rng.random() < 0.6 else "", pre_wait_s=rng.choice((0.0, 0.5, 3.0))
        ),
        restart=changed(
            spec.restart,
            max_infra_restarts=rng.choice((-1, -1, -1, 1)),
            restart_window_s=rng.choice((0.0, 0.0, 20.0)),
            no_progress_limit=rng.choice((0, 2, 3)),
            exclude_node_after=rng.choice((0, 1, 2, 2)),
            on_budget_spent=rng.choice(("fail", "hold", "hold")),
            count_membership=rng.random() < 0.15,
            max_restarts=rng.choice((1, 3, -1, -1)),
        ),
        preemption=PreemptionTable(
            signals=NOTICE if rng.random() < 0.7 else (),
            lead_time_s=rng.choice((0.0, 0.0, 4.0)),
            then=rng.choice(("exit", "wait-for-nodes", "wait-for-nodes")),
        ),
    )


def _program(setup: Setup, rng: random.Random) -> Setup:
    program = replace(
        setup.program,
        saves_s=rng.choice(((0.3, 2.0), (2.0, 8.0))) if setup.spec.checkpoint.is_watched else None,
        warning=signal_number(WARNING),
        answers=rng.choice((1.0, 1.0, 0.5)),
        trains_s=setup.program.trains_s if rng.random() < 0.2 else None,
    )
    return replace(setup, program=program)


def _rates(kinds: tuple[str, ...], rng: random.Random) -> dict[str, float]:
    return {what: USUAL_S * rng.choice((0.4, 1.0, 2.0)) for what in kinds if rng.random() < 0.6}


def _planned(setup: Setup, rng: random.Random) -> Setup:
    """Operators, nodes that come and go, and those that are taken away."""
    spec, usable = setup.spec, len(setup.names) - len(setup.spec.topology.exclude)
    least = rng.randint(1, usable)
    topology = changed(
        spec.topology,
        nnodes=(least, least + rng.choice((0, 1, 1, 2))),
        node_labels={},
        extra_nodes=rng.choice(("standby", "grow")),
        grow_min_interval_s=rng.choice((0.0, 0.0, 8.0)),
        grow_without_checkpoint=rng.random() < 0.5,
    )
    kinds = (*CHANGES, *(NOTICES if spec.preemption.signals else ()))
    setup = replace(setup, spec=changed(spec, topology=topology), kind="planned", plans=kinds)
    return _program(replace(setup, every_s={**setup.every_s, **_rates(kinds, rng)}), rng)


def _sharing(setup: Setup, rng: random.Random) -> Setup:
    """Several runs, of several sizes, that come one after the other; some end soon."""
    count = rng.choice((2, 3, 4, 4))
    usable = len(setup.names) - len(setup.spec.topology.exclude)

    def sized(spec: JobSpec) -> JobSpec:
        least = rng.randint(1, usable)
        nnodes = (least, least + rng.choice((0, 0, 1)))
        nproc = rng.choice((1, 1, 2, count))
        return changed(
            spec,
            topology=changed(spec.topology, nnodes=nnodes, nproc_per_node=nproc, node_labels={}),
            restart=changed(spec.restart, exclude_node_after=rng.choice((0, 1, 2))),
            preemption=changed(spec.preemption, signals=rng.choice(((), NOTICE))),
        )

    further = tuple(
        Further(
            setup.begins_s + rng.uniform(0.0, setup.faults_s - 10.0), sized(setup.spec), rng.choice((None, 2.0, 6.0))
        )
        for _ in range(rng.randint(2, 4))
    )
    every_s = {what: s for what, s in setup.every_s.items() if what != "operator starts another run"}
    if rng.random() < 0.6:
        every_s["host killed"] = USUAL_S
    kinds = (*DRAINS, "operator scales", "operator resumes", "supd is sent a notice")
    setup = replace(
        setup,
        spec=sized(setup.spec),
        slots=tuple(map(str, range(count))),
        max_jobs=rng.choice((0, 0, 0, 2)),
        nproc=0,
        further=tuple(sorted(further, key=lambda one: one.at_s)),
        kind="sharing",
        plans=kinds,
        every_s={**every_s, **(_rates(kinds, rng) if rng.random() < 0.6 else {}), "operator scales": USUAL_S},
    )
    setup = _program(setup, rng)
    saves_s = setup.program.saves_s and (2.0, 8.0)
    return replace(setup, program=replace(setup.program, trains_s=rng.choice((None, 4.0, 10.0)), saves_s=saves_s))

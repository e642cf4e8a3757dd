"""Runs the job of a plan: what there is before the event loop, and after it."""

import asyncio
import os
from pathlib import Path

import uvloop

from protocol.errors import Refused, SupdError
from protocol.exit_code import ExitCode
from supervisor.front import log_lines
from supervisor.front.ahead import Begun
from supervisor.front.credential import key_of_one, known_key, shared_key
from supervisor.front.session import Session
from supervisor.front.submission import Place
from supervisor.shell.devices import count_as_torchrun
from supervisor.suprun.plan import LaunchPlan, Mode


def launch(plan: LaunchPlan, begun: Begun, kept: Path | None) -> int:
    """Run it to its end; returns what suprun ends with. `kept` is its folder in --log-dir. Raises SupdError."""
    place = Place.here()
    try:
        nproc, _ = count_as_torchrun(plan.nproc_per_node, os.environ)
    except Refused as exc:  # its hint is that of a job file
        hint = "--nproc-per-node=NUMBER, or auto, or cpu"
        raise Refused(exc.code, str(exc), hint=hint, exit_code=ExitCode.INVALID) from None
    if plan.numa_binding is not None:
        from supervisor.shell.numa import cpus_of_ranks, gpus_seen  # few lines need it

        cpus_of_ranks(plan.numa_binding, gpus_seen(os.environ), nproc)
    try:
        session = Session(plan, nproc, place, begun, _credential(plan, begun.state), kept)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            log_lines.set_up()
            return runner.run(session.run())
    except BaseExceptionGroup as group:
        raise _told(group) from None


def _credential(plan: LaunchPlan, state: Path) -> Path:
    if plan.is_insecure:
        return known_key(state)
    return key_of_one(state) if plan.mode is Mode.STANDALONE else shared_key()


def _told(group: BaseExceptionGroup) -> BaseException:
    """The one error that users are told, where there is one."""
    refusals, others = group.split(SupdError)
    if refusals is None or others is not None:
        return group
    first: BaseException = refusals
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, Refused) and first.code == "F030":  # its words are those of supd.toml
        hint = "name another port of the endpoint on every node, or end what has this one"
        return Refused("C032", str(first), hint=hint, exit_code=ExitCode.INVALID)
    return first

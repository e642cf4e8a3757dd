"""The nodes of a launch: until enough are there, and how each speaks to the one that coordinates."""

import asyncio
import os
from typing import TYPE_CHECKING

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.job import JobSpec, Submitter
from protocol.messages.control import ControlReply, Done, Failure, Request, Resolve, RunStatus, StopRun
from protocol.messages.upkeep import DrainNodes, UndrainNodes
from protocol.text import host_port, some_of
from supervisor.daemon.relay import HostAway, Relay, Send
from supervisor.daemon.role import Role
from supervisor.front.console import Console
from supervisor.front.credential import key_mend
from supervisor.front.submission import RANK_LABEL
from supervisor.shell.clock import boot_s
from supervisor.shell.config import Config
from supervisor.shell.dial import Dialer
from supervisor.shell.tls import NO_TLS
from supervisor.suprun.plan import LAST_CALL_S, LaunchPlan, Mode

if TYPE_CHECKING:
    from supervisor.daemon.hosted import Hosted

LOOK_S = 0.02
AGAIN_S = 0.1

ASK_S = 1.0
"""How often it is asked whether the job has begun. Who is told to run something knows it by that: a question takes a
TLS handshake, and at a launch all nodes are busy."""

TELL_S = 5.0
"""How often it is told who is waited for."""

QUIET_S = 3.0
"""Where no last call was given, it is over once nobody has come for so long."""

LAST_CALL_MIN_S = 2.0
"""The shortest last call, whatever was given: where this node was away for a while, those that have gone on without it
come within that, and tell of the run."""

NOT_STARTED = "the job was not started"

DESERTED_S = 5.0
"""How long a node without a runner looks for the one that coordinates."""

FOR_GOOD = ("", "F301", "F302", "F303", "F320")
"""Refusals that trying again does not change; "" is TLS's: another key."""


async def _drop(_frame: bytes) -> None:
    pass


class Meeting:
    """The fleet of a launch, seen from this node."""

    def __init__(self, plan: LaunchPlan, config: Config, role: Role, dialer: Dialer, console: Console) -> None:
        self._plan = plan
        self._config = config
        self._role = role
        self._console = console
        self._relay = Relay(self._where, dialer, config.fleet, config.node, config.logs_dir)
        self._until_s = boot_s() + plan.join_timeout_s
        self._told_s = boot_s()

    @property
    def node(self) -> str:
        """This one's name."""
        return self._config.node

    @property
    def is_host(self) -> bool:
        """Whether this node coordinates."""
        return self._role.hosted is not None

    async def ask(self, request: Request, send: Send = _drop, *, by: str = "suprun") -> ControlReply:
        """As `Relay.pass_on`; raises Refused also where the node that coordinates does not do it."""
        reply = await self._relay.pass_on(by, request, send)
        if isinstance(reply, Failure):
            raise Refused(reply.code, reply.message, hint=reply.hint, exit_code=reply.exit_code)
        return reply

    async def run(self, spec: JobSpec, submitter: Submitter) -> str:
        """The run, once there is one: the node that coordinates starts it. Raises Refused where that takes too long, or
        the nodes do not belong together."""
        if self._role.hosted is not None:
            return await self._start(self._role.hosted, spec, submitter)
        await self._join()
        why = NOT_STARTED
        while True:
            self._see_that_it_is_not_late(why)
            try:
                run = await self._begun()
            except (HostAway, Refused) as exc:
                self._see_refusal()
                why = str(exc)
                await asyncio.sleep(AGAIN_S)
                continue
            if run:
                return run
            why = NOT_STARTED
            await self._told_to_run(ASK_S)

    async def stop(self, by: str, *, now: bool) -> None:
        """Have the run ended. Raises HostAway and Refused."""
        reply = await self.ask(StopRun(run="", all_runs=True, now=now), by=by)
        if isinstance(reply, Done) and not reply.runs:  # it has begun anew, and is about to hear of it
            raise HostAway("", "it knows of no run")

    async def leave(self, by: str) -> None:
        """Have the run go on without this node. Raises HostAway and Refused."""
        await self.ask(DrainNodes(nodes=(self.node,), at="now", reason=by), by=by)

    def is_spare(self, status: RunStatus) -> bool:
        """Whether the run has all nodes that it takes, and this is none of them."""
        return len(status.nodes) >= self._plan.nnodes[1] and self.node not in status.nodes

    def is_deserted(self, away_s: float) -> bool:
        """Whether the node that coordinates is away since then, and nothing runs here for which it should come back."""
        return not self._role.node.active_runs() and boot_s() - away_s > DESERTED_S

    async def others_gone(self, limit_s: float) -> None:
        """Wait until the other nodes have left, or so long."""
        hosted = self._role.hosted
        until_s = boot_s() + limit_s
        while hosted is not None and len(hosted.nodes.runners()) > 1 and boot_s() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    # --- meeting -------------------------------------------------------------------------------------------------

    async def _start(self, hosted: "Hosted", spec: JobSpec, submitter: Submitter) -> str:
        """Start the run once enough nodes are there; where some have a runner we know nothing of, it is theirs."""
        least, most = self._plan.nnodes
        gathering = _Gathering(self._plan)
        while self._plan.mode is not Mode.STANDALONE:
            if hosted.jobs.runs:
                return next(iter(hosted.jobs.runs))
            there = hosted.nodes.runners()
            has_met = len(there) >= least and None not in there.values()
            is_last_call_over = gathering.is_over(len(there), boot_s()) or len(there) >= most
            if has_met and is_last_call_over and not any(there.values()):
                self._see_that_places_differ(hosted)
                break
            self._see_that_it_is_not_late(f"{len(there)} of {least} nodes are there ({some_of(sorted(there))})")
            await asyncio.sleep(LOOK_S)
        return await hosted.starting.start(spec, submitter, os.urandom(8).hex())

    def _see_that_places_differ(self, hosted: "Hosted") -> None:
        holders: dict[str, str] = {}
        for node in hosted.nodes.status():
            place = node.labels.get(RANK_LABEL, "")
            if not place:
                continue
            if place in holders:
                message = f"{holders[place]} and {node.node} both have --node-rank {place}"
                raise Refused("C034", message, hint="each node has its own, from 0", exit_code=ExitCode.INVALID)
            holders[place] = node.node

    async def _join(self) -> None:
        while not isinstance(where := self._role.where(), tuple):
            self._see_refusal()
            self._see_that_it_is_not_late(str(where))
            await asyncio.sleep(LOOK_S)

    async def _begun(self) -> str:
        """The run; "": there is none yet. Raises HostAway and Refused."""
        reply = await self._relay.pass_on("suprun", Resolve(word=""))
        if not isinstance(reply, Done):
            return ""
        if self._plan.nnodes[0] < self._plan.nnodes[1]:  # this node may have left before
            await self.ask(UndrainNodes(nodes=(self.node,)))
        return reply.run

    async def _told_to_run(self, limit_s: float) -> None:
        """Wait until something is to run here, or so long."""
        until_s = boot_s() + limit_s
        is_told = False
        while not is_told and boot_s() < until_s:
            await asyncio.sleep(LOOK_S)
            is_told = self._role.node.active_runs() > 0

    def _where(self) -> tuple[str, int] | Refused | str:
        hosted = self._role.hosted
        return self._role.where() if hosted is None else ("127.0.0.1", hosted.place[1])

    def _see_refusal(self) -> None:
        away = self._role.turned_away()
        if away is None or away[0] not in FOR_GOOD:
            return
        code, text, hint = away
        if not code:
            code, hint = "C035", key_mend(self._plan, self._config.credential)
            if text == NO_TLS:
                hint = "another program has that port there: name another one, on every node"
            text = f"{host_port(self._plan.host, self._plan.port)}: {text}"
        else:
            text = text.removeprefix(f"[{code}] ")
        raise Refused(code, text, hint=hint, exit_code=ExitCode.INVALID)

    def _see_that_it_is_not_late(self, why: str) -> None:
        now_s, endpoint = boot_s(), host_port(self._plan.host, self._plan.port)
        if now_s > self._until_s:
            message = f"the nodes did not meet at {endpoint} within {self._plan.join_timeout_s:g} s: {why}"
            key = "timeout" if self._plan.mode is Mode.STATIC else "join_timeout"
            hint = f"start suprun on every node; --rdzv-conf={key}=SECONDS waits longer"
            raise Refused("C036", message, hint=hint, exit_code=ExitCode.TIMED_OUT)
        if now_s - self._told_s > TELL_S:
            self._told_s = now_s
            self._console.tell(f"waiting at {endpoint} for the other nodes, {self._until_s - now_s:.0f} s more: {why}")


class _Gathering:
    """How long more nodes are waited for where there may be more than the least number.

    As long as --rdzv-conf says. By its default torchrun waits 30 s for nobody in particular: here no longer than until
    nobody has come for a while, since a node that comes later is taken in as well.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        given_s = plan.last_call_s
        self._limit_s = LAST_CALL_S if given_s is None else max(given_s, LAST_CALL_MIN_S)
        self._quiet_s = QUIET_S if given_s is None else self._limit_s
        self._least = plan.nnodes[0]
        self._count = 0
        self._met_s: float | None = None
        self._grew_s = 0.0

    def is_over(self, count: int, now_s: float) -> bool:
        """Whether so many nodes are all that are waited for."""
        if count < self._least:
            self._met_s = None
            return False
        if self._met_s is None:
            self._met_s = now_s
        if count > self._count or self._grew_s < self._met_s:
            self._grew_s = now_s
        self._count = count
        return now_s - self._met_s >= self._limit_s or now_s - self._grew_s >= self._quiet_s

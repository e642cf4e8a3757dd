"""One launch, from the fleet's start to its end: supd's parts, the run, its output, signals."""

import asyncio
import contextlib
import re
import signal
from pathlib import Path

from protocol.exit_code import ExitCode
from protocol.messages.control import EventRecord, RunStatus
from protocol.text import one_line
from supervisor.daemon.app import NO_WORD, prepare, serve
from supervisor.daemon.node import Node
from supervisor.daemon.role import Role
from supervisor.daemon.sent import Sent
from supervisor.front import log_lines
from supervisor.front.ahead import Begun
from supervisor.front.console import Console
from supervisor.front.credential import key_mend
from supervisor.front.endpoint import Claims, is_here, node_name_of_its_own
from supervisor.front.last_words import last_words
from supervisor.front.log_dir import Links
from supervisor.front.lost_output import LostOutput
from supervisor.front.meeting import Meeting
from supervisor.front.output import Output
from supervisor.front.returning import give_up_old_ranks
from supervisor.front.settings import config_of, node_name
from supervisor.front.stopping import Stopping
from supervisor.front.submission import Place, spec_of, submitter_of
from supervisor.front.watching import Watching
from supervisor.shell.config import Config
from supervisor.shell.dial import Dialer
from supervisor.suprun.plan import LaunchPlan, Mode
from supervisor.suprun.slurm import AGAIN_CODE

STUCK_S = 2.0
"""The end waits for a console that takes nothing for so long, and no longer."""

GOODBYE_S = 10.0
"""How long the node that coordinates stays for the others to hear of the end."""

LOOK_S = 0.02

TOLD = {
    **dict.fromkeys(("incident.opened", "incident.corrected", "node.lost", "node.fenced", "node.unfit"), ""),
    "restart.decided": "restart: ",
}
"""Events that concern whoever looks on, and what stands before their text."""


class Session:
    """What suprun does in its event loop."""

    def __init__(
        self, plan: LaunchPlan, nproc: int, place: Place, begun: Begun, credential: Path, kept: Path | None
    ) -> None:
        """`kept` is the folder of this launch in --log-dir."""
        self._plan = plan
        self._nproc = nproc
        self._place = place
        self._begun = begun
        self._credential = credential
        self._kept = kept
        self._stop = asyncio.Event()
        self._code: int = ExitCode.FAILED
        self._told = ""
        self._claims = Claims()
        self._is_host, self._node = True, ""

    async def run(self) -> int:
        """Until the job is over; returns what suprun ends with. Raises SupdError, also in groups."""
        self._console = Console()
        log_lines.set_up(self._console.tell, key_mend(self._plan, self._credential))
        if self._plan.is_insecure and self._plan.mode is not Mode.STANDALONE:
            self._console.tell(f"--insecure: whoever reaches port {self._plan.port} can run programs as you")
        self._stopping = Stopping(self._plan, self._console)
        self._stopping.listen()
        if self._plan.step is not None:
            self._stopping.end_with(self._place.parent)
        try:
            await self._serve(await is_here(self._plan, self._console, self._claims))
        except asyncio.CancelledError:
            if not self._stopping.is_over:
                self._code = self._stopping.code
        finally:
            with contextlib.suppress(asyncio.CancelledError):  # a signal: the console is not waited for any more
                while not self._console.is_empty and not await self._console.is_stuck(STUCK_S):
                    pass
        self._stopping.end()
        return self._code

    async def _serve(self, hosts: bool) -> None:
        name = node_name_of_its_own(self._plan, node_name(self._plan), self._claims)
        config = config_of(self._plan, self._nproc, self._begun, self._credential, node=name, hosts=hosts)
        prepare(config)
        await serve(config, self._stop, NO_WORD, Sent(), lambda role, dialer: self._take_part(config, role, dialer))

    async def _take_part(self, config: Config, role: Role, dialer: Dialer) -> None:
        """From the meeting of the nodes to the end of the run."""
        meeting = Meeting(self._plan, config, role, dialer, self._console)
        self._stopping.meeting = meeting
        await role.is_taken.wait()
        self._is_host, self._node = meeting.is_host, config.node
        run = await meeting.run(spec_of(self._plan, self._nproc), submitter_of(self._plan, self._place))
        links = None if self._kept is None else Links(config.logs_dir / run, self._kept)
        output = Output(self._plan, config, self._console, run, links)
        watching = Watching(run, meeting, self._console, output.see, self._on_event)
        self._stopping.watching = watching
        async with asyncio.TaskGroup() as group:
            shown = group.create_task(output.run(), name="output")
            lost = LostOutput(config.state_dir, run, self._kept or config.logs_dir, self._console)
            others = [group.create_task(lost.watch(), name="lost-output"), *self._returning(role, config, group)]
            status = await watching.outcome()
            if status is None and self._stopping.has_left and not self._stopping.is_cut_off:
                await self._go(role.node)
            while role.node.active_runs() and status is not None:  # noqa: ASYNC110  # it is soon
                await asyncio.sleep(LOOK_S)
            output.end()
            while not shown.done() and not await self._console.is_stuck(STUCK_S):
                await asyncio.wait((shown,), timeout=LOOK_S)
            await lost.look()
            for task in (shown, *others):
                task.cancel()
        self._stopping.close()
        self._code = self._tell_end(status)
        if role.hosted is not None:
            await meeting.others_gone(GOODBYE_S)
        self._stop.set()

    def _returning(self, role: Role, config: Config, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """What looks after ranks that an earlier suprun of this node had."""
        if role.hosted is None or self._plan.mode is Mode.STANDALONE:
            return []
        return [group.create_task(give_up_old_ranks(role.hosted, role.node, config.node), name="returning")]

    async def _go(self, node: Node) -> None:
        """The run goes on without this node: see that the others know that nothing of it is here."""
        node.runners.dismiss_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                while not node.is_settled:  # noqa: ASYNC110  # it is soon
                    await asyncio.sleep(LOOK_S)

    def _on_event(self, event: EventRecord) -> None:
        is_ours = self._is_host or event.detail.get("node") == self._node  # of many nodes not all tell the same
        text = f"{TOLD[event.kind]}{one_line(event.text)}" if event.kind in TOLD and is_ours else ""
        if text and text != self._told:
            self._console.tell(text)
            self._told = text

    def _tell_end(self, status: RunStatus | None) -> int:
        """Say how it has ended, where that was not well; returns what suprun ends with."""
        if status is None and (self._stopping.has_left or self._stopping.is_cut_off):
            return self._stopping.code
        if status is None:
            self._console.tell("the node that coordinates is gone, and this node's ranks are at their end")
            return ExitCode.UNAVAILABLE
        if status.state != "succeeded":
            self._console.tell(f"{status.job} {status.state}" + (f": {status.reason}" if status.reason else ""))
            for line in last_words(self._plan, status.incident, self._node, self._kept):
                self._console.tell(line)
        code = code_of(status)
        if code == AGAIN_CODE and self._plan.step is not None and self._is_host:
            again = f"scontrol requeue {self._plan.step.job_id}"
            self._console.tell(f"to go on: {again}, in the batch script, outside of any container")
        return code


def code_of(status: RunStatus) -> int:
    """What suprun ends with, the same on all nodes: that of the rank whose failure came first."""
    match status.state:
        case "succeeded":
            return ExitCode.OK
        case "preempted":
            return status.preempted_code
        case "stopped":
            number = re.search(r"\bSIG[A-Z0-9]+", status.reason)
            known = number is not None and number[0] in signal.Signals.__members__
            return 128 + signal.Signals[number[0]] if number is not None and known else ExitCode.FAILED
        case _:
            pass
    if status.lacked_nodes:
        return ExitCode.TIMED_OUT
    if status.incident is not None and status.incident.shell_code:
        return status.incident.shell_code
    return ExitCode.FAILED

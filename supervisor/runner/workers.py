"""The worker processes of one runner: spawned, signalled, reaped, and cleared away to the last grandchild."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from protocol import ranks
from protocol.errors import Refused
from protocol.job import Job
from protocol.member_events import Cleared, Event, Exited, Launched, Started
from protocol.messages.member import Assignment, RankExit, SpawnFailure
from protocol.text import one_line
from supervisor.logs.segments import LogWriter, generation_dir
from supervisor.runner import devices, spawn
from supervisor.runner.oom import OomWatch
from supervisor.shell import tree
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.files import read_small

log = structlog.get_logger()

KERNEL_PATIENCE_S = 5.0
"""How long after SIGKILL a process may wait for the kernel before it counts as gone (architecture: "Stopping ends")."""

FIRST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.05
"""Between two looks for what is left: soon at first, since mostly it has ended already."""

PIDS_LOGGED_MAX = 100

ENV_FILE_MAX_BYTES = 1024 * 1024


@dataclass
class _Main:
    """The main process of one rank."""

    rank: int
    spawned: spawn.Spawned
    born_s: float


@dataclass(frozen=True)
class _End:
    """How the main process of a rank ended."""

    main: _Main
    status: spawn.ExitStatus
    oom: str
    ended_s: float
    wall_s: float


class Workers:
    """All processes below this runner but its own `helpers` (the guard's replacement)."""

    def __init__(
        self,
        job: Job,
        node: str,
        incarnation: str,
        logs: LogWriter,
        logs_dir: Path,
        put: Callable[[Event], None],
        tasks: asyncio.TaskGroup,
        helpers: set[int],
    ) -> None:
        self._job = job
        self._node = node
        self._incarnation = incarnation
        self._logs = logs
        self._logs_dir = logs_dir
        self._put = put
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._generation = -1
        self._mains: dict[int, _Main] = {}  # by pid; those that have not been reaped
        self._held: list[_End | Started] | None = None  # what was seen while the rest was being spawned
        self._clearing: int | None = None  # the generation that is being cleared away
        self._kill_at_s = 0.0
        self._leftovers_due = False
        self._oom = OomWatch()
        self._helpers = helpers
        self.marker: Path | None = None  # of the newest generation: the file that tells the last checkpoint

    # --- launching -----------------------------------------------------------------------------------------------

    def launch(self, assignment: Assignment) -> None:
        """Spawn every rank of the assignment; exactly one Launched follows."""
        self._tasks.create_task(self._launch(assignment), name=f"launch-g{assignment.generation}")

    async def _launch(self, assignment: Assignment) -> None:
        self._generation = assignment.generation
        self._held = []
        mains: list[_Main] = []
        failure: SpawnFailure | None = None
        try:
            env_file = await self._read_env_file()
            base = ranks.inherited(self._job, os.environb)
            for local_rank in range(assignment.nproc):
                mains.append(self._spawn(assignment, local_rank, base, env_file))
                await asyncio.sleep(0)  # renewals go out between two spawns
        except (Refused, spawn.SpawnError) as exc:
            path, reason = (exc.path, exc.reason) if isinstance(exc, spawn.SpawnError) else ("devices", str(exc))
            rank = assignment.first_rank + len(mains)
            failure = SpawnFailure(rank=rank, path=one_line(path), reason=one_line(reason))
            log.warning("worker_spawn_failed", rank=rank, path=failure.path, reason=failure.reason)
        for main in mains:  # only now: what can wait does not keep the next rank from its start
            self._listen(assignment.generation, main)
        held, self._held = self._held, None
        self._put(Launched(assignment.generation, tuple(main.spawned.pid for main in mains), failure))
        for seen in held:
            self._tell(seen)

    async def _read_env_file(self) -> dict[str, str]:
        name = self._job.spec.run.env_file
        if not name:
            return {}
        path = Path(self._job.submitter.folder, name)
        content = await asyncio.to_thread(read_small, path, ENV_FILE_MAX_BYTES)
        if content is None:
            raise spawn.SpawnError(str(path), "cannot be read (run.env_file)")
        values, problems = ranks.parse_env_file(content.decode(errors="surrogateescape"))
        if problems:
            raise spawn.SpawnError(str(path), "; ".join(problems[:5]))
        return values

    def _spawn(
        self, assignment: Assignment, local_rank: int, base: ranks.Environment, env_file: dict[str, str]
    ) -> _Main:
        command = ranks.command(self._job, assignment, self._place(assignment, local_rank, base), base, env_file)
        if local_rank == 0:
            self.marker = Path(os.fsdecode(command.marker)) if command.marker else None
        limits = self._job.submitter.limits | self._job.spec.run.limits
        spawned = spawn.spawn(
            spawn.WorkerCommand(
                argv=[*command.argv],
                env=command.env,
                cwd=command.cwd,
                limits=limits,
                umask=self._job.submitter.umask,
            )
        )
        main = self._mains[spawned.pid] = _Main(assignment.first_rank + local_rank, spawned, boot_s())
        self._loop.add_reader(spawned.pidfd, self.reap)
        return main

    def _listen(self, generation: int, main: _Main) -> None:
        """Take in what a worker writes (its pipes hold it until then), and see where its memory is accounted."""
        rank, spawned = main.rank, main.spawned

        def on_first_byte() -> None:
            self._tell(Started(generation, rank))

        # A traceback of an import that failed is no start (docs/decisions/005): what counts is standard output.
        self._logs.open(generation, rank, "out", spawned.stdout_fd, on_first_byte)
        self._logs.open(generation, rank, "err", spawned.stderr_fd)
        self._oom.look(spawned.pid)
        log.info("worker_spawned", generation=generation, rank=rank, pid=spawned.pid)

    def _place(self, assignment: Assignment, local_rank: int, base: ranks.Environment) -> ranks.Place:
        rank = assignment.first_rank + local_rank
        return ranks.Place(
            node=self._node,
            local_rank=local_rank,
            incarnation=self._incarnation,
            error_file=str(generation_dir(self._logs_dir, assignment.generation) / f"rank-{rank:05d}.error.json"),
            device=self._device(local_rank, base),
            cpus=len(os.sched_getaffinity(0)),
        )

    def _device(self, local_rank: int, base: ranks.Environment) -> str | None:
        if self._job.spec.devices.visibility != "virtual":
            return None
        return devices.virtual_device(local_rank, {os.fsdecode(k): os.fsdecode(v) for k, v in base.items()})

    # --- signals -------------------------------------------------------------------------------------------------

    def signal(self, rank: int, number: int, *, whole_tree: bool) -> None:
        """Send a signal to a rank's main process, and to everything below it if asked to."""
        for main in self._mains.values():
            if main.rank != rank:
                continue
            below = tree.descendants(main.spawned.pid, tree.processes()) if whole_tree else []
            with contextlib.suppress(ProcessLookupError, PermissionError):  # ended, or of another user by now
                signal.pidfd_send_signal(main.spawned.pidfd, number)
            for process in below:
                tree.signal_process(process, number)
            log.info("worker_signalled", rank=rank, pid=main.spawned.pid, signal=signal.Signals(number).name)

    def term_leftovers(self) -> None:
        """Send TERM to what belongs to no live rank; several calls of one moment are one."""
        if not self._leftovers_due:
            self._leftovers_due = True
            self._loop.call_soon(self._term_leftovers)

    def _term_leftovers(self) -> None:
        self._leftovers_due = False
        for process in self._leftovers():
            tree.signal_process(process, signal.SIGTERM)

    def _leftovers(self) -> list[tree.Process]:
        if not tree.has_children():
            return []  # as a rule; the process table of a large machine takes long to read
        return [p for p in tree.leftovers(os.getpid(), set(self._mains), self._helpers) if p.is_alive]

    # --- ends ----------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take in every child that has ended: ranks, and orphans that came to us as their subreaper."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            main = self._mains.pop(ended.si_pid, None)
            if main is not None:
                self._on_main_ended(main)
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)
                self._helpers.discard(ended.si_pid)

    def _on_main_ended(self, main: _Main) -> None:
        self._loop.remove_reader(main.spawned.pidfd)
        status = spawn.read_exit(main.spawned.pidfd)
        assert status is not None, "a zombie without a status"
        oom = self._oom.evidence(main.spawned.pid) if status.signal == signal.SIGKILL else ""
        self._oom.forget(main.spawned.pid)
        spawn.reap(main.spawned)
        self._tell(_End(main, status, oom, boot_s(), wall_s()))

    def _tell(self, seen: _End | Started) -> None:
        """Pass on what a rank did, but never before the Launched of its generation."""
        if self._held is not None:
            self._held.append(seen)
        elif isinstance(seen, Started):
            self._put(seen)
        else:
            self._tasks.create_task(self._exit(self._generation, seen), name=f"exit-r{seen.main.rank}")

    async def _exit(self, generation: int, ended: _End) -> None:
        """Read what it said last; exactly one Exited follows."""
        rank, status = ended.main.rank, ended.status
        ran_s = ended.ended_s - ended.main.born_s
        await self._logs.drain(rank)
        log.info(
            "worker_exited",
            rank=rank,
            pid=ended.main.spawned.pid,
            code=status.code,
            signal=status.signal,
            ran_s=round(ran_s, 3),
        )
        exit = RankExit(
            code=status.code,
            signal=status.signal,
            core_dumped=status.core_dumped,
            order=0,
            wall_s=ended.wall_s,
            ran_s=ran_s,
            stopped_by_us=False,
            oom=ended.oom,
            stderr_tail=self._logs.tail(rank, "err"),
        )
        self._put(Exited(generation, rank, exit, ended.ended_s))

    def look_for_oom(self) -> None:
        """See where the ranks' memory is accounted, and how often that has run out; once a second."""
        self._oom.look_again()

    # --- clearing ------------------------------------------------------------------------------------------------

    def clear(self, generation: int, kill_at_s: float) -> None:
        """See that nothing is left; exactly one Cleared follows the first call for a generation."""
        self._kill_at_s = kill_at_s
        if self._clearing != generation:
            self._clearing = generation
            self._tasks.create_task(self._clear(generation), name=f"clear-g{generation}")

    async def _clear(self, generation: int) -> None:
        look_s = FIRST_LOOK_S
        told: set[int] = set()
        killed: set[int] = set()
        while left := self._leftovers():
            now_s = boot_s()
            if now_s >= self._kill_at_s + KERNEL_PATIENCE_S:
                break
            if now_s >= self._kill_at_s:
                killed |= {process.pid for process in tree.kill_once(left)}
            else:
                for process in left:
                    if process.pid not in told:
                        told.add(process.pid)
                        tree.signal_process(process, signal.SIGTERM)
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, LONGEST_LOOK_S)
            self.reap()
        if told or killed:
            log.info(
                "leftovers_cleared",
                generation=generation,
                pids=sorted(told | killed)[:PIDS_LOGGED_MAX],
                killed=len(killed),
                stuck=len(left),
            )
        if not await self._logs.finish(generation):
            log.warning("logs_unfinished", generation=generation)
        self._put(Cleared(generation, tuple(process.pid for process in left)))

"""The worker processes of one runner: spawned, signalled, reaped, and cleared away to the last grandchild."""

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from protocol import ranks
from protocol.dataclass import dataclass
from protocol.errors import Refused
from protocol.ids import NO_GENERATION
from protocol.job import Job
from protocol.member_events import Cleared, Event, Exited, Launched, Sample, Wrote
from protocol.messages.member import Assignment, RankExit, SpawnFailure, StallState
from protocol.text import one_line
from supervisor.logs.paths import generation_dir
from supervisor.logs.segments import LogWriter
from supervisor.runner import devices, sight, spawn
from supervisor.runner.beats import Pages, package_dir
from supervisor.runner.env_file import read_env_file
from supervisor.runner.error_file import read_error
from supervisor.runner.helpers import Helpers
from supervisor.runner.oom import OomWatch
from supervisor.runner.progress import Progress
from supervisor.runner.saves import Saves
from supervisor.shell import tree
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.devices import count_cpus
from supervisor.shell.lease_page import LeasePage
from supervisor.shell.precedence import Precedence

log = structlog.get_logger()

KERNEL_PATIENCE_S = 5.0
"""How long after SIGKILL a process may wait for the kernel before it counts as gone (architecture: "Stopping ends")."""

FIRST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.05
"""Between two looks for what is left: soon at first, since mostly it has ended already."""

FIRST_FILE_S, LAST_FILE_S = 2.0, 0.2
"""How long the spawn of the ranks, and the end of one, wait for their progress files; and a runner's first offer, and
what follows when a generation ends, for the marker."""

PIDS_LOGGED_MAX = 100


@dataclass(frozen=False)
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
        *,
        job: Job,
        node: str,
        incarnation: str,
        logs: LogWriter,
        logs_dir: Path,
        put: Callable[[Event], None],
        tasks: asyncio.TaskGroup,
        helpers: Helpers,
        pages: Pages,
        run_dir: Path,
        precedence: Precedence,
        lease: LeasePage,
    ) -> None:
        self._job = job
        self._node = node
        self._incarnation = incarnation
        self._logs = logs
        self._logs_dir = logs_dir
        self._put = put
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._generation = NO_GENERATION
        self._cpus = 1  # that this node's processes may use
        self._mains: dict[int, _Main] = {}  # by pid; those that have not been reaped
        self._spawner = ThreadPoolExecutor(1, "spawner")  # lives as long as we do: its end would be the workers'
        self._is_spawning = False  # a worker is being started just now
        self._held: list[_End | Wrote] | None = None  # what was seen while the rest was being spawned
        self._clearing: int | None = None  # the generation that is being cleared away
        self._kill_at_s = 0.0
        self._leftovers_due = False
        self._table: dict[int, tree.Process] | None = None
        self._oom = OomWatch()
        self._helpers = helpers
        self._pages = pages
        self._run_dir = run_dir
        self._package_dir: str | None = None  # None: not made yet
        self._precedence = precedence
        self._lease = lease
        self._killed = -1  # the newest generation that was killed: nothing of it is spawned any more
        self.progress = Progress(job.spec.progress, 0)  # of the newest generation, as `saves` is
        self.saves = Saves(job.spec, self._generation, 0, tasks, put)
        self._has_looked = False  # for what the marker shows before there are ranks

    # --- launching -----------------------------------------------------------------------------------------------

    async def look_for_earlier_save(self) -> None:
        """Before the first generation: tell of the step that the marker shows, where its path takes no rank. A disk is
        waited for for a moment only."""
        if self._generation != NO_GENERATION or not self._job.spec.checkpoint.marker:
            return
        saves, patience_s = self.saves, LAST_FILE_S if self._has_looked else FIRST_FILE_S
        if not self._has_looked:
            self._has_looked = True
            with contextlib.suppress(TimeoutError, spawn.SpawnError):  # the launch tells what the file lacks
                async with asyncio.timeout(FIRST_FILE_S):
                    env_file = await read_env_file(self._job)
                base = ranks.inherited(self._job, os.environb)
                marker = ranks.known_marker(self._job, self._node, self._incarnation, base, env_file)
                saves.begin(Path(os.fsdecode(marker)) if marker else None)
        await saves.look_last(NO_GENERATION, patience_s)

    def launch(self, assignment: Assignment) -> None:
        """Spawn every rank of the assignment; exactly one Launched follows."""
        self._tasks.create_task(self._launch(assignment), name=f"launch-g{assignment.generation}")

    async def _launch(self, assignment: Assignment) -> None:
        self._generation = assignment.generation
        self._cpus = count_cpus()[0]
        self._held = []
        self.progress = Progress(self._job.spec.progress, assignment.world_size)
        self.saves = Saves(self._job.spec, self._generation, assignment.world_size, self._tasks, self._put)
        mains: list[_Main] = []
        failure: SpawnFailure | None = None
        rank = assignment.first_rank
        try:
            env_file = await read_env_file(self._job)
            if self._package_dir is None:
                self._package_dir = await asyncio.to_thread(package_dir, self._run_dir)
            await self._pages.create(self._generation, [assignment.first_rank + i for i in range(assignment.nproc)])
            base = ranks.inherited(self._job, os.environb)
            commands: list[ranks.Command] = []
            for local_rank in range(assignment.nproc):
                rank = assignment.first_rank + local_rank
                place = self._place(rank, local_rank, await self._device(assignment, local_rank, base))
                commands.append(ranks.command(self._job, assignment, place, base, env_file))
            await self._know_files(assignment.first_rank, commands)
            cpus = await self._bindings(commands)
            for rank, command in enumerate(commands, assignment.first_rank):
                if self._lease.is_over or self._killed >= assignment.generation:
                    break  # the machine knows, or is about to see, and waits for nobody else
                mains.append(await self._spawn(rank, command, cpus[rank - assignment.first_rank]))
        except (Refused, spawn.SpawnError) as exc:
            path, reason = (exc.path, exc.reason) if isinstance(exc, spawn.SpawnError) else ("devices", str(exc))
            is_nodes = isinstance(exc, spawn.SpawnError) and exc.is_nodes
            failure = SpawnFailure(rank=rank, path=one_line(path), reason=one_line(reason), is_nodes=is_nodes)
            log.warning("worker_spawn_failed", rank=rank, path=failure.path, reason=failure.reason)
        for main in mains:  # only now: what can wait does not keep the next rank from its start
            self._listen(assignment.generation, main)
            await asyncio.sleep(0)  # renewals go out in between
        held, self._held = self._held, None
        self._put(Launched(assignment.generation, tuple(main.spawned.pid for main in mains), failure))
        for seen in held:
            self._tell(seen)

    async def _bindings(self, commands: Sequence[ranks.Command]) -> Sequence[frozenset[int] | None]:
        """The CPUs that each rank is bound to; None: to none in particular. Raises Refused."""
        table = self._job.spec.devices
        if table.numa_binding == "none":
            return [None] * len(commands)
        return await asyncio.to_thread(devices.bindings, table, [command.env for command in commands])

    async def _know_files(self, first_rank: int, commands: Sequence[ranks.Command]) -> None:
        """Find out what the files hold that ranks are going to write, so that it is not taken for theirs."""
        self.saves.begin(Path(os.fsdecode(commands[0].marker)) if commands[0].marker else None)
        for rank, command in enumerate(commands, first_rank):
            if command.progress_file:
                self.progress.add_file(rank, Path(os.fsdecode(command.progress_file)))
        if self._job.spec.progress.file:
            reading = self._tasks.create_task(self.progress.refresh_file(), name="progress-file")
            await asyncio.wait({reading}, timeout=FIRST_FILE_S)

    async def _spawn(self, rank: int, command: ranks.Command, cpus: frozenset[int] | None) -> _Main:
        worker = spawn.WorkerCommand(
            argv=[*command.argv],
            env=command.env,
            cwd=command.cwd,
            limits=self._job.submitter.limits | self._job.spec.run.limits,
            umask=self._job.submitter.umask,
            precedence=self._precedence,
            lease=self._lease,
            cpus=cpus,
        )
        self._is_spawning = True
        try:
            spawned = await self._loop.run_in_executor(self._spawner, spawn.spawn, worker)
        finally:
            self._is_spawning = False
        main = self._mains[spawned.pid] = _Main(rank, spawned, boot_s())
        self._loop.add_reader(spawned.pidfd, self._on_readable, main)
        return main

    def _listen(self, generation: int, main: _Main) -> None:
        """Take in what a worker writes (its pipes hold it until then), and see where its memory is accounted."""
        rank, spawned = main.rank, main.spawned

        for stream, fd in (("out", spawned.stdout_fd), ("err", spawned.stderr_fd)):
            on_first_byte = functools.partial(self._tell, Wrote(generation, rank, stream))
            taps = self.progress.tap(rank, stream), self.saves.tap(rank, stream)
            self._logs.open(generation, rank, stream, fd, on_first_byte, _all_of(taps))
        self._oom.look(spawned.pid)
        log.info("worker_spawned", generation=generation, rank=rank, pid=spawned.pid)

    def _place(self, rank: int, local_rank: int, device: str | None) -> ranks.Place:
        return ranks.Place(
            node=self._node,
            local_rank=local_rank,
            incarnation=self._incarnation,
            error_file=str(self._error_file(self._generation, rank)),
            device=device,
            cpus=self._cpus,
            heartbeat=self._pages.path(rank),
            stop_file=str(self._pages.stop_file or ""),
            package_dir=self._package_dir or "",
        )

    def _error_file(self, generation: int, rank: int) -> Path:
        return generation_dir(self._logs_dir, generation) / f"rank-{rank:05d}.error.json"

    async def _device(self, assignment: Assignment, local_rank: int, base: ranks.Environment) -> str | None:
        is_virtual = self._job.spec.devices.visibility == "virtual"
        allotted = ranks.allotted_device(assignment, local_rank, is_virtual=is_virtual)
        if allotted is not None or not is_virtual:
            return allotted
        environ = {os.fsdecode(k): os.fsdecode(v) for k, v in base.items()}
        return await asyncio.to_thread(devices.virtual_device, local_rank, environ)  # a driver may take its time

    # --- looking -------------------------------------------------------------------------------------------------

    def look(self) -> dict[int, Sample]:
        """What every rank that is alive shows of its progress. Files are read meanwhile, for the next look."""
        if self._job.spec.progress.file and not self.progress.is_reading:
            self._tasks.create_task(self.progress.refresh_file(), name="progress-file")
        ranks = [main.rank for main in self._mains.values()]
        return sight.samples(ranks, self._job.spec.progress.source, self._pages, self.progress)

    def seen_done(self) -> dict[int, int | None]:
        """For every rank that is alive its count of beats, where it has said that it is done."""
        beats = {main.rank: self._pages.read(main.rank) for main in self._mains.values()}
        return {rank: beat.count if beat is not None and beat.is_done else None for rank, beat in beats.items()}

    def inspect(self, ranks: Collection[int]) -> dict[int, StallState]:
        """What the processes of these ranks are doing; those that have ended are left out."""
        states = sight.states(self._beaters(ranks))
        return {self._mains[pid].rank: state for pid, state in states.items()}

    def _beaters(self, ranks: Collection[int]) -> dict[int, int]:
        """By main process the pid that these ranks beat with, as sight.processes() takes it."""
        beats = {pid: self._pages.read(main.rank) for pid, main in self._mains.items() if main.rank in ranks}
        return {pid: 0 if beat is None else beat.pid for pid, beat in beats.items()}

    def on_failed(self, generation: int) -> None:
        """A rank of this generation has failed by itself."""
        self._logs.on_failed(generation)

    # --- signals -------------------------------------------------------------------------------------------------

    def keep_stacks(self, rank: int) -> None:
        """Keep what it is about to write to standard error at length."""
        self._logs.keep_more(rank, "err")

    def abort(self, ranks: Collection[int]) -> None:
        """Send SIGABRT, and SIGCONT to hear it, to the processes that beat, else to the ranks' main processes."""
        for pid, process in sight.processes(self._beaters(ranks)).items():
            rank = self._mains[pid].rank
            for number in (signal.SIGABRT, signal.SIGCONT):
                if process is None or process.pid == pid:
                    self.signal(rank, number, whole_tree=False)
                elif tree.signal_process(process, number):
                    log.info("worker_signalled", rank=rank, pid=process.pid, signal=number.name)

    def signal(self, rank: int, number: int, *, whole_tree: bool) -> None:
        """Send a signal to a rank's main process, and to everything below it if asked to."""
        for main in self._mains.values():
            if main.rank != rank:
                continue
            below = tree.descendants(main.spawned.pid, self._processes()) if whole_tree else []
            with contextlib.suppress(ProcessLookupError, PermissionError):  # ended, or of another user by now
                signal.pidfd_send_signal(main.spawned.pidfd, number)
            for process in below:
                tree.signal_process(process, number)
            log.info("worker_signalled", rank=rank, pid=main.spawned.pid, signal=signal.Signals(number).name)

    def _processes(self) -> dict[int, tree.Process]:
        """The process table, read once for all ranks that get a signal in one go."""
        if self._table is None:
            self._table = tree.processes()
            self._loop.call_soon(self._forget_table)
        return self._table

    def _forget_table(self) -> None:
        self._table = None

    def kill_all(self, generation: int) -> None:
        """SIGKILL to everything of the generation, at once; nothing more of it is spawned.

        All of it is below us, since orphans come to us. What is forked while the table is read is left to `clear`, and
        to the guard.
        """
        self._killed = max(self._killed, generation)
        below = tree.descendants(os.getpid(), tree.processes(), without=self._helpers.pids)
        log.warning("generation_killed", generation=generation, killed=len(tree.kill_once(below)))

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
        return [p for p in tree.leftovers(os.getpid(), set(self._mains), self._helpers.pids) if p.is_alive]

    # --- ends ----------------------------------------------------------------------------------------------------

    def _on_readable(self, main: _Main) -> None:
        if main.spawned.pid not in self._mains:
            return  # it has been taken in already
        status = spawn.read_exit(main.spawned.pidfd)
        if status is not None:  # else a debugger has not let go of it
            del self._mains[main.spawned.pid]
            self._on_main_ended(main, status)
            self.reap()

    def reap(self) -> None:
        """Take in every child that has ended: ranks, and orphans that came to us as their subreaper."""
        while not (self._is_spawning or self._helpers.is_starting):  # else a child not known yet is taken for an orphan
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            main = self._mains.pop(ended.si_pid, None)
            if main is not None:
                status = spawn.read_exit(main.spawned.pidfd)
                assert status is not None, "a zombie without a status"
                self._on_main_ended(main, status)
            else:
                self._helpers.reap(ended.si_pid)

    def _on_main_ended(self, main: _Main, status: spawn.ExitStatus) -> None:
        self._loop.remove_reader(main.spawned.pidfd)
        oom = self._oom.evidence(main.spawned.pid) if status.signal == signal.SIGKILL else ""
        self._oom.forget(main.spawned.pid)
        spawn.reap(main.spawned)
        self._tell(_End(main, status, oom, boot_s(), wall_s()))

    def _tell(self, seen: _End | Wrote) -> None:
        """Pass on what a rank did, but never before the Launched of its generation."""
        if self._held is not None:
            self._held.append(seen)
        elif isinstance(seen, Wrote):
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
        error = None if status.code == 0 else await read_error(self._error_file(generation, rank), ended.wall_s, ran_s)
        exit = RankExit(
            code=status.code,
            signal=status.signal,
            core_dumped=status.core_dumped,
            order=0,
            wall_s=ended.wall_s,
            ran_s=ran_s,
            stopped_by_us=False,
            oom=one_line(ended.oom),
            stderr_tail=self._logs.tail(rank, "err"),
            error=error,
        )
        self._put(Exited(generation, rank, exit, ended.ended_s, await self._last_sample(rank)))

    async def _last_sample(self, rank: int) -> Sample:
        """What a rank has shown that has just ended; what it made since the last look would be missing else."""
        if self._job.spec.progress.file:
            reading = self._tasks.create_task(self.progress.refresh_file(), name="progress-file")
            await asyncio.wait({reading}, timeout=LAST_FILE_S)
        return sight.samples([rank], self._job.spec.progress.source, self._pages, self.progress)[rank]

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
        await self._pages.close(generation)
        await self.saves.look_last(generation, LAST_FILE_S)
        self._put(Cleared(generation, tuple(process.pid for process in left)))


def _all_of(taps: Iterable[Callable[[bytes], None] | None]) -> Callable[[bytes], None] | None:
    """One that gives the bytes to each; None where there is none."""
    found = [tap for tap in taps if tap is not None]
    if len(found) < 2:
        return found[0] if found else None

    def feed(data: bytes) -> None:
        for tap in found:
            tap(data)

    return feed

"""supd's side of runners: one kept ready, each given one run, each known by its lock until it is proven gone."""

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import structlog

from protocol.errors import RemoteProtocolError
from protocol.framing import encode_frame
from protocol.messages import encode
from protocol.messages.runner import Record, TakeOn, decode_record
from supervisor.daemon import beats_dir
from supervisor.daemon.journal import Journal, StoredRunner
from supervisor.shell import cgroup, tree
from supervisor.shell.clock import boot_s
from supervisor.shell.config import Config
from supervisor.shell.files import read_small
from supervisor.shell.runner_start import GuardProcess, Started, lock_path, new_incarnation, start_runner

log = structlog.get_logger()

POLL_S, IDLE_POLL_S = 0.2, 1.0
"""How often locks are tried: after a hint (a guard's end, a lost connection), and where there was none for long."""

HURRY_S = 15.0
"""How long a hint counts: the guard of a runner that died sweeps for up to 10 s before its lock is free."""

READY_AGAIN_S = 5.0
"""How soon a ready runner that died is replaced: what cannot run must not be started in a loop."""

SWEEP_AGAIN_S = 1.0

REFILL_AFTER_S = 1.0
"""A run that is being started has the CPUs first; then the next runner is made ready."""

RECORD_MAX_BYTES = 16 * 1024 * 1024
LOCK_MAX_BYTES = 4096


class Runners:
    """Starts runners: for each `start(run)` exactly one of `on_given(run, incarnation)` and `on_failed(run, reason)` is
    called. Says when one is gone: `on_gone(run, incarnation, record)`.

    A runner is alive exactly as long as its lock is held: guard and runner inherit it, nobody else has it.
    """

    def __init__(
        self,
        config: Config,
        journal: Journal,
        coordinator_file: Path,
        given: list[StoredRunner],
        *,
        on_given: Callable[[str, str], None],
        on_gone: Callable[[str, str, Record | None], None],
        on_failed: Callable[[str, str], None],
    ) -> None:
        """`given` are those that serve a run, by the journal."""
        self._config = config
        self._journal = journal
        self._coordinator_file = coordinator_file
        self._on_given = on_given
        self._on_gone = on_gone
        self._on_failed = on_failed
        self._dir = config.state_dir / "runners"
        self._ready: list[Started] = []
        self._serving = {runner.incarnation: runner for runner in given}
        self._strangers: set[str] = set()  # incarnations that serve nobody and are about to end
        self._being_buried: set[str] = set()
        self._children: dict[int, GuardProcess] = {}
        self._group: asyncio.TaskGroup | None = None
        self._look = asyncio.Event()
        self._embedded = config.embedded
        self._hurry_until_s = boot_s() + HURRY_S
        self.address = "127.0.0.1"  # by which other nodes reach this one

    async def run(self) -> None:
        """Watch locks and keep runners ready until cancelled; those that serve a run live on."""
        self._dir.mkdir(mode=0o700, exist_ok=True)
        try:
            async with asyncio.TaskGroup() as self._group:
                if self._embedded is not None and self._embedded.ahead is not None:
                    self._ready.append(self._embedded.ahead)
                    self._watch_child(self._embedded.ahead.guard)
                # What an earlier supd had ready and never used ends by itself: its input ended with that supd.
                known = {*self._serving, *(ready.incarnation for ready in self._ready)}
                self._strangers = {path.stem for path in self._dir.iterdir()} - known
                self._fill()
                await self._watch()
        finally:
            for ready in self._ready:
                _close(ready.guard)  # it ends when its input does

    def start(self, run: str) -> None:
        """Start a runner for the run; the caller knows that there is none."""
        assert self._group is not None, "not running"
        self._group.create_task(self._give(run), name=f"runner-for-{run}")

    def dismiss_all(self) -> None:
        """Ask the runners of this node to end: those without ranks do."""
        table = tree.processes()
        for guard in self._children.values():
            for process in table.values():
                if process.ppid == guard.pid:
                    tree.signal_process(process, signal.SIGTERM)

    def serves(self, run: str) -> bool:
        """Whether the run has a runner here; any thread may ask."""
        return any(runner.run == run for runner in list(self._serving.values()))

    # --- starting ------------------------------------------------------------------------------------------------

    async def _give(self, run: str) -> None:
        ready: Started | None = None
        stored: StoredRunner | None = None
        try:
            ready = self._take_ready() or self._spawn()
            stored = StoredRunner(ready.incarnation, run, ready.cgroup)
            await self._journal.add_runner(stored)
            self._hand_over(ready, run)
            self._serving[ready.incarnation] = stored
        except OSError as exc:
            log.error("runner_start_failed", run=run, error=repr(exc))
            if stored is not None:
                await self._journal.remove_runner(stored.incarnation)
            self._on_failed(run, exc.strerror or repr(exc))
        else:
            self._on_given(run, stored.incarnation)
        finally:
            if ready is not None and ready.incarnation not in self._serving:
                self._dismiss(ready)
            self._look.set()  # there may be one more to watch
        await self._fill_later(REFILL_AFTER_S)

    def _take_ready(self) -> Started | None:
        while self._ready:
            ready = self._ready.pop(0)
            if ready.guard.poll() is None:
                return ready
            self._dismiss(ready)
        return None

    def _dismiss(self, ready: Started) -> None:
        """Let go of a runner without a run: it ends with its input, and is swept once its lock is free."""
        _close(ready.guard)
        self._strangers.add(ready.incarnation)

    def _hand_over(self, ready: Started, run: str) -> None:
        run_dir = self._run_dir(run)
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs_dir = self._config.logs_dir / run
        logs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(self._dir / f"{ready.incarnation}.log", run_dir / f"{ready.incarnation}.log")
        task = TakeOn(
            run=run,
            node=self._config.node,
            fleet=self._config.fleet,
            incarnation=ready.incarnation,
            coordinator_file=str(self._coordinator_file),
            credential=str(self._config.credential),
            run_dir=str(run_dir),
            logs_dir=str(logs_dir),
            orphan_wait_s=self._config.orphan_wait_s,
            linger_s=self._config.linger_s,
            address=self.address,
            witness_ports=self._config.runner_ports,
            beats_dir=str(
                beats_dir.in_run_dir(run_dir, ready.incarnation)
                if self._embedded is not None  # all that is left of it is in one folder
                else beats_dir.choose(run_dir, ready.incarnation)
            ),
        )
        assert ready.guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: its lock is free, and that is noticed
            ready.guard.stdin.write(encode_frame(encode(task)))
        _close(ready.guard)
        log.info("runner_given", run=run, incarnation=ready.incarnation, guard=ready.guard.pid)

    async def _fill_later(self, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        self._fill()

    def _fill(self) -> None:
        """Keep as many runners ready as are wanted; where that fails, the next start tries again."""
        try:
            while len(self._ready) < self._config.ready_runners:
                self._ready.append(self._spawn())
        except OSError as exc:
            log.warning("runner_unready", error=repr(exc))
            self._look.set()

    def _spawn(self) -> Started:
        """Start a guard with its runner. Blocks for about 2 ms; raises OSError."""
        incarnation = new_incarnation()
        self._strangers.add(incarnation)  # until it is ready: whatever fails below, its files are swept
        started = start_runner(
            self._dir,
            incarnation,
            uses_cgroup=self._config.cgroup == "auto",
            log_level=self._config.log_level,
            tie=self._embedded.tie if self._embedded else None,
        )
        self._watch_child(started.guard)
        self._strangers.discard(incarnation)
        return started

    def _watch_child(self, guard: GuardProcess) -> None:
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(guard.pid)
        self._children[pidfd] = guard

        def on_ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._children.pop(pidfd).wait()
            self.look_soon()

        loop.add_reader(pidfd, on_ended)

    # --- ends ----------------------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        """A hint that a runner may have ended: locks are tried at once, and often for a while."""
        self._hurry_until_s = boot_s() + HURRY_S
        self._look.set()

    async def _watch(self) -> None:
        assert self._group is not None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._look.wait()
            self._look.clear()
            for ready in [r for r in self._ready if r.guard.poll() is not None]:
                log.warning("ready_runner_lost", incarnation=ready.incarnation)
                self._ready.remove(ready)
                self._dismiss(ready)
                self._group.create_task(self._fill_later(READY_AGAIN_S), name="ready-again")
            for incarnation in [*self._serving, *self._strangers]:
                if incarnation not in self._being_buried and not self._is_locked(incarnation):
                    self._being_buried.add(incarnation)
                    self._group.create_task(self._bury(incarnation), name=f"bury-{incarnation}")

    def _pause_s(self) -> float | None:
        if self._strangers or boot_s() < self._hurry_until_s:
            return POLL_S
        return IDLE_POLL_S if self._serving else None

    async def _bury(self, incarnation: str) -> None:
        """Sweep what a dead runner left and, where it had a run, read what it knew last and tell."""
        runner = self._serving.get(incarnation)
        try:
            stuck = await asyncio.to_thread(self._sweep, incarnation, runner)
        except OSError as exc:  # what could not be looked for is not proven gone: again
            log.warning("sweep_failed", incarnation=incarnation, error=repr(exc))
            await asyncio.sleep(SWEEP_AGAIN_S)
            self._being_buried.discard(incarnation)
            return self.look_soon()
        if runner is not None:
            path = self._run_dir(runner.run) / f"{incarnation}.record"
            record = _decode(await asyncio.to_thread(read_small, path, RECORD_MAX_BYTES))
            log.info("runner_gone", run=runner.run, incarnation=incarnation, stuck=len(stuck))
            del self._serving[incarnation]
            self._on_gone(runner.run, incarnation, record)  # the journal keeps it until the coordinator knows
        self._strangers.discard(incarnation)
        self._being_buried.discard(incarnation)

    def _sweep(self, incarnation: str, runner: StoredRunner | None) -> list[int]:
        """End all that is left of a dead runner; returns the pids that don't end. Blocks for up to 10 s."""
        lock = self._lock_path(incarnation)
        group = runner.cgroup if runner else (read_small(lock, LOCK_MAX_BYTES) or b"").decode(errors="replace")
        is_sound = group is not None and os.path.basename(group) == cgroup.group_name(incarnation)
        stuck = tree.sweep(incarnation, group if is_sound else None)
        beats_dir.remove(self._run_dir(runner.run) if runner else None, incarnation)
        for path in (self._dir / f"{incarnation}.log", lock):
            path.unlink(missing_ok=True)
        return stuck

    def _is_locked(self, incarnation: str) -> bool:
        try:
            fd = os.open(self._lock_path(incarnation), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as exc:  # no descriptor is left, say: nothing is known, and it is looked at again
            log.warning("runner_lock_unseen", incarnation=incarnation, error=repr(exc))
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    def _run_dir(self, run: str) -> Path:
        return self._config.state_dir / "runs" / run

    def _lock_path(self, incarnation: str) -> Path:
        return lock_path(self._dir, incarnation)


def _close(guard: GuardProcess) -> None:
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.close()


def _decode(content: bytes | None) -> Record | None:
    if content is None:
        return None
    try:
        return decode_record(content)
    except RemoteProtocolError as exc:
        log.warning("record_unreadable", error=str(exc))
        return None

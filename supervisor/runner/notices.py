"""Whether this node is about to be taken away: by signals that its runner is sent, or by a command that asks for it."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog

from protocol import ranks
from protocol.job import Job
from protocol.text import one_line
from supervisor.runner import spawn
from supervisor.runner.env_file import read_env_file
from supervisor.runner.helpers import Helpers
from supervisor.shell import tree
from supervisor.shell.clock import boot_s
from supervisor.shell.precedence import Precedence

log = structlog.get_logger()

COMMAND_LIMIT_S = 30.0
"""How long the command may take at most; else two of its intervals."""

OUTPUT_BYTES_MAX = 400
"""Of what it writes; the rest is thrown away."""

READ_BYTES = 64 << 10


class Notices:
    """Tells of a notice, and when it is withdrawn. One that came by a signal stays."""

    def __init__(
        self,
        job: Job,
        node: str,
        incarnation: str,
        precedence: Precedence,
        helpers: Helpers,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` gets why the node is taken away, "" where it is not, or not any more."""
        self._job = job
        self._table = job.spec.preemption
        self._node = node
        self._incarnation = incarnation
        self._precedence = precedence
        self._helpers = helpers
        self._tell = tell
        self._thread = ThreadPoolExecutor(1, "notices")  # lives as long as we do: its end would be the command's
        self._by_signal = ""
        self._by_command = ""
        self._last: tuple[object, ...] = ()  # how the command ended last: what stays the same is told once

    def listen(self) -> None:
        """Take the job's signals for a notice from now on, whatever else they have meant."""
        for name in self._table.signals:
            asyncio.get_running_loop().add_signal_handler(signal.Signals[name], self._on_signal, name)

    def _on_signal(self, name: str) -> None:
        log.warning("preemption_noticed", signal=name)
        self._by_signal = self._by_signal or f"its runner was sent {name}"
        self._tell(self._by_signal)

    # --- the command ---------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Run the command again and again, if there is one."""
        if not self._table.notice_command:
            return
        due_s = boot_s()
        while True:
            await self._ask()
            due_s = max(due_s + self._table.notice_interval_s, boot_s())
            await asyncio.sleep(due_s - boot_s())

    async def _ask(self) -> None:
        """Run it once. One that cannot be run, or had to be killed, has said nothing."""
        try:
            code, output = await self._run()
        except spawn.SpawnError as exc:
            if self._is_news(exc.path, exc.reason):
                log.warning("notice_command_unstarted", path=exc.path, reason=exc.reason)
            return
        if self._is_news(code):
            log.info("notice_command_ended", code=code, output=output)
        if code is None:
            return
        said = f": {output}" if output else ""
        why = self._by_command or one_line(f"its preemption.notice_command has ended with 0{said}")
        self._by_command = "" if code else why
        self._tell(self._by_signal or self._by_command)

    def _is_news(self, *how: object) -> bool:
        """Whether its last run went otherwise."""
        before, self._last = self._last, how
        return how != before

    async def _run(self) -> tuple[int | None, str]:
        """Its exit code, and what it wrote first; None: it had to be killed. Raises SpawnError."""
        limit_s = min(2 * self._table.notice_interval_s, COMMAND_LIMIT_S)
        env_file = await read_env_file(self._job)
        with self._helpers.starting():
            spawned = await asyncio.get_running_loop().run_in_executor(
                self._thread, spawn.spawn, self._command(env_file)
            )
            ended = self._helpers.expect(spawned.pid)
        output = _Output(spawned)
        loop = asyncio.get_running_loop()
        loop.add_reader(spawned.pidfd, self._on_ended, spawned.pid)
        try:
            await asyncio.wait({ended}, timeout=limit_s)
            if was_killed := not ended.done():
                log.warning("notice_command_killed", after_s=limit_s)
                await asyncio.to_thread(_kill_tree, spawned.pid)
            code = await ended  # however long the kernel takes: there is one of it at a time
        finally:
            if not ended.done():  # this runner ends
                os.killpg(spawned.pid, signal.SIGKILL)
            loop.remove_reader(spawned.pidfd)
            os.close(spawned.pidfd)
            output.close()
            spawned.process.returncode = 0  # it is reaped with the helpers
        return None if was_killed or code < 0 else code, one_line(output.text)

    def _on_ended(self, pid: int) -> None:
        if pid in self._helpers.pids:  # else it has been taken in with the workers
            self._helpers.reap(pid)

    def _command(self, env_file: Mapping[str, str]) -> spawn.WorkerCommand:
        job = self._job
        base = ranks.inherited(job, os.environb)
        command = ranks.notice_command(job, self._node, self._incarnation, base, env_file)
        return spawn.WorkerCommand(
            argv=[*command.argv],
            env=command.env,
            cwd=command.cwd,
            limits=job.submitter.limits | job.spec.run.limits,
            umask=job.submitter.umask,
            precedence=self._precedence,
        )


class _Output:
    """What the command writes, read as it comes: it never has to wait."""

    def __init__(self, spawned: spawn.Spawned) -> None:
        self._loop = asyncio.get_running_loop()
        self._kept = bytearray()
        self._descriptors = [spawned.stdout_fd, spawned.stderr_fd]
        for descriptor in self._descriptors:
            self._loop.add_reader(descriptor, self._read, descriptor)

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        self._kept += data[: OUTPUT_BYTES_MAX - len(self._kept)]
        if not data:
            self._loop.remove_reader(descriptor)

    @property
    def text(self) -> str:
        return self._kept.decode(errors="surrogateescape")

    def close(self) -> None:
        """Read what is there, and let go of the pipes."""
        for descriptor in self._descriptors:
            self._read(descriptor)
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


def _kill_tree(pid: int) -> None:
    """SIGKILL to the command and to all below it."""
    table = tree.processes()
    tree.kill_once([*tree.descendants(pid, table), *(table[found] for found in (pid,) if found in table)])

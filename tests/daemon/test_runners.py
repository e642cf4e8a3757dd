"""supervisor/daemon/runners.py: real guards and runners, and what becomes of them."""

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from protocol.messages import encode
from protocol.messages.member import Renewal
from protocol.messages.runner import Record
from supervisor.daemon.app import prepare
from supervisor.daemon.journal import Journal, StoredRunner
from supervisor.daemon.runners import Runners
from supervisor.shell import tree
from supervisor.shell.config import Config
from supervisor.shell.files import write_whole
from tests.daemon.serving import config_in, wait_for


@dataclass
class Told:
    """What the node's machine was told."""

    given: list[tuple[str, str]] = field(default_factory=list)
    gone: list[tuple[str, str, Record | None]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    def on_given(self, run: str, incarnation: str) -> None:
        self.given.append((run, incarnation))

    def on_gone(self, run: str, incarnation: str, record: Record | None) -> None:
        self.gone.append((run, incarnation, record))

    def on_failed(self, run: str, reason: str) -> None:
        self.failed.append((run, reason))


@dataclass
class Node:
    """The runners' side of a supd."""

    config: Config
    journal: Journal
    runners: Runners
    told: Told
    loaded: dict[str, str]

    def files(self) -> set[str]:
        return set(os.listdir(self.config.state_dir / "runners"))

    def incarnations(self) -> set[str]:
        return {Path(name).stem for name in self.files() if name.endswith(".lock")}


def guards() -> list[int]:
    """The guards that this process has started and not reaped."""
    table = tree.processes().values()
    mine = [process.pid for process in table if process.ppid == os.getpid()]
    return [pid for pid in mine if b"runner/guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes() or not alive(pid)]


def alive(pid: int) -> bool:
    process = tree.look(pid)
    return process is not None and process.is_alive


def below(pid: int) -> list[int]:
    return [process.pid for process in tree.descendants(pid, tree.processes())]


def end_runners() -> bool:
    """Whether all are gone; those that are not get SIGKILL."""
    for guard in guards():
        for pid in below(guard):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return not guards()


@contextlib.asynccontextmanager
async def node(config: Config) -> AsyncIterator[Node]:
    """Runners for the length of a block; whoever serves a run then is ended."""
    lock = prepare(config)
    journal, told = Journal(config.state_dir / "journal.db"), Told()
    given = await journal.runners()
    runners = Runners(
        config,
        journal,
        config.state_dir / "coordinator",
        given,
        on_given=told.on_given,
        on_gone=told.on_gone,
        on_failed=told.on_failed,
    )
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runners.run())
            await asyncio.sleep(0)
            try:
                yield Node(config, journal, runners, told, {runner.incarnation: runner.run for runner in given})
            finally:
                task.cancel()
                await wait_for("all guards to be gone", end_runners)
    finally:
        journal.close()
        os.close(lock)


async def test_a_ready_runner_is_kept_and_ends_with_its_supd(short_dir: Path) -> None:
    config = replace(config_in(short_dir), ready_runners=1)
    async with node(config) as here:
        await wait_for("a runner", lambda: guards() and below(guards()[0]))
        assert len(here.incarnations()) == 1
        (runner,) = below(guards()[0])
    await wait_for("the runner to be gone", lambda: not alive(runner))


async def test_what_is_left_of_a_ready_runner_that_was_killed_is_swept(short_dir: Path) -> None:
    config = replace(config_in(short_dir), ready_runners=1)
    async with node(config) as here:
        await wait_for("a runner", lambda: guards() and below(guards()[0]))
        (runner,) = below(guards()[0])
        os.kill(guards()[0], signal.SIGKILL)
        await wait_for("its files to be gone", lambda: not here.files())
        await wait_for("the runner to be gone", lambda: not alive(runner))
        assert here.told == Told()


async def test_a_run_gets_the_runner_that_is_on_disk_and_told(short_dir: Path) -> None:
    async with node(config_in(short_dir)) as here:
        here.runners.start("j@1")
        await wait_for("a runner", lambda: here.told.given)
        (stored,) = await here.journal.runners()
        assert (stored.run, {stored.incarnation}) == ("j@1", here.incarnations())
        assert here.told == Told(given=[("j@1", stored.incarnation)])


async def test_the_end_of_a_runner_is_told_once_with_its_last_words_and_kept_on_disk(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with node(config) as here:
        here.runners.start("j@1")
        await wait_for("a runner", lambda: here.told.given and guards() and below(guards()[0]))
        (incarnation,) = here.incarnations()
        record = Record(run="j@1", incarnation=incarnation, renewal=Renewal(number=7))
        write_whole(here.config.state_dir / "runs" / "j@1" / f"{incarnation}.record", encode(record))
        for pid in [*below(guards()[0]), *guards()]:
            os.kill(pid, signal.SIGKILL)
        await wait_for("its end to be told", lambda: here.told.gone)
        here.runners.start("j@1")
        await wait_for("another runner", lambda: here.incarnations() - {incarnation})
        assert here.told.gone == [("j@1", incarnation, record)]
    async with node(config) as here:
        assert here.loaded[incarnation] == "j@1", "the coordinator may not know of it yet"
        await wait_for("its end to be told again", lambda: ("j@1", incarnation, record) in here.told.gone)


async def test_where_no_runner_can_be_given_the_reason_is_told_and_nothing_is_left(short_dir: Path) -> None:
    async with node(config_in(short_dir)) as here:
        (here.config.state_dir / "runs").touch()
        here.runners.start("j@1")
        await wait_for("the reason", lambda: here.told.failed)
        assert here.told.failed == [("j@1", "Not a directory")]
        await wait_for("its files to be gone", lambda: not here.files())
        assert here.told.gone == []


async def test_what_an_earlier_supd_left_is_swept_as_soon_as_nobody_holds_it(short_dir: Path) -> None:
    config = config_in(short_dir)
    folder = config.state_dir / "runners"
    folder.mkdir(parents=True, mode=0o700)
    config.state_dir.chmod(0o700)
    for name, content in (
        ("dead.lock", "-"),
        ("dead.log", ""),
        ("torn.lock", "/sys/fs/cgroup/sup"),
        ("blank.lock", ""),
        ("lone.log", ""),
        ("held.lock", "-"),
    ):
        (folder / name).write_text(content)
    with (folder / "held.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with node(config) as here:
            await wait_for("the dead to be swept", lambda: here.files() == {"held.lock"})
            fcntl.flock(held, fcntl.LOCK_UN)
            await wait_for("the last to be swept", lambda: not here.files())
            assert here.told == Told()


async def test_a_runner_that_died_while_supd_was_away_is_told_of(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with node(config) as here:
        await here.journal.add_runner(StoredRunner("ab" * 8, "j@1", None))
    folder = config.state_dir / "runs" / "j@1"
    folder.mkdir(parents=True)
    (folder / f"{'ab' * 8}.record").write_bytes(b"\xc1 damaged")
    async with node(config) as here:
        assert here.loaded == {"ab" * 8: "j@1"}
        await wait_for("its end to be told", lambda: here.told.gone)
        assert here.told.gone == [("j@1", "ab" * 8, None)]

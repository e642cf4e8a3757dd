"""supervisor/daemon/slow_disk.py: a file system that hangs costs those an answer who ask for it, and nobody else."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import Refused
from protocol.messages.control import Failure, LogSelection, Watch
from supervisor.daemon import slow_disk
from supervisor.daemon.slow_disk import THREADS_MAX
from supervisor.logs.paths import make_generation_dir, stream_path
from tests.daemon.serving import ask, config_in, serving
from tests.daemon.test_jobs import ended, started
from tests.daemon.test_runners import below, guards


@contextlib.contextmanager
def hanging(path: Path) -> Iterator[Path]:
    """A file that nobody can open before the end of the block: a pipe without a writer."""
    os.mkfifo(path)
    try:
        yield path
    finally:
        writer = os.open(path, os.O_RDWR)
        path.unlink()
        os.close(writer)


async def refusal(path: Path) -> str:
    with pytest.raises(Refused) as refused:
        await slow_disk.ask(path.parent, path.read_bytes)
    assert refused.value.code == "F106"
    return str(refused.value)


async def test_a_disk_that_does_not_answer_is_named_and_what_supd_does_for_itself_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path / "file") as path:
        monkeypatch.setattr(slow_disk, "LIMIT_S", 0.2)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(refusal(path)) for _ in range(THREADS_MAX)]
        assert {task.result() for task in asked} == {f"{tmp_path} does not answer for 0.2 s"}
        assert await refusal(tmp_path / "other") == "all 16 threads that look at files wait for some that do not answer"
        assert await asyncio.to_thread(int) == 0
    monkeypatch.undo()
    assert await slow_disk.ask(tmp_path, os.listdir, tmp_path) == []


async def test_what_a_disk_says_is_passed_on_also_that_it_has_timed_out_itself(tmp_path: Path) -> None:
    def timed_out() -> None:
        raise TimeoutError("by the server")

    with pytest.raises(TimeoutError, match="by the server"):
        await slow_disk.ask(tmp_path, timed_out)
    with pytest.raises(FileNotFoundError):
        await slow_disk.ask(tmp_path, os.listdir, tmp_path / "nosuch")


async def test_a_lost_runner_is_seen_to_be_gone_however_many_clients_wait_for_a_disk(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await started(config, "1")
        make_generation_dir(config.logs_dir / run, 7)
        watch = Watch(run=run, follow=False, logs=LogSelection(generation=7))
        with hanging(stream_path(config.logs_dir / run, 7, 0, "out")):
            monkeypatch.setattr(slow_disk, "LIMIT_S", 1.0)
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(ask(config.control, watch)) for _ in range(2 * THREADS_MAX)]
                await asked[0]
                for pid in [pid for guard in guards() for pid in [guard, *below(guard)]]:
                    os.kill(pid, signal.SIGKILL)
                assert (await ended(config, run)).state == "failed"
        assert {(type(task.result()), getattr(task.result(), "code", "")) for task in asked} == {(Failure, "F106")}

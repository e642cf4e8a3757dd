"""Finished runs that are too many are forgotten: by the coordinator, and then by the nodes that have files of them."""

import os
from pathlib import Path

import pytest

from protocol.messages.control import Done, Failure, GetStatus, Statuses, StopRun
from supervisor.daemon import jobs, node
from supervisor.shell.config import Config
from tests.daemon.serving import ask, config_in, serving, wait_for
from tests.daemon.test_control import start
from tests.daemon.test_jobs import ended, started


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "REMEMBER_S", 0.0)
    monkeypatch.setattr(node, "LOOK_EVERY_S", 0.05)


async def known(config: Config) -> set[str]:
    reply = await ask(config.control, GetStatus())
    assert isinstance(reply, Statuses), reply
    return {run.run for run in reply.runs}


def files_of(config: Config) -> set[str]:
    return {*os.listdir(config.state_dir / "runs"), *os.listdir(config.logs_dir)}


async def finished(config: Config, number: int) -> str:
    run = await started(config, f"request {number}", f"job{number}", '["true"]')
    await ended(config, run)
    return run


async def test_of_finished_runs_the_newest_are_kept_and_nothing_is_left_of_the_others(short_dir: Path) -> None:
    config = config_in(short_dir, keep_runs=2)
    async with serving(config):
        active = await started(config, "active", "active")
        first, second, third, fourth = [await finished(config, number) for number in range(4)]
        left = {active, third, fourth}
        await wait_for("their files to go", lambda: files_of(config) == left)
        assert await known(config) == left
        gone = await ask(config.control, GetStatus(run=first))
        assert isinstance(gone, Failure)
        assert (gone.code, gone.message, gone.exit_code) == ("F102", f"there is no job {first}", 3)
        assert "more than 2" in gone.hint
        again = await ask(config.control, start("request 1", "job1", '["true"]'))
        assert isinstance(again, Done)
        assert again.run != second, "its request is forgotten with it"
        await ask(config.control, StopRun(run=active, now=True))
        await ended(config, active)
        await wait_for("the third to go", lambda: third not in files_of(config))
    async with serving(config):
        assert len(await known(config)) == 2, "nor does the next supd find them"


async def test_runs_of_before_are_forgotten_where_fewer_are_to_be_kept_now(short_dir: Path) -> None:
    async with serving(config := config_in(short_dir, keep_runs=10)):
        runs = [await finished(config, number) for number in range(3)]
        assert await known(config) == set(runs)
    async with serving(config := config_in(short_dir, keep_runs=1)):
        await wait_for("their files to go", lambda: files_of(config) == {runs[-1]})
        assert await known(config) == {runs[-1]}


async def test_a_coordinator_that_has_just_begun_forgets_nothing(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(config := config_in(short_dir, keep_runs=10)):
        runs = {await finished(config, number) for number in range(3)}
    monkeypatch.setattr(jobs, "REMEMBER_S", 3600.0)
    (config.state_dir / "journal.db").unlink()
    async with serving(config := config_in(short_dir, keep_runs=1)):
        one = await finished(config, 4)
        assert files_of(config) == {*runs, one}, "it may not know of them yet: its journal was lost"

"""`start --replace`: a run makes way for the next one of its job, whatever else is asked meanwhile."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path

import pytest
from msgspec import structs

from protocol.framing import MAX_FRAME_BYTES
from protocol.messages.control import (
    ControlReply,
    Done,
    Failure,
    GetStatus,
    RestartRun,
    Start,
    Statuses,
    StopRun,
    Watch,
    decode_reply,
)
from supervisor.daemon import starting
from supervisor.shell.config import Config
from tests.daemon.serving import Client, ask, config_in, serving, talking, wait_for
from tests.daemon.test_control import start
from tests.daemon.test_jobs import started, status

STUBBORN = """["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"]"""


BINDER = (
    "import os, socket, time; s = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT']))); time.sleep(99)"
)


def is_taken(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def stubborn(config: Config) -> str:
    """A run that is deaf to TERM by now."""
    run = await started(config, "stubborn", command=STUBBORN)
    async with talking(config.control, Watch(run=run, follow=True, snapshots=True)) as client:
        while not (await status(config, run)).has_started:
            assert await client.frame() is not None
    return run


async def replies(config: Config, request: Start) -> list[ControlReply]:
    """Everything that is said to a request."""
    async with talking(config.control, request) as client:
        return [decode_reply(frame) async for frame in frames(client)]


async def frames(client: Client) -> AsyncIterator[bytes]:
    while (frame := await client.frame()) is not None:
        yield frame


def replacing(request_id: str, **changes: object) -> Start:
    return structs.replace(start(request_id), replace=True, **changes)


async def states(config: Config) -> dict[str, str]:
    """Every run of this supd, in the order of their start, and its state."""
    everything = await ask(config.control, GetStatus())
    assert isinstance(everything, Statuses)
    return {run.run: run.state for run in everything.runs}


async def test_a_run_that_is_replaced_is_gone_before_the_next_one_begins(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        old = await started(config, "1")
        *shown, done = await replies(config, replacing("2"))
        assert isinstance(done, Done)
        assert done.run != old
        old_states = [(run.run, run.state) for one in shown if isinstance(one, Statuses) for run in one.runs]
        assert old_states[-1] == (old, "stopped")
        assert {run for run, _ in old_states} == {old}
        new = await status(config, done.run)
        assert ((await status(config, old)).ended_wall_s or inf) <= new.submitted_wall_s


@pytest.mark.parametrize(
    ("tables", "code"),
    [
        ('[run]\ncommand = ["no-such-program"]\n', "J403"),
        ('[run]\ncommand = ["sh"]\nenv_file = "/proc/self/status"\n', "J404"),
        (
            '[run]\ncommand = ["sh"]\nenv = { CUDA_VISIBLE_DEVICES = "" }\n[topology]\nnproc_per_node = "gpu"\n',
            "J405",
        ),
    ],
)
async def test_a_run_stays_for_a_job_that_can_never_run_here(short_dir: Path, tables: str, code: str) -> None:
    config = config_in(short_dir)
    async with serving(config):
        old = await started(config, "1")
        broken = replacing("2", job_file=f'name = "job"\n{tables}'.encode())
        for request in (broken, structs.replace(broken, check_only=True)):
            reply = await ask(config.control, request)
            assert isinstance(reply, Failure)
            assert [problem.code for problem in reply.problems] == [code]
            assert reply.problems[0].place is not None
        assert list(await states(config)) == [old]
        assert (await status(config, old)).state in ("starting", "running")


async def test_a_run_stays_for_a_job_whose_port_another_program_has(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        old = await started(config, "1")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            reply = await ask(config.control, replacing("2", settings=(f"rendezvous.master_port={port}",)))
        assert isinstance(reply, Failure)
        [problem] = reply.problems
        assert (problem.code, problem.value) == ("J406", str(port))
        assert f"address already in use: pid {os.getpid()} (" in problem.message
        assert list(await states(config)) == [old]
        assert (await status(config, old)).state in ("starting", "running")


async def test_the_port_of_the_run_that_makes_way_is_free_for_the_one_that_replaces_it(short_dir: Path) -> None:
    config = config_in(short_dir)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = json.dumps([sys.executable, "-c", BINDER])
    job = f"name = 'job'\n[run]\ncommand = {command}\n[rendezvous]\nmaster_port = {port}\n".encode()
    async with serving(config):
        first = await ask(config.control, replacing("1", job_file=job))
        assert isinstance(first, Done)
        await wait_for("rank 0 to listen", lambda: is_taken(port))
        second = await ask(config.control, replacing("2", job_file=job))
        assert isinstance(second, Done)
        assert (await status(config, first.run)).state == "stopped"


async def test_a_replacement_of_nothing_is_a_start(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        assert isinstance(await ask(config.control, replacing("1")), Done)


async def test_a_replacement_that_is_asked_for_again_is_the_same_one(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        await started(config, "1")
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(config.control, replacing("2"))) for _ in range(3)]
        runs = {reply.run for task in asked if isinstance(reply := task.result(), Done)}
        assert len(runs) == 1
        assert await ask(config.control, replacing("2")) == asked[0].result()
        assert len(await states(config)) == 2


async def test_two_that_replace_one_run_come_one_after_the_other(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        await started(config, "1")
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(config.control, replacing(str(n)))) for n in range(2, 5)]
        assert {type(task.result()) for task in asked} == {Done}
        *before, last = (await states(config)).values()
        assert before == ["stopped"] * 3
        assert last in ("starting", "running")


async def test_each_of_two_that_replace_a_run_is_told_what_it_waits_for(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        old = await stubborn(config)
        async with talking(config.control, replacing("2")) as first, talking(config.control, replacing("3")) as second:
            for client in (first, second):
                told = decode_reply(await client.frame() or b"")
                assert isinstance(told, Statuses)
                assert [run.run for run in told.runs] == [old]
            await ask(config.control, StopRun(run="job", now=True))
            for client in (first, second):  # in whichever order they take their turns
                *_, last = [decode_reply(frame) async for frame in frames(client)]
                assert isinstance(last, Done)


async def test_a_start_that_replaces_nothing_is_refused_while_another_one_does(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        await stubborn(config)
        async with talking(config.control, replacing("2")) as client:
            assert isinstance(decode_reply(await client.frame() or b""), Statuses)
            refusal = await ask(config.control, start("3"))
            assert isinstance(refusal, Failure)
            assert refusal.code == "F101"
            await ask(config.control, StopRun(run="job", now=True))
            *_, last = [decode_reply(frame) async for frame in frames(client)]
            assert isinstance(last, Done)


async def test_a_client_that_goes_away_leaves_its_replacement_under_way(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        await stubborn(config)
        async with talking(config.control, replacing("2")) as client:
            assert isinstance(decode_reply(await client.frame() or b""), Statuses)
        await ask(config.control, StopRun(run="job", now=True))
        reply = await ask(config.control, replacing("2"))
        assert isinstance(reply, Done)
        assert [*await states(config)][-1] == reply.run


@pytest.mark.parametrize("then", [RestartRun(run="job", reason=""), StopRun(run="job", now=True)])
async def test_whatever_else_is_asked_of_a_run_that_makes_way_it_makes_way(
    short_dir: Path, then: RestartRun | StopRun
) -> None:
    config = config_in(short_dir)
    async with serving(config):
        old = await started(config, "1")
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask(config.control, replacing("2")))
            group.create_task(ask(config.control, then))
        reply = asked.result()
        assert isinstance(reply, Done)
        assert (await status(config, old)).state == "stopped"
        assert (await status(config, reply.run)).state in ("starting", "running", "stopped")


async def test_a_run_that_ends_by_itself_while_it_makes_way_is_no_hindrance(short_dir: Path) -> None:
    config = config_in(short_dir)
    short = start("", command='["true"]').job_file
    async with serving(config):
        for number in range(5):
            assert isinstance(await ask(config.control, replacing(str(number), job_file=short)), Done)
        *before, _ = (await states(config)).values()
        assert set(before) <= {"succeeded", "stopped"}


async def test_a_job_that_can_never_run_stops_nothing(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        old = await started(config, "1")
        refusal = await ask(config.control, replacing("2", env={b"A": b"x" * (MAX_FRAME_BYTES - 2000)}))
        assert isinstance(refusal, Failure)
        assert refusal.code == "F105"
        refusal = await ask(config.control, replacing("3", settings=("stop.grace=5",)))
        assert isinstance(refusal, Failure)
        assert refusal.code == "J000"
        assert (await status(config, old)).state in ("starting", "running")


async def test_a_run_that_is_not_gone_in_time_is_not_waited_for_any_longer(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "MAKE_WAY_S", -29.5)  # half a second of the 30 of grace
    config = config_in(short_dir)
    async with serving(config):
        old = await stubborn(config)
        refusal = await ask(config.control, replacing("2"))
        assert isinstance(refusal, Failure)
        assert (refusal.code, old in refusal.message) == ("F108", True)
        assert (await status(config, old)).state == "stopping"

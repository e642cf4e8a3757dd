"""supervisor/runner/runner.py: what a runner's machine is told, and what is left out."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from protocol.messages import encode
from protocol.messages.member import (
    Answer,
    Hello,
    JobTold,
    JobWanted,
    Question,
    Renewal,
    Wait,
    Welcome,
    decode_to_coordinator,
)
from protocol.versions import VERSIONS
from supervisor.runner.runner import Runner
from supervisor.shell import driver, tls_server
from supervisor.shell.channel import Channel
from supervisor.shell.lease_page import LeasePage
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import server_context
from tests.runner.solo import shell_job, task_of

TIMEOUT_S = 20.0
BEHIND = 100
QUESTION = Question(number=1, epoch=1, node="b", incarnation="bb")


async def test_a_flood_of_questions_costs_a_runner_neither_its_line_nor_its_life(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its machine has no time for is left out: it is asked again."""
    monkeypatch.setattr(driver, "INBOX_MAX", BEHIND)
    job, heard = shell_job("sleep 60", short_dir, 1), asyncio.Queue[object]()

    def hear(channel: Channel, frame: bytes) -> None:
        match decode_to_coordinator(frame):
            case Renewal() as renewal:
                channel.send(encode(Answer(number=renewal.number, epoch=1, order=Wait())))
            case Hello() as hello if heard.empty():
                channel.send(encode(Welcome(version=VERSIONS[-1], epoch=1, job=job)))
                for _ in range(3 * BEHIND):
                    channel.send(encode(QUESTION))
                channel.send(encode(JobWanted(version=VERSIONS[-1], epoch=1)))  # answered, if it is still there
                heard.put_nowait(hello)
            case message:
                heard.put_nowait(message)

    key = short_dir / "fleet.pem"
    write_once(str(key), credential())
    listener = await tls_server.listen(
        "127.0.0.1", 0, server_context(key), lambda: Channel(lambda _: None, hear, lambda _: None)
    )
    (short_dir / "coordinator").write_text(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}\n")
    runner = Runner(
        task_of(short_dir, "aa"),
        lock_fd=0,
        cgroup=None,
        guard_pid=os.getppid(),
        page=LeasePage.make(),
        precedence=(os.nice(0), 0),
    )
    try:
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(runner.run())
            assert isinstance(await heard.get(), Hello)
            while not isinstance(message := await heard.get(), JobTold):
                assert not isinstance(message, Hello), "it has lost its line"
            running.cancel()
    finally:
        listener.close()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

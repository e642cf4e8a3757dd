"""supervisor/runner/link.py: a connection on which nothing is answered is given up for a new one."""

import asyncio
from pathlib import Path

import pytest

from protocol.messages import encode
from protocol.messages.member import Hello, Welcome, decode_to_coordinator
from protocol.versions import VERSIONS
from supervisor.runner import link
from supervisor.runner.link import Link
from supervisor.shell import tls_server
from supervisor.shell.channel import Channel
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import client_context, server_context
from tests.protocol.build import job_spec, submitted

TIMEOUT_S = 20.0


async def test_a_connection_that_is_not_answered_is_given_up_for_a_new_one(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENT_S", 0.3)
    monkeypatch.setattr(link, "RETRY_S", 0.01)
    key, place = short_dir / "fleet.pem", short_dir / "coordinator"
    write_once(str(key), credential())
    happened: asyncio.Queue[str] = asyncio.Queue()

    def hear(channel: Channel, frame: bytes) -> None:
        if isinstance(decode_to_coordinator(frame), Hello):
            channel.send(encode(Welcome(version=VERSIONS[-1], epoch=1, job=submitted(job_spec()))))

    listener = await tls_server.listen(
        "127.0.0.1", 0, server_context(key), lambda: Channel(lambda _: None, hear, lambda _: None)
    )
    place.write_text(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}\n")
    line = Link(
        Hello(versions=VERSIONS, fleet="default", node="a", run="j@1", incarnation="aa"),
        place,
        client_context(key),
        on_welcome=lambda _: happened.put_nowait("welcome"),
        on_answer=lambda _: happened.put_nowait("answer"),
        on_lost=lambda: happened.put_nowait("lost"),
    )
    try:
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            linked = group.create_task(line.run())
            assert [await happened.get() for _ in range(4)] == ["welcome", "lost", "welcome", "lost"]
            linked.cancel()
    finally:
        listener.close()

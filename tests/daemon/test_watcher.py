"""supervisor/daemon/watcher.py: who watches a run of a thousand nodes keeps the coordinator from nothing else."""

import asyncio
import ssl
from pathlib import Path

import pytest

from protocol.coordinator_events import StopRequested
from protocol.framing import FrameDecoder
from protocol.messages.control import NodeStatus, RunStatus, Statuses, Watch, decode_reply
from supervisor.daemon.fetch import Fetcher
from supervisor.daemon.starting import Starting
from supervisor.daemon.watcher import LOOK_MAX_S, LOOK_MIN_S, Watcher
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s
from supervisor.shell.dial import Dialer
from tests.daemon.serving import wait_for
from tests.daemon.test_jobs import coordinating
from tests.protocol.build import job_spec, submitted


class Sent(asyncio.Transport):
    """A client that reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[RunStatus] = []
        self._decoder = FrameDecoder()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for frame in self._decoder.feed(bytes(data)):
            reply = decode_reply(frame)
            assert isinstance(reply, Statuses)
            self.snapshots += reply.runs

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class NoNodes:
    """A fleet without any."""

    def status(self) -> tuple[NodeStatus, ...]:
        return ()

    def record_of(self, node: str) -> None:
        return None


def to_client(transport: Sent) -> Channel:
    channel = Channel(lambda _: None, lambda _, __: None, lambda _: None)
    channel.connection_made(transport)
    return channel


@pytest.mark.parametrize(("runners", "pause_s"), [(1000, LOOK_MAX_S), (1, LOOK_MIN_S)])
async def test_a_run_with_many_runners_is_told_a_few_times_a_second_and_its_end_always(
    short_dir: Path, runners: int, pause_s: float
) -> None:
    async with coordinating(short_dir) as (jobs, journal), asyncio.TaskGroup() as group:
        job = submitted(job_spec())
        run = jobs.find(await Starting(jobs, journal, None).start(job.spec, job.submitter, "1"))
        transport = Sent()
        run.channels |= dict.fromkeys(map(str, range(runners)), channel := to_client(transport))
        fetcher = Fetcher(NoNodes(), Dialer(ssl.create_default_context(), lambda _: None), "default")
        request = Watch(run=run.job.run, follow=True, snapshots=True)
        before_s = boot_s()
        watcher = Watcher(jobs, journal, fetcher, "a", channel, request, "a")
        watching = group.create_task(watcher.run())
        await wait_for("the first snapshot", lambda: transport.snapshots)
        while boot_s() - before_s < 0.7:
            run.changes.ring()
            await asyncio.sleep(0)
        # A loop counts in whole milliseconds, and so may look one too early.
        assert len(transport.snapshots) <= 2 + (boot_s() - before_s) / (pause_s - 0.001)
        run.changes.ring()
        assert watcher.look_in_s() <= pause_s
        await jobs.ask(run, StopRequested(None, False, "me"))
        await watching
        assert [one.state for one in transport.snapshots[-2:]] == ["starting", "stopped"]

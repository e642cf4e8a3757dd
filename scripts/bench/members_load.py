"""So many runners in one process, against one of members_server.py's servers: what it takes to connect them, to form a
generation of them, to hear their renewals, to have them back after a restart, and to form the next generation without
one of them.

    members_load.py supd|bare COUNT        prints JSON
"""

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from members_server import FLEET, HANDSHAKE_TIMEOUT_S, HOST, node_name

from protocol.ids import NO_GENERATION
from protocol.messages import encode
from protocol.messages.member import (
    Answer,
    Assignment,
    Hello,
    Offer,
    Part,
    RankExit,
    RankReport,
    Renewal,
    Run,
    Stop,
    Welcome,
    decode_to_runner,
)
from protocol.timing import DEFAULTS
from protocol.versions import VERSIONS
from supervisor.shell.channel import Channel
from supervisor.shell.tls import client_context

IN_FLIGHT = 100  # handshakes at a time
RENEWAL_S = 1.0
LIMIT_S = 60.0
SETTLE_S = 2.0  # for memory: everybody has renewed
RENEWING_S = 10.0  # for the processor: nothing but renewals
TTL_S = DEFAULTS.ttl_s  # after it a coordinator that has begun anew may miss somebody


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Runner:
    """One that says it does at once whatever it is told."""

    def __init__(
        self,
        number: int,
        run: str,
        on_run: Callable[[int], None],
        on_welcome: Callable[["Runner"], None],
        nproc: int = 1,
    ) -> None:
        self.node = node_name(number)
        self.incarnation = f"i{number:05}"
        self._run = run
        self._on_run = on_run
        self._on_welcome = on_welcome
        self._nproc = nproc
        self._port = 20_000 + number % 10_000
        self.renewals = 0
        self._seat: Assignment | None = None
        self._part = Part.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self.channel = self.new_channel()

    def new_channel(self) -> Channel:
        """The one that it talks by from now on; it says nothing else before it is welcome."""
        self.close()
        self.channel = Channel(self._on_open, self._on_frame, lambda _: None)
        return self.channel

    def _on_open(self, channel: Channel) -> None:
        hello = Hello(versions=VERSIONS, fleet=FLEET, node=self.node, run=self._run, incarnation=self.incarnation)
        channel.send(encode(hello))

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        match decode_to_runner(payload):
            case Welcome():
                self._on_welcome(self)
                if self._seat is not None:
                    self.renew()
            case Answer(order=Run(assignment=seat)) if self._seat is None or self._seat.generation < seat.generation:
                self._seat, self._part = seat, Part.RUNNING
                self.renew()
                self._on_run(seat.generation)
            case Answer(order=Stop()) if self._part is Part.RUNNING:
                self._part = Part.STOPPED
                self.renew()
            case _:
                pass  # it goes on

    @property
    def is_running(self) -> bool:
        """Whether nobody has told it to stop."""
        return self._part is Part.RUNNING

    def renew(self) -> None:
        """Say everything, now and each second from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(RENEWAL_S, self.renew)
        self.renewals += 1
        is_free = self._part is not Part.RUNNING
        self.channel.send(
            encode(
                Renewal(
                    number=self.renewals,
                    generation=NO_GENERATION if self._seat is None else self._seat.generation,
                    part=self._part,
                    ranks=self._ranks(),
                    offer=Offer(slots=self._nproc, address=HOST, port=self._new_port(), witness_port=1)
                    if is_free
                    else None,
                )
            )
        )

    def _new_port(self) -> int:
        """Another one than the last generation's."""
        return self._port + (0 if self._seat is None else 10_000 * (1 + self._seat.generation % 2))

    def _ranks(self) -> tuple[RankReport, ...]:
        if self._seat is None:
            return ()
        ended = RankExit(signal=15, order=0, wall_s=0.0, ran_s=1.0, stopped_by_us=True)
        exit = ended if self._part is Part.STOPPED else None
        first = self._seat.first_rank
        return tuple(
            RankReport(rank=first + local_rank, local_rank=local_rank, pid=1, started=True, exit=exit)
            for local_rank in range(self._nproc)
        )

    def close(self) -> None:
        """Nothing is said any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Load:
    """All runners, and when the last of them was where it is to be."""

    def __init__(self, count: int, port: int, run: str, credential: Path, nproc: int = 1) -> None:
        self._port = port
        self._tls = client_context(credential)
        self._runs: dict[int, int] = {}  # generation -> runners that were told to run it
        self._welcome: set[Runner] = set()  # to the coordinator that there is now
        self._changed = asyncio.Event()
        self.runners = [Runner(number, run, self._on_run, self._on_welcome, nproc) for number in range(count)]

    def _on_welcome(self, runner: Runner) -> None:
        self._welcome.add(runner)
        self._changed.set()

    def _on_run(self, generation: int) -> None:
        self._runs[generation] = self._runs.get(generation, 0) + 1
        self._changed.set()

    @property
    def renewals(self) -> int:
        """Said so far."""
        return sum(runner.renewals for runner in self.runners)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def connect(self) -> float:
        """Seconds until the last one is welcome."""
        begun_s = now_s()
        self._welcome.clear()
        turns = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for runner in self.runners:
                group.create_task(self._connect(runner, turns))
        await self._until(lambda: len(self._welcome) == len(self.runners))
        return now_s() - begun_s

    async def _connect(self, runner: Runner, turns: asyncio.Semaphore) -> None:
        async with turns:
            await asyncio.get_running_loop().create_connection(
                lambda: runner.channel, HOST, self._port, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )

    async def come_back(self, port: int) -> float:
        """Seconds until the last one is welcome to the next coordinator. Whoever is then told to stop has been lost."""
        self._port = port
        for runner in self.runners:
            runner.new_channel()
        back_s = await self.connect()
        await asyncio.sleep(TTL_S + SETTLE_S)
        stopped = sum(not runner.is_running for runner in self.runners)
        if stopped:
            raise ValueError(f"{stopped} runners were told to stop after a restart of the coordinator")
        return back_s

    async def form(self) -> float:
        """Seconds from the first offer to the last order to run."""
        begun_s = now_s()
        for runner in self.runners:
            runner.renew()
        await self._until(lambda: self._runs.get(0) == len(self.runners))
        return now_s() - begun_s

    async def form_again(self, tell_gone: Callable[[Runner], None]) -> float:
        """The same for the next generation, from the proof that one runner is gone."""
        lost = self.runners[len(self.runners) // 2]
        lost.close()
        begun_s = now_s()
        tell_gone(lost)
        await self._until(lambda: self._runs.get(1) == len(self.runners) - 1)
        return now_s() - begun_s


def cpu_s(pid: int) -> float:
    """Time on a processor so far (proc_pid_stat(5), utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_kib(pid: int) -> float:
    """Resident memory (proc_pid_statm(5))."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


class Server:
    """One of members_server.py's, as a process of its own. One that begins in the folder of another goes on from it."""

    def __init__(self, kind: str, count: int, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("members_server.py")), kind, str(count), str(folder)]
        with (folder / "server.err").open("ab") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err)
        assert self._process.stdout is not None
        self.pid = self._process.pid
        port, run = self._process.stdout.readline().split()
        self.port, self.run = int(port), run.decode()

    def tell_gone(self, runner: Runner) -> None:
        """Prove that this one is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"gone {runner.node} {runner.incarnation}\n".encode())
        self._process.stdin.flush()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.communicate()


async def measure(kind: str, count: int, folder: Path, last: contextlib.ExitStack) -> dict[str, float]:
    """All figures of one server."""
    server = Server(kind, count, folder)
    last.callback(server.kill)
    before_kib = rss_kib(server.pid)
    load = Load(count, server.port, server.run, folder / "fleet.pem")
    figures = {"connect_s": await load.connect()}
    if kind == "supd":
        figures["form_s"] = await load.form()
    await asyncio.sleep(SETTLE_S)
    figures["rss_kib"] = (rss_kib(server.pid) - before_kib) / count
    if kind == "supd":
        begun_s, used_s, said = now_s(), cpu_s(server.pid), load.renewals
        await asyncio.sleep(RENEWING_S)
        used_s, lasted_s, said = cpu_s(server.pid) - used_s, now_s() - begun_s, load.renewals - said
        figures["core_percent"], figures["renewal_us"] = 100 * used_s / lasted_s, 1e6 * used_s / said
        server.kill()
        server = Server(kind, count, folder)
        last.callback(server.kill)
        figures["back_s"] = await load.come_back(server.port)
        figures["form_again_s"] = await load.form_again(server.tell_gone)
    return figures


def main() -> None:
    """One server, one load."""
    kind, count = sys.argv[1], int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="supd-bench-members-") as name:
        folder = Path(name)
        last = contextlib.ExitStack()
        try:
            print(json.dumps(uvloop.run(measure(kind, count, folder, last))))
        except (TimeoutError, ValueError, OSError, BaseExceptionGroup) as exc:
            sys.exit(f"members_load: {exc!r}; the server said:\n{(folder / 'server.err').read_text()[-2000:]}")
        finally:
            last.close()


if __name__ == "__main__":
    main()

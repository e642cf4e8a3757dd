"""Log servers of so many nodes in one process, with the files of all ranks; one supd that follows them all, and one
supctl; what that takes.

    fan_in_load.py NODES NPROC SECONDS        prints JSON
"""

import asyncio
import functools
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import uvloop
from members_load import Load, now_s
from members_server import FLEET, HOST, node_name

from protocol.messages.fleet import FetchLogs
from supervisor.daemon.door import Door
from supervisor.daemon.local_files import LocalFiles
from supervisor.logs.log_file import LogFile
from supervisor.logs.paths import make_generation_dir, stream_path
from supervisor.shell.clock import wall_s
from supervisor.shell.tls import ensure_credential, server_context

EVERY_S = 0.1
"""Between two lines of a rank."""

PAST_LINES = 200
LIMIT_S = 120.0


def peak_mib(pid: int) -> float:
    """The most memory a process has had so far (VmHWM)."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


class Ranks:
    """The output of all ranks, as their runners would have it on their nodes' disks."""

    def __init__(self, folder: Path, run: str, nodes: int, nproc: int) -> None:
        self.numbers = 0
        self._files = []
        for rank in range(nodes * nproc):
            logs_dir = folder / node_name(rank // nproc) / run
            path = stream_path(logs_dir, 0, rank, "out")
            self._files.append(LogFile(path, functools.partial(make_generation_dir, logs_dir, 0)))

    def write(self) -> None:
        """One more line of every rank."""
        for rank, file in enumerate(self._files):
            file.write(f"{rank} {self.numbers} {'x' * 88}\n".encode(), [(0, wall_s())])
        self.numbers += 1


async def measure(folder: Path, nodes: int, nproc: int, seconds: float) -> dict[str, float]:
    """All figures."""
    ensure_credential(folder / "fleet.pem")
    control = folder / "control.sock"
    (folder / "supd.toml").write_text(f'[listen]\ncontrol = "{control}"\n[state]\ndir = "{folder}"\n')
    async with asyncio.TaskGroup() as group:
        listening: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        serving = group.create_task(_serve(folder, nodes, listening))
        (folder / "ports.json").write_text(json.dumps(await listening))
        command = [
            sys.executable,
            str(Path(__file__).with_name("fan_in_server.py")),
            str(folder),
            str(nodes),
            str(nproc),
        ]
        with (folder / "server.err").open("ab") as err:
            server = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err
            )
        assert server.stdout is not None
        try:
            port, run = (await server.stdout.readline()).decode().split()
            load = Load(nodes, int(port), run, folder / "fleet.pem", nproc)
            await load.connect()
            await load.form()
            return await _follow(folder, run, server.pid, Ranks(folder, run, nodes, nproc), seconds, nodes * nproc)
        finally:
            server.kill()
            await server.wait()
            serving.cancel()


async def _serve(folder: Path, nodes: int, listening: "asyncio.Future[list[int]]") -> None:
    """One log server a node, until cancelled."""
    tls, ports = server_context(folder / "fleet.pem"), []
    async with asyncio.TaskGroup() as group:
        for number in range(nodes):
            door = Door(FLEET, HOST)
            files = LocalFiles(node_name(number), folder / node_name(number))
            door.handlers[FetchLogs] = files.take_logs
            group.create_task(files.run())
            server = await door.listen(HOST, 0, tls)
            ports.append(server.sockets[0].getsockname()[1])
        listening.set_result(ports)


async def _follow(folder: Path, run: str, supd: int, ranks: Ranks, seconds: float, count: int) -> dict[str, float]:
    for _ in range(PAST_LINES):
        await asyncio.to_thread(ranks.write)
    seen = bytearray()
    supctl = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("supctl")),
        *("logs", "-f", run, "-r", "all", "--no-prefix"),
        env=os.environ | {"SUPD_ADDR": str(folder / "control.sock")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # where the machine is busy, it says whom it waits for
    )
    changed = asyncio.Event()

    async def read() -> None:
        assert supctl.stdout is not None
        while data := await supctl.stdout.read(1 << 20):
            seen.extend(data)
            changed.set()

    reading = asyncio.get_running_loop().create_task(read())

    async def until(lines: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while seen.count(b"\n") < lines:
                changed.clear()
                await changed.wait()

    await until(count * PAST_LINES)
    begun_s = now_s()
    while now_s() < begun_s + seconds:
        due_s = now_s() + EVERY_S
        await asyncio.to_thread(ranks.write)
        await asyncio.sleep(max(due_s - now_s(), 0))
    written_s = now_s()
    await until(count * ranks.numbers)
    late_s = now_s() - written_s
    found = Counter(re.findall(rb"^(\d+ \d+) x{88}$", seen, re.MULTILINE))
    figures = {"supd": peak_mib(supd), "supctl": peak_mib(supctl.pid), "late_s": late_s}
    figures["wrong"] = (
        count * ranks.numbers - sum(number == 1 for number in found.values()) + (seen.count(b"\n") - len(found))
    )
    figures["lines_a_second"] = count * (ranks.numbers - PAST_LINES) / (written_s - begun_s)
    supctl.kill()
    await supctl.wait()
    await reading
    return figures


def main() -> None:
    """One fleet."""
    nodes, nproc, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="supd-bench-fan-") as name:
        folder = Path(name)
        try:
            print(json.dumps(uvloop.run(measure(folder, nodes, nproc, seconds))))
        except (TimeoutError, ValueError, OSError, BaseExceptionGroup) as exc:
            sys.exit(f"fan_in_load: {exc!r}; the server said:\n{(folder / 'server.err').read_text()[-2000:]}")


if __name__ == "__main__":
    main()

"""A fleet of real supd for tests: nodes a, b, c … at 127.0.0.2, .3, .4 …, with one key; nothing is left behind."""

import contextlib
import json
import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from supervisor.shell.make_credential import credential, write_once
from tests.e2e.supd import Supd, wait_for

FIRST_HOST = 2  # 127.0.0.1 is for everybody else


class Fleet:
    """Several supd. The first one hosts the coordinator; `nodes` has them all by name, started or not."""

    def __init__(self, folder: Path, count: int = 2, *, config: str = "", listed: int = 1) -> None:
        """`config` is more TOML of every supd.toml; so many nodes are `listed` in `[fleet] join`."""
        addresses = self._addresses(count)
        self._listed = addresses[:listed]
        self.port = self._port(addresses)
        self.folder = folder
        self.addresses = {chr(ord("a") + number): address for number, address in enumerate(addresses)}
        key = credential()
        self.nodes: dict[str, Supd] = {}
        for name in self.addresses:
            self.nodes[name] = self._make(name, key, config)

    def _addresses(self, count: int) -> list[str]:
        return [f"127.0.0.{FIRST_HOST + number}" for number in range(count)]

    def _port(self, addresses: Sequence[str]) -> int:
        return free_port(addresses)

    def _argv(self, name: str) -> tuple[str, ...]:
        """What goes in front of every command line of that node."""
        return ()

    def _make(self, name: str, key: bytes, config: str) -> Supd:
        folder = self.folder / f"{self.folder.name[-6:]}{name}"  # unique: what runs below it is known by its name
        folder.mkdir()
        supd = Supd(folder, config=config, argv=self._argv(name))
        supd.state.mkdir(mode=0o700)
        write_once(str(supd.state / "fleet.pem"), key)
        text = supd.config.read_text().replace('"127.0.0.1:0"', f'"{self.addresses[name]}:{self.port}"')
        join = json.dumps([f"{address}:{self.port}" for address in self._listed])
        supd.config.write_text(f'[node]\nname = "{name}"\n[fleet]\njoin = {join}\n{text}')
        return supd

    def __getitem__(self, name: str) -> Supd:
        return self.nodes[name]

    @property
    def host(self) -> Supd:
        """The node whose supd hosts the coordinator."""
        return self.nodes["a"]

    def start(self) -> None:
        """Start all nodes, and wait until every one of them belongs to the fleet."""
        for supd in self.nodes.values():
            supd.launch()
        self.host.wait_until_ready()
        self.wait_joined(*self.nodes)

    def wait_joined(self, *names: str) -> None:
        """Wait until the host says that these nodes answer."""

        def are_up() -> bool:
            known = {node["node"]: node["state"] for node in self.host.json("nodes")["nodes"]}
            return all(known.get(name) in ("ready", "standby") for name in names)

        wait_for(f"{', '.join(names)} to join", are_up)

    def job(self, name: str, worker: str, *args: str, nnodes: int | str = 0, nproc: int = 1, tables: str = "") -> Path:
        """A job for the whole fleet, or for so many nodes; `tables` is more TOML, keys of [topology] first."""
        size = nnodes or len(self.nodes)
        written = f'"{size}"' if isinstance(size, str) else str(size)
        return self.host.job(name, worker, *args, nproc=nproc, tables=f"nnodes = {written}\n{tables}")

    def ranks(self, run: str) -> list[Any]:
        """The ranks of the newest generation, by rank."""
        ranks = self.host.ranks(run)
        return sorted(ranks, key=lambda rank: int(rank["rank"]))

    def wait_generation(self, run: str, generation: int) -> Any:
        """Wait until every rank of a run is known to run at this generation; returns the run's status.

        (A host that has begun anew says "running" by its journal before the runners have told it of their ranks.)
        """

        def look() -> Any:
            status = self.host.status(run)
            is_running = (status["state"], status["generation"]) == ("running", generation)
            return status if is_running and status["ranks_running"] == status["ranks"] else None

        return wait_for(f"generation {generation} of {run}", look)

    def events(self, run: str, kind: str) -> list[Any]:
        """All events of a kind, oldest first."""
        lines = self.host.supctl("events", run, "--json", "--type", kind).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def workers(self) -> list[int]:
        """All that ranks have left alive, on whichever node: they carry the mark of the node they were started at."""
        return sorted({pid for supd in self.nodes.values() for pid in supd.survivors()})

    def close(self) -> None:
        """End everything, the host first: it stops all runs."""
        with contextlib.ExitStack() as last:
            for supd in reversed(self.nodes.values()):
                last.callback(supd.close)


def free_port(addresses: Sequence[str]) -> int:
    """A port that is free at all of these, below those that the kernel gives to connections."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(10_000, low)
        with contextlib.ExitStack() as tried:
            try:
                for address in addresses:
                    tried.enter_context(socket.socket()).bind((address, port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@contextlib.contextmanager
def running_fleet(folder: Path, count: int = 2, *, config: str = "", listed: int = 1) -> Iterator[Fleet]:
    """A fleet for the length of a `with` block."""
    fleet = Fleet(folder, count, config=config, listed=listed)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()

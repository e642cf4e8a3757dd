"""A fleet of one machine: N supd with folders of their own, in network namespaces or on 127.0.0.2, .3 …

All that is known of it stands in its folder, and all its processes carry a token of it in their environment, so that
it can be ended by anybody, at any time, whatever ended the command that made it.
"""

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.hosts.keeper import IFNAME
from scripts.hosts.namespaces import Host, Hosts, HostsFailed, make_hosts, names
from supervisor.daemon import beats_dir
from supervisor.shell import tree
from supervisor.shell.cgroup import group_name
from supervisor.shell.clock import boot_s
from supervisor.shell.tls import ensure_credential

MARKER = "LOCAL_FLEET"  # no SUPD_ in front: workers do not inherit what begins so
PORT = 29410
PORTS = range(20_000, 29_000)
"""On 127.0.0.x, where other fleets may be made at the same time: below those that the kernel gives out (ip(7))."""

TRIES = 50
LIMIT_S = 60.0
END_LIMIT_S = 10.0
FOLDER_MAX_BYTES = 80
"""The path of a unix socket has at most 107 bytes (unix(7))."""


class FleetFailed(Exception):
    """The fleet cannot be had, in one line."""


@dataclass(frozen=True)
class Node:
    """One node; its supd may have ended."""

    name: str
    address: str
    pid: int  # of its supd
    started_ticks: int  # a pid is used again; a pid with its start time is not

    @property
    def is_alive(self) -> bool:
        """Whether its supd runs."""
        process = tree.look(self.pid)
        return process is not None and process.is_alive and process.start_ticks == self.started_ticks


class LocalFleet:
    """A fleet that is there, by its folder."""

    def __init__(self, folder: Path) -> None:
        """Raises FleetFailed where there is none, or another user's."""
        self.folder = folder
        try:
            if folder.lstat().st_uid != os.geteuid():
                raise FleetFailed(f"{folder} belongs to another user")
            stored = json.loads((folder / "fleet.json").read_text())
        except (OSError, ValueError) as exc:
            raise FleetFailed(f"there is no fleet in {folder}: scripts/local_fleet up 3") from exc
        self.token: str = stored["token"]
        self.port: int = stored["port"]
        self._keeper: int | None = stored["keeper"]
        self.nodes = {node["name"]: Node(**node) for node in stored["nodes"]}
        hosts = [Host(**host) for host in stored["hosts"]]
        self.hosts = Hosts(folder, hosts) if hosts else None

    # --- its making ----------------------------------------------------------------------------------------------

    @classmethod
    def up(cls, folder: Path, count: int, *, in_namespaces: bool = False) -> "LocalFleet":
        """Make a fleet of nodes a, b, c …, of which a hosts; returns once all have joined.

        Raises FleetFailed or HostsFailed; then nothing of it is left.
        """
        if len(os.fsencode(folder)) > FOLDER_MAX_BYTES:
            raise FleetFailed(f"{folder} is too long for the path of a unix socket: name a shorter one with --dir")
        nodes = names(count)
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            raise FleetFailed(f"{folder} is there already: scripts/local_fleet down, or another --dir") from None
        token = secrets.token_hex(8)
        _write(folder, {"token": token, "port": 0, "keeper": None, "nodes": [], "hosts": []})
        try:
            cls(folder)._make(nodes, in_namespaces)
            fleet = cls(folder)
            fleet.wait_until_formed()
        except BaseException:
            cls(folder).down()
            raise
        return fleet

    def _make(self, names: list[str], in_namespaces: bool) -> None:
        ensure_credential(self.folder / "fleet.pem")
        if in_namespaces:
            self.hosts, keeper = make_hosts(self.folder, len(names), self.env(), ends_with_us=False)
            keeper.returncode = 0  # it stays, and is nobody's to wait for
            self._keeper, self.port = keeper.pid, PORT
            addresses = [host.address for host in self.hosts.of.values()]
            join = f"{names[0]}:{PORT}"
        else:
            addresses = [f"127.0.0.{number}" for number in range(2, 2 + len(names))]
            self.port = free_port(addresses)
            join = f"{addresses[0]}:{self.port}"
        for name, address in zip(names, addresses, strict=True):
            self.nodes[name] = self._start(name, address, join)
            self._write()

    def _start(self, name: str, address: str, join: str) -> Node:
        own = self.folder / name
        own.mkdir()
        (own / "supd.toml").write_text(
            f'[node]\nname = "{name}"\n'
            f'[listen]\ncontrol = "{own}/control.sock"\npeer = "{address}:{self.port}"\n'
            f'[fleet]\nname = "local"\njoin = ["{join}"]\ncredential = "{self.folder}/fleet.pem"\n'
            f'[state]\ndir = "{own}/state"\n[log]\nformat = "text"\n'
        )
        command = [sys.executable, str(BIN / "supd"), "run", "--config", str(own / "supd.toml")]
        with (own / "supd.log").open("ab") as log:
            supd = subprocess.Popen(
                self._on(name, command),
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = tree.look(supd.pid)
        assert process is not None  # our child: at worst a zombie
        supd.returncode = 0  # it stays, and is nobody's to wait for
        return Node(name, address, supd.pid, process.start_ticks)

    def _write(self) -> None:
        nodes = [asdict(node) for node in self.nodes.values()]
        hosts = [asdict(host) for host in self.hosts.of.values()] if self.hosts else []
        document = {"token": self.token, "port": self.port, "keeper": self._keeper, "nodes": nodes, "hosts": hosts}
        _write(self.folder, document)

    def wait_until_formed(self) -> None:
        """Wait until every node answers and the host has taken all of them in; raises FleetFailed."""
        for node in self.nodes.values():
            _wait(lambda node=node: self._has_joined(node), lambda node=node: self._tail(node))  # type: ignore[misc]

    def _has_joined(self, node: Node) -> bool:
        if not node.is_alive:
            raise FleetFailed(f"supd of node {node.name} has ended:\n{self._tail(node)}")
        done = self.supctl(node.name, "nodes", "--json")
        return done.returncode == 0 and {
            seen["node"] for seen in json.loads(done.stdout)["data"]["nodes"] if seen["state"] != "unreachable"
        } >= set(self.nodes)

    def _tail(self, node: Node) -> str:
        lines = (self.folder / node.name / "supd.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-10:])

    # --- its use -------------------------------------------------------------------------------------------------

    def control(self, name: str) -> Path:
        """The socket by which supctl talks to a node."""
        return self.folder / self.node(name).name / "control.sock"

    def node(self, name: str) -> Node:
        """Raises FleetFailed where there is no such node."""
        if name not in self.nodes:
            raise FleetFailed(f"no node is named {name}: there are {', '.join(self.nodes)}")
        return self.nodes[name]

    def env(self, name: str | None = None) -> dict[str, str]:
        """The environment of what belongs to the fleet, and talks to that node."""
        own = {key: text for key, text in os.environ.items() if not key.startswith(("SUPD_", "SUPCTL_"))}
        own |= {MARKER: self.token, "PATH": f"{BIN}:{os.environ.get('PATH', os.defpath)}"}
        own |= {"VIRTUAL_ENV": str(BIN.parent), "GLOO_SOCKET_IFNAME": self.interface}
        return own | ({"SUPD_ADDR": str(self.control(name))} if name else {})

    @property
    def interface(self) -> str:
        """By which the nodes reach each other."""
        return IFNAME if self.hosts else "lo"

    def argv(self, name: str, *command: str) -> list[str]:
        """The command line that runs `command` on that node; with `env(name)`."""
        self.node(name)
        return self._on(name, command)

    def _on(self, name: str, command: Sequence[str]) -> list[str]:
        return self.hosts.of[name].argv(*command) if self.hosts else list(command)

    def supctl(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        """supctl to its end, asking that node."""
        return subprocess.run(
            [sys.executable, str(BIN / "supctl"), *args],
            env=self.env(name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def links(self) -> Hosts:
        """The hosts whose links can be disturbed; raises FleetFailed where there are none."""
        if self.hosts is None:
            raise FleetFailed("nodes on 127.0.0.x have no links: scripts/local_fleet up N --netns, as root")
        return self.hosts

    # --- its end -------------------------------------------------------------------------------------------------

    def down(self) -> list[tree.Process]:
        """End everything of the fleet and remove its folder; returns the processes that did not end by themselves.

        What has ended already is no hindrance.
        """
        alive = [node for node in self.nodes.values() if node.is_alive]
        for name in self.hosts.of if self.hosts else ():
            with contextlib.suppress(HostsFailed):
                self.links().heal(name)
        if alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.supctl(alive[0].name, "stop", "--all", "--now")
        for node in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGTERM)
        give_up_s = boot_s() + END_LIMIT_S  # ready runners end by themselves, and tidy up
        while alive and self._left() and boot_s() < give_up_s:
            _pause()
        left = self._left()
        locks = [lock for name in self.nodes for lock in (self.folder / name / "state/runners").glob("*.lock")]
        stuck = [process.pid for process in tree.kill_all(self._carriers)]
        for lock in locks:
            group = lock.read_text() if lock.exists() else ""
            stuck += tree.sweep(lock.stem, group if group.endswith(group_name(lock.stem)) else None)
            beats_dir.remove(None, lock.stem)
        if stuck:
            raise FleetFailed(f"these processes do not end: {stuck}")
        shutil.rmtree(self.folder)
        return left

    def _left(self) -> list[tree.Process]:
        """What is alive but for the hosts themselves."""
        hosts = {self._keeper, *(host.pid for host in self.hosts.of.values())} if self.hosts else {self._keeper}
        return [process for process in self._carriers() if process.is_alive and process.pid not in hosts]

    def _carriers(self) -> list[tree.Process]:
        variable = f"{MARKER}={self.token}".encode()
        found = []
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            process = tree.look(pid)
            with contextlib.suppress(OSError):
                if process and variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(process)
        return found


BIN = Path(sys.executable).parent


def free_port(addresses: Sequence[str]) -> int:
    """A port that is free on all these addresses."""
    for port in random.sample(PORTS, TRIES):
        with contextlib.ExitStack() as stack:
            try:
                for address in addresses:
                    stack.enter_context(socket.create_server((address, port)))
            except OSError:
                continue
            return port
    raise FleetFailed(f"no port is free on all of {', '.join(addresses)}")


def _write(folder: Path, document: dict[str, Any]) -> None:
    scratch = folder / "fleet.json.new"
    scratch.write_text(json.dumps(document, indent=1))
    scratch.replace(folder / "fleet.json")


def _wait(is_so: Callable[[], bool], tail: Callable[[], str]) -> None:
    give_up_s = boot_s() + LIMIT_S
    while not is_so():
        if boot_s() > give_up_s:
            raise FleetFailed(f"the fleet has not formed within {LIMIT_S:g} s:\n{tail()}")
        _pause()


def _pause() -> None:
    time.sleep(0.05)  # noqa: TID251  # between two looks at other processes

"""Hosts for tests on one machine: an address, a host name and an /etc/hosts each, and links that can be disturbed.

Takes root. Nothing outside the hosts is changed: they are made of namespaces that only their processes know.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOSTS_MAX = 26  # a, b, c …
LIMIT_S = 30.0
COMMANDS = ("ip", "nsenter", "unshare", "mount", "hostname")


WHOLE: dict[str, Any] = {"fate": "pass", "delay_ms": 0.0, "loss_pct": 0.0}
"""A path as it is at first."""

Ends = tuple[str, str]
"""Of a path: a host, and the one that gets its packets."""


class HostsFailed(Exception):
    """The hosts cannot be made, or not be disturbed that way."""


def names(count: int) -> list[str]:
    """The names of so many hosts: a, b, c …"""
    if not 1 <= count <= HOSTS_MAX:
        raise HostsFailed(f"{count} hosts: 1 to {HOSTS_MAX} can be had")
    return [chr(ord("a") + number) for number in range(count)]


def one_way(sources: Iterable[str], destinations: Iterable[str]) -> list[Ends]:
    """The paths from each of these hosts to each of those."""
    others = list(destinations)
    return [(source, other) for source in sources for other in others if source != other]


def both_ways(some: Iterable[str], others: Iterable[str]) -> list[Ends]:
    """The paths between each of these hosts and each of those."""
    there = one_way(some, others)
    return list(dict.fromkeys([*there, *((other, one) for one, other in there)]))


def why_impossible() -> str:
    """Why this machine or user can have no such hosts; "": it can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        return f"{', '.join(missing)} not found: install iproute2, util-linux and hostname"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, check=False).returncode:
        return "namespaces are not permitted here"
    return ""


@dataclass(frozen=True)
class Host:
    """One host."""

    name: str
    address: str
    address6: str
    pid: int  # of a process in it that does nothing

    def argv(self, *command: str) -> list[str]:
        """The command line that runs `command` in this host. (`ip netns exec` would take /sys/fs/cgroup away.)"""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--wd=.", *command]


class Hosts:
    """Hosts that are there, known by the folder with their control socket."""

    def __init__(self, folder: Path, hosts: Sequence[Host]) -> None:
        self._control = folder / "links.sock"
        self.of = {host.name: host for host in hosts}

    def set_link(self, name: str, **link: bool | float) -> None:
        """Set what is named of cut_in, cut_out, delay_ms, loss_pct (switch.py, Link); in effect on return."""
        self._must_know(name)
        self._ask({"host": name, "link": link})

    def cut(self, name: str) -> None:
        """Silence in both directions: nothing is refused, nothing is told."""
        self.set_link(name, cut_in=True, cut_out=True)

    def set_paths(self, ends: Iterable[Ends], **path: str | float) -> None:
        """Set what is named of fate, delay_ms, loss_pct (switch.py, Path); in effect on return, on all at once."""
        ends = list(ends)
        for name in {name for pair in ends for name in pair}:
            self._must_know(name)
        self._ask({"paths": ends, "path": path})

    def heal(self, *names: str) -> None:
        """As it was at first: the links of these hosts (of all, where none is named) and their paths to all others."""
        for name in names or self.of:
            self.set_link(name, cut_in=False, cut_out=False, delay_ms=0.0, loss_pct=0.0)
        self.set_paths(both_ways(names or self.of, self.of), **WHOLE)

    def links(self) -> dict[str, dict[str, Any]]:
        """All links as they are, with the packets that passed and were lost."""
        links: dict[str, dict[str, Any]] = self._ask({})["links"]
        return links

    def paths(self) -> dict[Ends, dict[str, Any]]:
        """The paths that are not whole."""
        return {(source, destination): path for source, destination, path in self._ask({})["paths"]}

    def _must_know(self, name: str) -> None:
        if name not in self.of:
            raise HostsFailed(f"no node is named {name}: there are {', '.join(self.of)}")

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(LIMIT_S)
                connection.connect(str(self._control))
                connection.sendall(json.dumps(request).encode() + b"\n")
                answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
        except (OSError, ValueError) as exc:
            raise HostsFailed(f"the hosts' keeper does not answer at {self._control}: {exc}") from exc
        if "error" in answer:
            raise HostsFailed(answer["error"])
        return answer


def make_hosts(
    folder: Path, count: int, env: dict[str, str], *, ends_with_us: bool
) -> tuple[Hosts, subprocess.Popen[bytes]]:
    """Make hosts; returns them and their keeper, whose end is theirs (once nothing runs in them any more).

    `ends_with_us`: the keeper ends when its stdin is closed, and so at the latest with this process.
    """
    why = why_impossible()
    if why:
        raise HostsFailed(why)
    found = names(count)
    plan = {name: (f"10.77.0.{number}", f"fd77::{number:x}") for number, name in enumerate(found, 1)}
    hosts_file = folder / "hosts"
    known = "".join(f"{four} {name}\n{six} {name}6\n" for name, (four, six) in plan.items())
    hosts_file.write_text(f"127.0.0.1 localhost\n::1 localhost\n{known}")
    words = [f"{name}={','.join(addresses)}" for name, addresses in plan.items()]
    command = [sys.executable, "-P", "-c", _KEEPER, str(ROOT)]
    with (folder / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [*command, str(folder / "links.sock"), str(hosts_file), "yes" if ends_with_us else "no", *words],
            env=env,
            stdin=subprocess.PIPE if ends_with_us else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert keeper.stdout is not None
    with keeper.stdout:
        word, _, pids = keeper.stdout.readline().decode().partition(" ")
    if word != "ready":
        keeper.wait(LIMIT_S)
        if keeper.stdin is not None:
            keeper.stdin.close()
        raise HostsFailed((folder / "keeper.log").read_text().strip() or "the hosts' keeper ended")
    at = json.loads(pids)
    return Hosts(folder, [Host(name, four, six, at[name]) for name, (four, six) in plan.items()]), keeper


_KEEPER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from scripts.hosts.keeper import main; main()"
"""`-m` would look for scripts.hosts from wherever the user is."""


@contextlib.contextmanager
def hosts(folder: Path, count: int, env: dict[str, str]) -> Iterator[Hosts]:
    """Hosts for the length of a `with` block. Whoever started something in them ends it before."""
    made, keeper = make_hosts(folder, count, env, ends_with_us=True)
    try:
        yield made
    finally:
        keeper.kill()
        keeper.wait(LIMIT_S)
        assert keeper.stdin is not None
        keeper.stdin.close()

"""The process that keeps the hosts of a local fleet: a network namespace with one interface each, and the wire.

    python -m scripts.hosts.keeper CONTROL_SOCKET HOSTS_FILE ENDS_WITH_STDIN NAME=IPV4,IPV6 …

It says `ready` and the pid of a process in each host, then answers on CONTROL_SOCKET: one line of JSON a connection,
`{"host": "b", "link": {"delay_ms": 50}}`, `{"paths": [["a", "b"]], "path": {"fate": "drop"}}` or `{}`, and one line
back with all links, and with the paths that are not whole. The namespaces have no names and no trace on disk: they are
gone once this process and the last one inside them are.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import ipaddress
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from scripts.hosts.switch import Path as PathBetween
from scripts.hosts.switch import Switch
from supervisor.shell.clock import boot_s

IFNAME = "eth0"
MTU = 1500
PACKET_MAX_BYTES = 65535
BURST = 64  # packets of one host, before another one's turn
REQUEST_TIMEOUT_S = 5.0
REQUEST_MAX_BYTES = 65536

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PR_SET_PDEATHSIG = 1

LIBC = ctypes.CDLL(None, use_errno=True)

HOST = 'hostname "$0" && mount --bind "$1" /etc/hosts && ip link set lo up && echo ready && exec sleep infinity'
"""What runs in a host before anybody else, and stays: its namespaces live as long as it does."""


def die_with_parent() -> None:
    """For a child, before its exec: prctl(2)."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """This process and its new children talk through the network of that one (setns(2)) until the block ends."""
    own, other = (os.open(f"/proc/{name}/ns/net", os.O_RDONLY | os.O_CLOEXEC) for name in ("self", pid))
    try:
        _enter(other)
        yield
    finally:
        _enter(own)
        os.close(own)
        os.close(other)


def _enter(network: int) -> None:
    if LIBC.setns(network, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Host:
    """One host: its namespaces, held by a process that sleeps, and the other end of its interface."""

    def __init__(self, name: str, addresses: list[str], hosts_file: Path) -> None:
        self.name = name
        self.addresses = [ipaddress.ip_address(address) for address in addresses]
        self._sleeper = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", HOST, name, str(hosts_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        self.pid = self._sleeper.pid

    def wait_until_there(self) -> None:
        """Wait for the namespaces and give them an interface: a tun, whose packets come to us (tun(4))."""
        assert self._sleeper.stdout is not None
        if self._sleeper.stdout.readline() != b"ready\n":
            sys.exit(f"keeper: cannot make a namespace for {self.name}: that takes root")
        with network_of(self.pid):
            self._plug_in()

    def _plug_in(self) -> None:
        self.tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(self.tun, TUNSETIFF, struct.pack("16sH22x", IFNAME.encode(), IFF_TUN | IFF_NO_PI))
        lines = [f"addr add {address}/{24 if address.version == 4 else 64} dev {IFNAME}" for address in self.addresses]
        lines.append(f"link set {IFNAME} mtu {MTU} up")
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines).encode(), check=True)


class Keeper:
    """Carries packets, and changes links."""

    def __init__(self, hosts: list[Host], control: socket.socket, *, ends_with_stdin: bool) -> None:
        self._switch = Switch((host.name for host in hosts), random.Random())
        self._tun = {host.name: host.tun for host in hosts}
        self._name = {host.tun: host.name for host in hosts}
        self._control = control
        self._epoll = select.epoll()
        for host in hosts:
            self._switch.attach(host.name, *(address.packed for address in host.addresses))
            self._epoll.register(host.tun, select.EPOLLIN)
        self._epoll.register(control.fileno(), select.EPOLLIN)
        if ends_with_stdin:
            self._epoll.register(sys.stdin.fileno(), select.EPOLLIN)

    def run(self) -> NoReturn:
        """Until somebody ends this process, or closes its stdin."""
        while True:
            deadline_s = self._switch.deadline_s
            for fd, _ in self._epoll.poll(None if deadline_s is None else max(0.0, deadline_s - boot_s())):
                if fd in self._name:
                    self._carry(self._name[fd], fd)
                elif fd == self._control.fileno():
                    self._serve_one()
                elif not os.read(fd, 1024):
                    sys.exit()
            for name, packet in self._switch.due(boot_s()):
                self._deliver(name, packet)

    def _carry(self, source: str, tun: int) -> None:
        now_s = boot_s()
        for _ in range(BURST):
            try:
                packet = os.read(tun, PACKET_MAX_BYTES)
            except BlockingIOError:
                return
            for name, out in self._switch.take(source, packet, now_s):
                self._deliver(name, out)

    def _deliver(self, name: str, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # a host may have taken its interface down: then the packet is lost
            os.write(self._tun[name], packet)

    def _serve_one(self) -> None:
        client, _ = self._control.accept()
        with client, contextlib.suppress(OSError):
            client.settimeout(REQUEST_TIMEOUT_S)
            line = client.makefile("rb").readline(REQUEST_MAX_BYTES)
            client.sendall(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, object]:
        try:
            self._change(json.loads(line))
        except (ValueError, KeyError, AttributeError, TypeError) as exc:
            return {"error": str(exc)}
        links = {name: dataclasses.asdict(link) for name, link in self._switch.links.items()}
        paths = [
            [*ends, dataclasses.asdict(path)] for ends, path in self._switch.paths.items() if path != PathBetween()
        ]
        return {"links": links, "paths": paths}

    def _change(self, request: dict[str, Any]) -> None:
        if "host" in request:
            self._switch.links[request["host"]].change(request["link"])
        for source, destination in request.get("paths", ()):  # all of them before the next packet is looked at
            self._switch.paths[source, destination].change(request["path"])


def main() -> None:
    """Make the hosts, say so, and carry packets."""
    path, hosts_file, ends_with_stdin, *words = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    hosts = []
    for word in words:
        name, _, addresses = word.partition("=")
        hosts.append(Host(name, addresses.split(","), Path(hosts_file)))
    for host in hosts:
        host.wait_until_there()
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(path)
        os.chmod(path, 0o600)
        control.listen()
        print("ready", json.dumps({host.name: host.pid for host in hosts}), flush=True)
        Keeper(hosts, control, ends_with_stdin=ends_with_stdin == "yes").run()


if __name__ == "__main__":
    main()

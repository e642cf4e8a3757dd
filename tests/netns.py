"""Hosts of a test's own, in network namespaces, with links that can be cut, delayed and made to lose packets."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts.hosts.keeper import network_of
from scripts.hosts.namespaces import Host, Hosts, hosts, why_impossible
from tests.e2e.fleet import Fleet

needs_namespaces = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")


PORT = 29410


class NamespaceFleet(Fleet):
    """A fleet of real supd, each on a host of its own. `hosts` disturbs their links; a hosts the coordinator."""

    def __init__(self, folder: Path, hosts: Hosts, *, config: str = "") -> None:
        self.hosts = hosts
        super().__init__(folder, len(hosts.of), config=config)

    def _addresses(self, count: int) -> list[str]:
        return [host.address for host in self.hosts.of.values()]

    def _port(self, addresses: Sequence[str]) -> int:
        return PORT

    def _argv(self, name: str) -> tuple[str, ...]:
        return tuple(self.hosts.of[name].argv())

    def close(self) -> None:
        """What is cut off would not hear of its end."""
        self.hosts.heal()
        super().close()


@contextlib.contextmanager
def fleet_in_namespaces(folder: Path, count: int, *, config: str = "") -> Iterator[NamespaceFleet]:
    """A fleet for the length of a `with` block, whose nodes have all joined. Needs root (`needs_namespaces`)."""
    with hosts_in_namespaces(folder, count) as made:
        fleet = NamespaceFleet(folder, made, config=config)
        try:
            fleet.start()
            yield fleet
        finally:
            fleet.close()


@contextlib.contextmanager
def hosts_in_namespaces(folder: Path, count: int) -> Iterator[Hosts]:
    """Hosts a, b, c …; they are gone when this process is, whatever ends it."""
    assert why_impossible() == ""
    with hosts(folder, count, dict(os.environ)) as made:
        yield made


def listening(host: Host) -> socket.socket:
    """A socket that listens on any free port of that host, held by this process (which stays where it is)."""
    with network_of(host.pid):
        made = socket.socket()
    made.bind((host.address, 0))
    made.listen()
    return made


def connected(host: Host, to: socket.socket, timeout_s: float = 30.0) -> socket.socket:
    """A connection from that host; raises TimeoutError where nothing answers."""
    with network_of(host.pid):
        made = socket.socket()
    made.settimeout(timeout_s)
    try:
        made.connect(to.getsockname())
    except OSError:
        made.close()
        raise
    return made

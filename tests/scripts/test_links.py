"""The hosts of scripts/local_fleet, by real TCP over their links."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.hosts.namespaces import Hosts, HostsFailed, both_ways, make_hosts, one_way
from supervisor.shell.clock import boot_s
from tests.e2e.supd import alive, wait_for
from tests.netns import connected, hosts_in_namespaces, listening, needs_namespaces

pytestmark = needs_namespaces

LIMIT_S = 30.0
SHORT_S = 0.3  # long enough for what would arrive in a millisecond


@pytest.fixture
def hosts(short_dir: Path) -> Iterator[Hosts]:
    with hosts_in_namespaces(short_dir, 2) as made:
        yield made


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair(hosts: Hosts) -> Iterator[Pair]:
    """Both ends of one connection: a's and b's."""
    with listening(hosts.of["b"]) as door, connected(hosts.of["a"], door) as a_end:
        b_end, _ = door.accept()
        with b_end:
            b_end.settimeout(LIMIT_S)
            yield a_end, b_end


def is_silent(receiver: socket.socket) -> bool:
    """Whether nothing arrives for a while."""
    receiver.settimeout(SHORT_S)
    try:
        return receiver.recv(100) == b""
    except TimeoutError:
        return True
    finally:
        receiver.settimeout(LIMIT_S)


def test_each_host_has_a_name_an_address_and_knows_the_others_by_name(hosts: Hosts) -> None:
    look = hosts.of["b"].argv("sh", "-c", "hostname; getent ahostsv4 a; getent ahostsv6 a6; pwd")
    seen = subprocess.run(look, capture_output=True, text=True, check=True, cwd="/usr/bin").stdout.splitlines()
    assert (seen[0], seen[1].split()[0], seen[4].split()[0], seen[-1]) == ("b", "10.77.0.1", "fd77::1", "/usr/bin")


def test_a_hosts_port_is_reached_from_no_other_network(hosts: Hosts) -> None:
    with listening(hosts.of["b"]) as door, socket.socket() as outside:
        outside.settimeout(SHORT_S)
        with pytest.raises(OSError, match=r"timed out|unreachable|refused"):
            outside.connect(door.getsockname())


def test_a_delay_is_added_to_both_directions(hosts: Hosts) -> None:
    hosts.set_link("a", delay_ms=60)
    with listening(hosts.of["b"]) as door:
        begun_s = boot_s()
        connected(hosts.of["a"], door).close()
        assert boot_s() - begun_s >= 0.12  # there and back


def test_a_cut_link_is_silent_and_what_was_sent_meanwhile_arrives_once_it_is_healed(hosts: Hosts, pair: Pair) -> None:
    a_end, b_end = pair
    hosts.cut("b")
    a_end.sendall(b"to b")
    assert is_silent(b_end)
    with listening(hosts.of["b"]) as door, pytest.raises(TimeoutError):
        connected(hosts.of["a"], door, timeout_s=SHORT_S)
    hosts.heal("b")
    assert b_end.recv(100) == b"to b"
    b_end.sendall(b"to a")
    assert a_end.recv(100) == b"to a"


@pytest.mark.parametrize("cut", ["cut_in", "cut_out"])
def test_a_link_cut_one_way_carries_the_other(hosts: Hosts, pair: Pair, cut: str) -> None:
    a_end, b_end = pair
    sender, receiver = (a_end, b_end) if cut == "cut_out" else (b_end, a_end)
    hosts.set_link("b", **{cut: True})
    receiver.sendall(b"lost")
    assert is_silent(sender)
    sender.sendall(b"carried")
    assert receiver.recv(100) == b"carried"


def test_a_lossy_link_loses_packets_and_tcp_gets_everything_across(hosts: Hosts, pair: Pair) -> None:
    a_end, b_end = pair
    hosts.set_link("b", loss_pct=20)
    data = bytes(range(256)) * 400
    a_end.sendall(data)
    a_end.shutdown(socket.SHUT_WR)
    with b_end.makefile("rb") as stream:
        assert stream.read() == data
    assert hosts.links()["b"]["lost"] > 0


def test_a_connection_over_a_path_that_resets_is_over_for_both_once_something_is_said(hosts: Hosts, pair: Pair) -> None:
    hosts.set_paths(one_way("a", "b"), fate="reset")
    a_end, b_end = pair
    assert is_silent(b_end)
    a_end.sendall(b"to b")
    for end in pair:
        with pytest.raises(ConnectionResetError):
            end.recv(100)
    with listening(hosts.of["b"]) as door, connected(hosts.of["a"], door) as new:  # handshakes pass
        new.sendall(b"to b")
        with pytest.raises(ConnectionResetError):
            new.recv(100)


def test_connects_over_a_path_that_rejects_are_refused_and_a_connection_that_is_open_goes_silent(
    hosts: Hosts, pair: Pair
) -> None:
    hosts.set_paths(both_ways("a", "b"), fate="reject")
    a_end, b_end = pair
    with listening(hosts.of["b"]) as door, pytest.raises(ConnectionRefusedError):
        connected(hosts.of["a"], door)
    a_end.sendall(b"to b")
    assert is_silent(b_end)
    hosts.heal()
    assert b_end.recv(100) == b"to b"
    assert hosts.paths() == {}


def test_a_path_that_is_cut_one_way_carries_the_other_and_what_it_lost_once_its_host_is_healed(
    hosts: Hosts, pair: Pair
) -> None:
    a_end, b_end = pair
    hosts.set_paths(one_way("a", "b"), fate="drop")
    assert list(hosts.paths()) == [("a", "b")]
    a_end.sendall(b"to b")
    assert is_silent(b_end)
    b_end.sendall(b"to a")
    assert a_end.recv(100) == b"to a"
    hosts.heal("b")
    assert b_end.recv(100) == b"to b"


def test_what_no_link_can_be_is_refused_and_changes_nothing(hosts: Hosts) -> None:
    before = hosts.links()
    with pytest.raises(HostsFailed, match="loss_pct 0 to 100"):
        hosts.set_link("a", delay_ms=5, loss_pct=101)
    with pytest.raises(HostsFailed, match="no node is named z: there are a, b"):
        hosts.cut("z")
    with pytest.raises(HostsFailed, match="no node is named z: there are a, b"):
        hosts.set_paths(both_ways("a", "z"), fate="drop")
    assert {name: link["delay_ms"] for name, link in hosts.links().items()} == dict.fromkeys(before, 0.0)


def test_the_hosts_are_gone_with_their_keeper_however_it_ends(short_dir: Path) -> None:
    hosts, keeper = make_hosts(short_dir, 2, {}, ends_with_us=True)
    keeper.kill()
    keeper.wait()
    assert keeper.stdin is not None
    keeper.stdin.close()
    wait_for("the hosts to be gone", lambda: not any(alive(host.pid) for host in hosts.of.values()))


def test_the_keeper_ends_when_the_process_that_wanted_the_hosts_is_gone(short_dir: Path) -> None:
    _, keeper = make_hosts(short_dir, 1, {}, ends_with_us=True)
    assert keeper.stdin is not None
    keeper.stdin.close()
    assert keeper.wait(30) == 0

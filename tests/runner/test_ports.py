import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from protocol.errors import Refused
from supervisor.runner.ports import FOR_ANOTHER, WAIT_S, Ports
from supervisor.shell.port_hold import HELD_MAX, PortHold

HOST = "127.0.0.1"


@pytest.fixture
def hold() -> Iterator[PortHold]:
    """Of this run's runner."""
    made = PortHold("train@1234")
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[PortHold]:
    """Of another run's."""
    made = PortHold("other@5678")
    yield made
    made.close()


@contextlib.contextmanager
def listener(port: int = 0) -> Iterator[int]:
    with socket.create_server((HOST, port)) as server:
        yield int(server.getsockname()[1])


def test_a_port_that_nobody_names_is_free_and_not_the_last_generations(hold: PortHold) -> None:
    ports = Ports("auto", "a", hold)
    last, _ = ports.find(HOST, None, 0.0)
    for _ in range(20):
        port, waits_for = ports.find(HOST, last, 0.0)
        assert port != last
        assert waits_for == ""
        with listener(port):
            last = port


def test_a_named_port_is_offered_as_long_as_rank_0_could_listen_there(hold: PortHold) -> None:
    with listener() as port:
        pass
    assert Ports(port, "a", hold).find(HOST, None, 0.0) == (port, "")
    assert Ports(port, "a", hold).find(HOST, port, 0.0) == (port, ""), "it may be the last generation's"


def test_connections_of_the_past_do_not_keep_a_named_port(hold: PortHold) -> None:
    with listener() as port:
        pass
    with socket.create_server((HOST, port)) as server:
        guest = socket.create_connection((HOST, port))
        ours, _ = server.accept()
        ours.close()  # first: its side is left in TIME_WAIT
        assert guest.recv(1) == b""
        guest.close()
    assert Ports(port, "a", hold).find(HOST, port, 0.0) == (port, "")


def test_a_named_port_that_is_taken_before_the_first_generation_is_refused_with_its_holder(hold: PortHold) -> None:
    with listener() as port, pytest.raises(Refused) as refused:
        Ports(port, "a", hold).find(HOST, None, 0.0)
    assert str(refused.value).startswith(
        f"rendezvous.master_port = {port}: address already in use on {HOST}: pid {os.getpid()} ("
    )
    assert (refused.value.code, refused.value.hint) == ("F203", 'free it, name another, or write "auto"')


def test_between_generations_a_named_port_is_waited_for_so_long_and_no_longer(hold: PortHold) -> None:
    with listener() as port:
        ports = Ports(port, "a", hold)
        for now_s in (100.0, 100.0 + WAIT_S - 0.1):
            found, waits_for = ports.find(HOST, port, now_s)
            assert found == 0
            assert waits_for.startswith(f"port {port} on a to be free (pid {os.getpid()} (")
        with pytest.raises(Refused, match=f"address already in use on {HOST} after {WAIT_S:g} s: pid"):
            ports.find(HOST, port, 100.0 + WAIT_S)
    assert ports.find(HOST, port, 200.0) == (port, "")
    with listener(port):
        assert ports.find(HOST, port, 300.0)[0] == 0, "the next wait is a new one"


def test_a_node_without_a_port_to_give_waits_for_one_and_then_says_so(hold: PortHold) -> None:
    """Stood in for by a process that may open nothing: it is an error of the same kind."""
    ports, limits = Ports("auto", "a", hold), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        found = ports.find(HOST, None, 0.0)
        with pytest.raises(Refused) as refused:
            ports.find(HOST, None, WAIT_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == (0, "a free TCP port on a (too many open files)")
    assert str(refused.value) == f"no TCP port can be had on {HOST} after {WAIT_S:g} s: too many open files"
    assert refused.value.code == "F204"


@pytest.mark.parametrize("elsewhere", ["192.0.2.1", "2001:db8::1", "fe80::1%nosuch", "a-name.example.org"])
def test_for_an_address_of_a_gateway_or_a_name_a_port_is_free_on_all_interfaces(elsewhere: str, hold: PortHold) -> None:
    port, waits_for = Ports("auto", "a", hold).find(elsewhere, None, 0.0)
    assert (port > 0, waits_for) == (True, "")
    with listener() as taken, pytest.raises(Refused, match=f"{taken}: address already in use on {elsewhere}: pid"):
        Ports(taken, "a", hold).find(elsewhere, None, 0.0)
    assert Ports(port, "a", hold).find(elsewhere, None, 0.0) == (port, "")


# --- ports that are held for other runs --------------------------------------------------------------------------


def test_a_port_that_another_run_is_to_use_is_not_offered_though_nobody_listens_there(
    hold: PortHold, other: PortHold
) -> None:
    with listener() as port:
        pass
    assert other.take(port)
    waits_for = f"port {port} on a to be free ({FOR_ANOTHER})"
    ports = Ports(port, "a", hold)
    assert ports.find(HOST, None, 0.0) == (0, waits_for), "that run may be about to end"
    with pytest.raises(Refused, match=f"{port}: address already in use on {HOST} after {WAIT_S:g} s: {FOR_ANOTHER}"):
        ports.find(HOST, None, WAIT_S)
    other.close()
    assert ports.find(HOST, None, 100.0) == (port, "")


def test_no_two_runners_offer_the_same_port(hold: PortHold, other: PortHold) -> None:
    offered = [Ports("auto", "a", mine).find(HOST, None, 0.0)[0] for mine in (hold, other)]
    assert not other.take(offered[0])
    assert not hold.take(offered[1])
    assert hold.take(offered[0]), "it has it"


def test_nodes_of_one_run_on_one_machine_may_be_given_the_port_that_the_job_names(hold: PortHold) -> None:
    with listener() as port:
        pass
    fellow = PortHold("train@1234")
    assert Ports(port, "a", hold).find(HOST, None, 0.0) == (port, "")
    assert Ports(port, "b", fellow).find(HOST, None, 0.0) == (port, "")
    fellow.close()


def test_a_runner_holds_the_newest_ports_that_it_has_offered(hold: PortHold, other: PortHold) -> None:
    ports, offered = Ports("auto", "a", hold), list[int]()
    while len(set(offered)) <= HELD_MAX:
        offered.append(ports.find(HOST, None, 0.0)[0])
    newest = list(dict.fromkeys(reversed(offered)))[:HELD_MAX]
    assert not any(other.take(port) for port in newest)
    assert other.take(offered[0])

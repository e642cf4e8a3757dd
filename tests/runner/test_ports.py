import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from protocol.errors import Refused
from supervisor.runner.ports import WAIT_S, Ports

HOST = "127.0.0.1"


@contextlib.contextmanager
def listener(port: int = 0) -> Iterator[int]:
    with socket.create_server((HOST, port)) as server:
        yield int(server.getsockname()[1])


def test_a_port_that_nobody_names_is_free_and_not_the_last_generations() -> None:
    ports = Ports("auto", "a")
    last, _ = ports.find(HOST, None, 0.0)
    for _ in range(20):
        port, waits_for = ports.find(HOST, last, 0.0)
        assert port != last
        assert waits_for == ""
        with listener(port):
            last = port


def test_a_named_port_is_offered_as_long_as_rank_0_could_listen_there() -> None:
    with listener() as port:
        pass
    assert Ports(port, "a").find(HOST, None, 0.0) == (port, "")
    assert Ports(port, "a").find(HOST, port, 0.0) == (port, ""), "it may be the last generation's"


def test_connections_of_the_past_do_not_keep_a_named_port() -> None:
    with listener() as port:
        pass
    with socket.create_server((HOST, port)) as server:
        guest = socket.create_connection((HOST, port))
        ours, _ = server.accept()
        ours.close()  # first: its side is left in TIME_WAIT
        assert guest.recv(1) == b""
        guest.close()
    assert Ports(port, "a").find(HOST, port, 0.0) == (port, "")


def test_a_named_port_that_is_taken_before_the_first_generation_is_refused_with_its_holder() -> None:
    with listener() as port, pytest.raises(Refused) as refused:
        Ports(port, "a").find(HOST, None, 0.0)
    assert str(refused.value).startswith(
        f"rendezvous.master_port = {port}: address already in use on {HOST}: pid {os.getpid()} ("
    )
    assert (refused.value.code, refused.value.hint) == ("F203", 'free it, name another, or write "auto"')


def test_between_generations_a_named_port_is_waited_for_so_long_and_no_longer() -> None:
    with listener() as port:
        ports = Ports(port, "a")
        for now_s in (100.0, 100.0 + WAIT_S - 0.1):
            found, waits_for = ports.find(HOST, port, now_s)
            assert found == 0
            assert waits_for.startswith(f"port {port} on a to be free (pid {os.getpid()} (")
        with pytest.raises(Refused, match=f"address already in use on {HOST} after {WAIT_S:g} s: pid"):
            ports.find(HOST, port, 100.0 + WAIT_S)
    assert ports.find(HOST, port, 200.0) == (port, "")
    with listener(port):
        assert ports.find(HOST, port, 300.0)[0] == 0, "the next wait is a new one"


def test_a_node_without_a_port_to_give_waits_for_one_and_then_says_so() -> None:
    """Stood in for by a process that may open nothing: it is an error of the same kind."""
    ports, limits = Ports("auto", "a"), resource.getrlimit(resource.RLIMIT_NOFILE)
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
def test_for_an_address_of_a_gateway_or_a_name_a_port_is_free_on_all_interfaces(elsewhere: str) -> None:
    port, waits_for = Ports("auto", "a").find(elsewhere, None, 0.0)
    assert (port > 0, waits_for) == (True, "")
    with listener() as taken, pytest.raises(Refused, match=f"{taken}: address already in use on {elsewhere}: pid"):
        Ports(taken, "a").find(elsewhere, None, 0.0)
    assert Ports(port, "a").find(elsewhere, None, 0.0) == (port, "")

"""The wire between hosts, packet by packet."""

import random
from ipaddress import ip_address

import pytest

from scripts.hosts.switch import PACKETS_MAX, Switch


@pytest.fixture
def switch() -> Switch:
    """a and b, each with an IPv4 and an IPv6 address."""
    made = Switch(["a", "b"], random.Random(7))
    for host, *addresses in (("a", "10.77.0.1", "fd77::1"), ("b", "10.77.0.2", "fd77::2")):
        made.attach(host, *(ip_address(address).packed for address in addresses))
    return made


def packet(to: str) -> bytes:
    """The header of one, as far as it matters."""
    address = ip_address(to)
    return bytes([address.version << 4]) + bytes(15 if address.version == 4 else 23) + address.packed


@pytest.mark.parametrize("to", ["10.77.0.2", "fd77::2"])
def test_a_packet_goes_to_the_host_that_has_its_address(switch: Switch, to: str) -> None:
    sent = packet(to)
    assert switch.take("a", sent, 0.0) == (("b", sent),)


@pytest.mark.parametrize("to", ["10.77.0.9", "ff02::2"])
def test_what_nobody_has_is_dropped(switch: Switch, to: str) -> None:
    assert not switch.take("a", packet(to), 0.0)
    assert (switch.links["a"].lost, switch.due(1e9)) == (0, [])


@pytest.mark.parametrize("nonsense", [b"", b"\x45", b"\x60" + bytes(10)])
def test_what_is_no_packet_is_dropped(switch: Switch, nonsense: bytes) -> None:
    assert not switch.take("a", nonsense, 0.0)


def test_the_delays_of_both_ends_add_up_and_packets_stay_in_order(switch: Switch) -> None:
    switch.links["a"].change({"delay_ms": 20})
    switch.links["b"].change({"delay_ms": 30.0})
    first, second = packet("10.77.0.2") + b"1", packet("10.77.0.2") + b"2"
    assert (*switch.take("a", first, 1.0), *switch.take("a", second, 1.0)) == ()
    assert switch.deadline_s == pytest.approx(1.05)
    assert switch.due(1.049) == []
    assert switch.due(1.051) == [("b", first), ("b", second)]


def test_a_packet_under_way_to_a_host_that_is_cut_off_does_not_arrive(switch: Switch) -> None:
    switch.links["b"].change({"delay_ms": 10})
    switch.take("a", packet("10.77.0.2"), 0.0)
    switch.links["b"].change({"cut_in": True})
    assert switch.due(1.0) == []


def test_a_link_loses_about_as_many_packets_as_it_was_told(switch: Switch) -> None:
    switch.links["b"].change({"loss_pct": 25})
    arrived = sum(len(switch.take("a", packet("10.77.0.2"), 0.0)) for _ in range(2000))
    assert 1400 < arrived < 1600
    assert (switch.links["b"].passed, switch.links["b"].lost) == (arrived, 2000 - arrived)


def test_what_is_too_much_for_the_wire_is_lost(switch: Switch) -> None:
    switch.links["b"].change({"delay_ms": 1000})
    for _ in range(PACKETS_MAX + 3):
        switch.take("a", packet("10.77.0.2"), 0.0)
    assert (switch.links["b"].lost, len(switch.due(2.0))) == (3, PACKETS_MAX)


@pytest.mark.parametrize(
    "wish", [{"delay_ms": -1}, {"loss_pct": 100.5}, {"cut_in": 1}, {"passed": 0}, {"delay_ms": "5"}, {"fate": "ill"}]
)
def test_what_no_link_and_no_path_can_be_is_refused(switch: Switch, wish: dict[str, object]) -> None:
    for where in (switch.links["a"], switch.paths["a", "b"]):
        with pytest.raises(ValueError, match="delay_ms is 0 to 60000"):
            where.change({"delay_ms": 5, **wish})
        assert where.delay_ms == 0


def test_a_path_is_cut_in_one_direction_and_for_one_pair_alone(switch: Switch) -> None:
    switch.paths["a", "b"].change({"fate": "drop"})
    assert not switch.take("a", packet("10.77.0.2"), 0.0)
    assert len(switch.take("b", packet("10.77.0.1"), 0.0)) == 1


def test_a_packet_under_way_on_a_path_that_is_cut_does_not_arrive_and_its_delay_adds_to_those_of_the_links(
    switch: Switch,
) -> None:
    switch.links["b"].change({"delay_ms": 10})
    switch.paths["a", "b"].change({"delay_ms": 20})
    switch.take("a", packet("10.77.0.2"), 0.0)
    assert switch.deadline_s == pytest.approx(0.03)
    switch.paths["a", "b"].change({"fate": "drop"})
    assert switch.due(1.0) == []


@pytest.mark.parametrize("fate", ["reset", "reject"])
@pytest.mark.parametrize("sent", [packet("10.77.0.2"), packet("fd77::2"), packet("10.77.0.2")[:20] + b"\0"])
def test_what_can_be_neither_reset_nor_rejected_makes_nothing_fail(switch: Switch, fate: str, sent: bytes) -> None:
    switch.paths["a", "b"].change({"fate": fate})
    assert len(switch.take("a", sent, 0.0)) <= 1

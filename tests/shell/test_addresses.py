"""supervisor/shell/addresses.py: which addresses are this machine's."""

import socket

import pytest

from protocol.addresses import is_loopback
from supervisor.shell.addresses import interfaces, is_own, own_addresses


def source_towards(host: str) -> str:
    """The address that this machine would use to talk to a host; nothing is sent. "" where there is no way to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def test_an_address_is_own_where_an_interface_of_this_machine_has_it() -> None:
    assert is_own("127.0.0.1")
    assert is_own("127.3.4.5")  # no interface shows it, and it is all the same
    for host in ("192.0.2.99", "2001:db8::99"):  # addresses for documentation, RFC 5737 and RFC 3849
        source = source_towards(host)
        assert not source or is_own(source)
    assert not is_own("198.51.100.7")
    assert not is_own("2001:db8::7")
    for no_address in ("", "0.0.0.0", "::", "localhost"):
        assert not is_own(no_address)


def test_where_the_kernel_lists_no_addresses_what_can_be_bound_is_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "AF_NETLINK", 4711)  # as in a sandbox that forbids it
    assert own_addresses() == []
    source = source_towards("192.0.2.99")
    assert not source or is_own(source)
    assert not is_own("198.51.100.7")


def test_own_addresses_are_those_that_others_can_use_loopback_last() -> None:
    found = own_addresses()
    assert "127.0.0.1" in found
    assert [is_loopback(address) for address in found] == sorted(is_loopback(address) for address in found)
    assert all(is_own(address) for address in found)
    assert not any(address.startswith("fe80:") for address in found)


def test_the_addresses_of_one_interface_are_those_it_has() -> None:
    assert "lo" in interfaces()
    assert own_addresses("lo")[0] == "127.0.0.1"
    assert own_addresses("no-such") == []
    assert set(own_addresses()) == {address for name in interfaces() for address in own_addresses(name)}

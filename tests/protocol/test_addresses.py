"""protocol/addresses.py: how peers' addresses are written."""

from protocol.addresses import is_loopback, is_same_host, meant, split
from protocol.text import host_port


def test_an_ipv6_address_stands_in_brackets_before_a_port() -> None:
    assert host_port("fd00::1", 7) == "[fd00::1]:7"
    assert host_port("10.0.0.1", 7) == "10.0.0.1:7"
    assert host_port("gpu-01", 7) == "gpu-01:7"


def test_a_host_is_the_same_however_it_is_written() -> None:
    assert is_same_host("GPU-01", "gpu-01")
    assert is_same_host("fd00::1", "FD00:0:0::1")
    assert not is_same_host("gpu-01", "gpu-02")
    assert not is_same_host("gpu-01", "")


def test_only_addresses_are_known_to_be_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "10.0.0.1", "localhost")] == [True, True, False, False]


def test_an_address_is_split_into_host_and_port_and_what_is_none_is_not() -> None:
    assert [split(text) for text in ("gpu-01", "gpu-01:7", "10.0.0.1:7", "[fd00::1]", "[fd00::1]:7")] == [
        ("gpu-01", None),
        ("gpu-01", 7),
        ("10.0.0.1", 7),
        ("fd00::1", None),
        ("fd00::1", 7),
    ]
    for text in ("", "fd00::1", "fd00:1:2:3:4:5:6:7", "gpu-01:65536", "[gpu-01]:7", "...", "a b", "x" * 254):
        assert split(text) is None


def test_an_entry_means_the_same_however_it_is_written() -> None:
    same = ("[fd00::1]", "[FD00:0::1]", "[fd00::1]:29410", "[fd00:0:0:0:0:0:0:1]:29410")
    assert len({meant(entry) for entry in same}) == 1
    assert meant("GPU-01") == meant("gpu-01:29410") != meant("gpu-01:29411")
    assert meant("fd00:1:2:3:4:5:6:7") != meant("[fd00:1:2:3:4:5:6]:7")
    assert meant("fd00:1:2:3:4:5:6:7") == ("fd00:1:2:3:4:5:6:7", None), "nobody knows where its port begins"

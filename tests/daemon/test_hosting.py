"""supervisor/daemon/hosting.py: which node hosts, and by which address a node is reached."""

import asyncio
import errno
from pathlib import Path

import pytest
import structlog

from protocol.addresses import is_loopback
from protocol.errors import ConfigInvalid, Refused
from supervisor.daemon import hosting
from supervisor.daemon.hosting import Hosting, Hosts, Joins, Unknown
from supervisor.shell.addresses import own_addresses
from supervisor.shell.config import Config, load_config
from supervisor.shell.names import Names

TIMEOUT_S = 20.0
FAR = "198.51.100.7"  # for documentation: no machine has it, RFC 5737
KNOWN = {
    "localhost": ("127.0.0.1",),
    "here": ("127.0.0.1",),
    "alias": ("127.0.0.2",),
    "far": (FAR,),
    "several": (FAR, "127.0.0.1"),
    "here-6": ("::1",),
}


def resolve(host: str) -> tuple[str, ...]:
    if host not in KNOWN:
        raise OSError(errno.ENOENT, "Name or service not known")
    return KNOWN[host]


def configured(folder: Path, listen: str = "", *join: str) -> Config:
    file = folder / "supd.toml"
    credential = folder / "fleet.pem"
    entries = ", ".join(f'"{entry}"' for entry in join)
    file.write_text(f'[listen]\n{listen}\n[fleet]\njoin = [{entries}]\ncredential = "{credential}"\n')
    return load_config(file, {"HOME": str(folder)})


def hosting_of(folder: Path, listen: str = "", *join: str) -> Hosting:
    return Hosting(configured(folder, listen, *join), Names(resolve))


def outer_address() -> str:
    """An address of this machine that others could reach; skips the test where it has none."""
    found = [address for address in own_addresses() if not is_loopback(address)]
    if not found:
        pytest.skip("this machine has loopback addresses only")
    return found[0]


# --- who hosts ---------------------------------------------------------------------------------------------------


async def test_a_supd_that_joins_nobody_hosts_itself(tmp_path: Path) -> None:
    assert await hosting_of(tmp_path).decide() == Hosts("")


@pytest.mark.parametrize(
    ("listen", "first", "expected"),
    [
        ("", "127.0.0.1", "127.0.0.1"),  # on all interfaces
        ("", "127.0.0.9", "127.0.0.9"),
        ("", FAR, None),
        ("", "far", None),
        ("", "here", "here"),  # loopback, by a name that means something else elsewhere
        ("", "localhost:29410", "127.0.0.1"),
        ("", "127.0.0.1:29411", None),  # another supd of this machine
        ('peer = "*:29411"', "127.0.0.1:29411", "127.0.0.1"),
        ('peer = "127.0.0.2:29410"', "127.0.0.2", "127.0.0.2"),  # at one address
        ('peer = "127.0.0.2:29410"', "127.0.0.3", None),
        ('peer = "127.0.0.2:29410"', "alias", "alias"),
        ('peer = "alias:29410"', "127.0.0.2", "127.0.0.2"),
        ('peer = "127.0.0.3:29410"', "alias", None),
        ('peer = "[::1]:29410"', "here-6", "here-6"),
        (f'advertise = "{FAR}"', FAR, FAR),  # behind a translated address
        ('advertise = "unknown-here"', "unknown-here", "unknown-here"),
        ('advertise = "unknown-here"', "UNKNOWN-here:29410", "unknown-here"),
        ('advertise = "unknown-here"', "unknown-here:29411", None),
    ],
)
async def test_the_node_hosts_whose_own_address_comes_first(
    tmp_path: Path, listen: str, first: str, expected: str | None
) -> None:
    config = configured(tmp_path, listen, first, "127.0.0.1:1")
    decision = await Hosting(config, Names(resolve)).decide()
    assert decision == (Joins(config.join) if expected is None else Hosts(expected))


@pytest.mark.parametrize(
    ("told", "join", "expected"),
    [
        (True, (FAR, "127.0.0.2"), Hosts("127.0.0.2")),
        (True, ("nobody", "127.0.0.2"), Hosts("127.0.0.2")),  # whatever stands before it
        (True, ("127.0.0.2", FAR), Hosts("127.0.0.2")),
        (True, (FAR, "nobody"), Unknown("Name or service not known")),
        (False, ("127.0.0.2", FAR), (FAR,)),  # it does not ask itself
        (False, (FAR, "127.0.0.2"), (FAR, "127.0.0.2")),
        (False, ("nobody", FAR), ("nobody", FAR)),
        (False, ("127.0.0.2",), ("127.0.0.2",)),
        (False, (), Hosts("")),
    ],
)
async def test_once_the_coordinator_was_moved_the_first_entry_decides_nothing(
    tmp_path: Path, told: bool, join: tuple[str, ...], expected: Hosts | Unknown | tuple[str, ...]
) -> None:
    config = configured(tmp_path, 'peer = "127.0.0.2:29410"', *join)
    decision = await Hosting(config, Names(resolve), told=told).decide()
    assert (tuple(e.text for e in decision.entries) if isinstance(decision, Joins) else decision) == expected


async def test_a_node_that_is_told_to_host_and_is_not_listed_is_refused(tmp_path: Path) -> None:
    config = configured(tmp_path, 'peer = "127.0.0.2:29410"', FAR, "127.0.0.3")
    with pytest.raises(Refused, match=rf"is not in `\[fleet\] join` \({FAR}, 127.0.0.3\)") as caught:
        await Hosting(config, Names(resolve), told=True).decide()
    assert caught.value.code == "F309"


async def test_of_several_own_addresses_one_that_others_reach_is_given_out(tmp_path: Path) -> None:
    outer = outer_address()
    names = Names(lambda _: ("127.0.0.1", outer))
    assert await Hosting(configured(tmp_path, "", "gpu-01"), names).decide() == Hosts(outer)


async def test_a_name_that_is_not_known_yet_decides_nothing(tmp_path: Path) -> None:
    assert await hosting_of(tmp_path, "", "nobody").decide() == Unknown("Name or service not known")
    assert await hosting_of(tmp_path, 'peer = "nobody:29410"', FAR).decide() == Unknown("Name or service not known")


async def test_who_hosts_is_settled_as_soon_as_the_name_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "RETRY_S", 0.01)
    asked = 0

    def late(_host: str) -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        if asked < 5:
            raise OSError(errno.EAGAIN, "Temporary failure in name resolution")
        return (FAR,)

    config = configured(tmp_path, "", "gpu-01")
    with structlog.testing.capture_logs() as log:
        async with asyncio.timeout(TIMEOUT_S):
            assert await Hosting(config, Names(late)).settled() == Joins(config.join)
    (line,) = log  # sparse
    assert (line["event"], line["log_level"], line["join"]) == ("host_unresolved", "warning", "gpu-01")
    assert line["error"] == "Temporary failure in name resolution"


async def test_an_address_that_comes_late_makes_the_host_unless_another_one_has_hosted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "RECHECK_S", 0.01)
    answers = {"gpu-01": (FAR,)}
    deciders = [Hosting(configured(tmp_path, "", "gpu-01"), Names(answers.__getitem__)) for _ in range(2)]
    assert [isinstance(await decider.decide(), Joins) for decider in deciders] == [True, True]
    deciders[1].found()
    answers["gpu-01"] = ("127.0.0.1",)
    async with asyncio.timeout(TIMEOUT_S):
        assert await deciders[0].comes_to_host() == Hosts("gpu-01")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await deciders[1].comes_to_host()


@pytest.mark.parametrize(
    ("first", "event"),
    [("127.0.0.1", "join_is_loopback"), ("here", "join_is_loopback"), ("several", "join_is_shared"), (FAR, None)],
)
async def test_a_first_entry_that_every_machine_takes_for_its_own_is_warned_of_once(
    tmp_path: Path, first: str, event: str | None
) -> None:
    with structlog.testing.capture_logs() as log:
        decider = hosting_of(tmp_path, "", first, "gpu-02")
        for _ in range(3):
            await decider.decide()
    assert [line["event"] for line in log] == [event] * (event is not None)


async def test_where_nobody_hosts_the_log_lists_the_entry_its_addresses_and_our_own(tmp_path: Path) -> None:
    decider = hosting_of(tmp_path, "", "far")
    with structlog.testing.capture_logs() as log:
        await decider.tell_nobody_hosts("connection refused")
        await decider.tell_nobody_hosts("connection refused")
    (line,) = log
    assert (line["event"], line["join"], line["addresses"]) == ("host_missed", "far", [FAR])
    assert line["own_addresses"] == own_addresses()
    assert line["error"] == "connection refused"
    decider.found()
    with structlog.testing.capture_logs() as log:
        await hosting_of(tmp_path, "", "nobody").tell_nobody_hosts("it is not known")
        await decider.tell_nobody_hosts("lost again")
    assert [line["addresses"] for line in log] == [["Name or service not known"], [FAR]]


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "own", "link", "address"),
    [
        ("", "", "", "127.0.0.1"),  # a fleet of one
        ('peer = "*:7"', "", "", "127.0.0.1"),
        ('peer = "*:7"', "", "10.0.0.2", "10.0.0.2"),  # joined another one
        ('peer = "*:7"', "10.0.0.1", "", "10.0.0.1"),  # hosts
        ('peer = "0.0.0.0:7"', "", "10.0.0.2", "10.0.0.2"),
        ('peer = "127.0.0.2:7"', "", "10.0.0.2", "127.0.0.2"),
        ('peer = "gpu-02:7"', "", "10.0.0.2", "gpu-02"),
        ('peer = "127.0.0.2:7"\nadvertise = "gpu-02"', "", "10.0.0.2", "gpu-02"),
        ('interface = "lo"', "10.0.0.1", "10.0.0.2", "127.0.0.1"),
    ],
)
def test_an_address_is_given_out_as_configured_else_as_the_others_see_it(
    tmp_path: Path, listen: str, own: str, link: str, address: str
) -> None:
    assert hosting_of(tmp_path, listen).node_address(own, link) == address


def test_an_interface_that_is_not_there_is_told_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        hosting_of(tmp_path, 'interface = "eth99"')
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == ("S401", "listen.interface")
    assert problem.place == (str(tmp_path / "supd.toml"), 2, 13, 7)
    assert "`listen.interface` is not an interface of this machine" in str(caught.value)
    assert "lo" in problem.hint


def test_connections_go_out_from_the_one_address_at_which_we_listen(tmp_path: Path) -> None:
    one = hosting_of(tmp_path, 'peer = "127.0.0.2:7"')
    assert one.local_address("127.0.0.3") == ("127.0.0.2", 0)
    assert one.local_address("::1") is None
    assert hosting_of(tmp_path, 'peer = "*:7"').local_address("127.0.0.3") is None
    assert hosting_of(tmp_path, 'peer = "0.0.0.0:7"').local_address("127.0.0.3") is None
    assert hosting_of(tmp_path, 'peer = "gpu-02:7"').local_address("127.0.0.3") is None


# --- the credential ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("join", [(), ("127.0.0.1",)])
async def test_the_host_makes_the_credential(tmp_path: Path, join: tuple[str, ...]) -> None:
    await hosting_of(tmp_path, "", *join).ensure_credential()
    assert (tmp_path / "fleet.pem").stat().st_mode & 0o777 == 0o600


async def test_a_node_that_joins_another_one_has_to_be_given_the_credential(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        await hosting_of(tmp_path, "", FAR).ensure_credential()
    assert (caught.value.code, caught.value.exit_code) == ("F013", 78)
    assert str(caught.value) == f"there is no fleet key at {tmp_path}/fleet.pem, and this node joins {FAR}"
    assert "copy fleet.pem of the host here" in caught.value.hint
    assert not (tmp_path / "fleet.pem").exists()


async def test_a_credential_that_is_there_needs_no_name_service_and_has_to_be_private(tmp_path: Path) -> None:
    await hosting_of(tmp_path).ensure_credential()
    await hosting_of(tmp_path, "", "nobody").ensure_credential()
    (tmp_path / "fleet.pem").chmod(0o644)
    with pytest.raises(Refused, match="can be read by others"):
        await hosting_of(tmp_path, "", "nobody").ensure_credential()

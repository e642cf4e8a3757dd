"""Cases H29 to H34 of the field reports: how nodes find each other, by which names and addresses.

`front` is left out of all of them: what it is told on every node, supd is told by supd.toml.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.hosts.namespaces import Host
from tests.e2e.supd import BIN, TIMEOUT_S, Supd, wait_for
from tests.netns import PORT, NamespaceFleet, hosts_in_namespaces, needs_namespaces

A, B, C = "10.77.0.1", "10.77.0.2", "10.77.0.3"
A6 = "fd77::1"


@contextlib.contextmanager
def fleet_by(folder: Path, join: str, *, hosts: int = 2, listen: str = "") -> Iterator[NamespaceFleet]:
    """A fleet with one supd a host, none of them started, whose supd.toml names neither node nor port.

    The hosts know no name but localhost, not even their own.
    """
    with hosts_in_namespaces(folder, hosts) as made:
        fleet = NamespaceFleet(folder, made)
        for name, supd in fleet.nodes.items():
            know(made.of[name], folder, "")
            supd.config.write_text(
                f'[fleet]\njoin = ["{join}"]\n[listen]\ncontrol = "{supd.control}"\n{listen}\n'
                f'[state]\ndir = "{supd.state}"\n[log]\nformat = "json"\n'
            )
        try:
            yield fleet
        finally:
            fleet.close()


def know(host: Host, folder: Path, names: str) -> None:
    """Give a host an /etc/hosts of its own, or write another one."""
    file = folder / f"hosts-of-{host.name}"
    is_new = not file.exists()
    file.write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}\n")  # the file stays the one that was mounted
    if is_new:
        subprocess.run(host.argv("mount", "--bind", str(file), "/etc/hosts"), check=True)


def know_everywhere(fleet: NamespaceFleet, names: str) -> None:
    for host in fleet.hosts.of.values():
        know(host, fleet.folder, names)


def told(supd: Supd, event: str) -> list[dict[str, Any]]:
    """What a supd has logged of one kind."""
    *whole, _ = supd.log.read_text().split("\n")
    return [line for line in map(json.loads, whole) if line["event"] == event]


def waits_to_tell(supd: Supd, event: str) -> dict[str, Any]:
    """The first line of that kind, as soon as it is there."""
    first: dict[str, Any] = wait_for(f"{supd.folder.name} to tell {event}", lambda: told(supd, event))[0]
    return first


def meet(fleet: NamespaceFleet, address: str) -> None:
    """Ranks on both nodes meet at this address of rank 0, which is how it is told everywhere."""
    done = fleet["b"].supctl("start", str(fleet.job("meets", "meets.py", nnodes=2)), "--follow")
    logs = fleet["b"].supctl("logs", "meets", "--ranks", "all", "--no-prefix").stdout
    assert logs.count(f"met at {address}\n") == 2, logs
    [launched] = fleet.events("meets", "generation.launched")
    where = f"[{address}]" if ":" in address else address
    assert f"master {where}:" in launched["text"]
    assert f"master {where}:" in done.stdout


@needs_namespaces
def test_nodes_that_cannot_resolve_each_other_s_host_names_meet_by_address(short_dir: Path) -> None:
    """H29. No name of any host is known to another, nor to itself; the endpoint is an address."""
    with fleet_by(short_dir, f"{A}:{PORT}") as fleet:
        fleet.start()
        assert [(n["node"], n["address"]) for n in fleet.host.json("nodes")["nodes"]] == [("a", A), ("b", B)]
        meet(fleet, A)


@needs_namespaces
def test_an_address_is_shown_as_it_was_given_whatever_name_leads_to_it(short_dir: Path) -> None:
    """H30."""
    with fleet_by(short_dir, f"{A}:{PORT}") as fleet:
        know_everywhere(fleet, f"{A} made-up.example made-up\n{B} imagined.example imagined")
        fleet.start()
        meet(fleet, A)
        supd = fleet["b"]
        seen = [supd.supctl(*words).stdout for words in (("nodes",), ("status",), ("events", "meets"))]
        seen += [supd.log.read_text() for supd in fleet.nodes.values()]
        assert not [text for text in seen if "made-up" in text or "imagined" in text]


@needs_namespaces
def test_a_node_recognises_itself_as_the_host_by_an_alias(short_dir: Path) -> None:
    """H31, its first part."""
    with fleet_by(short_dir, f"rendezvous:{PORT}") as fleet:
        know_everywhere(fleet, f"{A} rendezvous")
        fleet.start()
        assert [n["node"] for n in fleet.host.json("nodes")["nodes"] if n["is_host"]] == ["a"]
        meet(fleet, A)


@needs_namespaces
def test_where_nobody_hosts_that_is_told_with_the_endpoint_its_addresses_and_our_own(short_dir: Path) -> None:
    """H31, its second part: the name leads to a machine where no supd listens."""
    with fleet_by(short_dir, f"rendezvous:{PORT}", hosts=3) as fleet:
        know_everywhere(fleet, f"{C} rendezvous")
        for name, own in (("a", A), ("b", B)):
            fleet[name].launch()
            line = waits_to_tell(fleet[name], "host_missed")
            assert (line["join"], line["addresses"], own in line["own_addresses"]) == (f"rendezvous:{PORT}", [C], True)
        asked = fleet["b"].supctl("nodes", check=False)
        assert asked.returncode == 69
        assert f"rendezvous:{PORT}" in asked.stderr


@needs_namespaces
def test_a_name_that_is_not_known_yet_is_looked_up_until_it_is_and_its_host_until_it_answers(short_dir: Path) -> None:
    """H32. How long each takes is of no account: the next step comes when the one before was told."""
    with fleet_by(short_dir, f"head:{PORT}") as fleet:
        node = fleet["b"]
        node.launch()
        line = waits_to_tell(node, "host_unresolved")
        assert (line["level"], line["join"]) == ("warning", f"head:{PORT}")
        wait_for("b to be ready", lambda: told(node, "supd_ready"))
        asked = node.supctl("nodes", check=False)
        assert (asked.returncode, "head" in asked.stderr) == (69, True), asked.stderr
        know_everywhere(fleet, f"{A} head")
        assert waits_to_tell(node, "host_missed")["addresses"] == [A]
        fleet.host.start()
        fleet.wait_joined("a", "b")
        assert [len(told(node, event)) for event in ("host_unresolved", "host_missed")] == [1, 1]  # sparse
        meet(fleet, A)


@needs_namespaces
def test_a_fleet_without_ipv4_joins_and_meets_by_ipv6(short_dir: Path) -> None:
    """H33: the address stands in brackets where a port follows, and without them in MASTER_ADDR."""
    with fleet_by(short_dir, f"[{A6}]:{PORT}") as fleet:
        for host in fleet.hosts.of.values():
            subprocess.run(host.argv("ip", "-4", "address", "flush", "dev", "eth0"), check=True)
        fleet.start()
        assert [n["address"] for n in fleet.host.json("nodes")["nodes"]] == [A6, "fd77::2"]
        meet(fleet, A6)


@needs_namespaces
@pytest.mark.parametrize("listen", ["", 'advertise = "::1"', f'peer = "[::1]:{PORT}"'])
def test_the_loopback_address_of_ipv6_is_taken_with_its_port_and_without(short_dir: Path, listen: str) -> None:
    """H33, `[::1]:PORT`, and `::1` where the port stands elsewhere."""
    with fleet_by(short_dir, f"[::1]:{PORT}", hosts=1, listen=listen) as fleet:
        fleet.start()
        fleet.host.supctl("start", str(fleet.job("meets", "meets.py")), "--follow")
        assert "met at ::1\n" in fleet.host.supctl("logs", "meets", "--no-prefix").stdout


def test_an_ipv6_address_that_runs_into_its_port_is_refused_as_ambiguous(short_dir: Path) -> None:
    """H33, its third form. Problems of supd.toml end with 78, as those of every file."""
    config = short_dir / "supd.toml"
    config.write_text(f'[fleet]\njoin = ["::1:{PORT}"]\n')
    argv = [str(BIN / "supd"), "run", "--config", str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 78
    assert f'"[::1]:{PORT}"' in done.stderr
    assert f"{config}:2" in done.stderr


@needs_namespaces
def test_nodes_that_all_take_localhost_for_the_host_are_warned_and_no_job_starts_smaller_than_asked(
    short_dir: Path,
) -> None:
    """H34. Each is a fleet of one, and says at its start what is wrong."""
    with fleet_by(short_dir, f"localhost:{PORT}") as fleet:
        tables = '[rendezvous]\njoin_timeout = "1s"\n'
        job = fleet.job("lonely", "sleeper.py", nnodes=2, tables=tables)
        for supd in fleet.nodes.values():
            supd.start()
            [line] = told(supd, "join_is_loopback")
            assert (line["level"], line["join"]) == ("warning", f"localhost:{PORT}")
            done = supd.supctl("start", str(job), check=False)
            assert done.returncode == 75, done.stderr
            assert "1 of 2 nodes" in done.stderr
            assert (supd.status("lonely")["generation"], supd.survivors()) == (None, [])

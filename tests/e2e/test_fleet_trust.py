"""A real supd that is to join another one: its key, and what both sides say where that is not the fleet's."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.shell.make_credential import credential, write_once
from tests.e2e.supd import BIN, TIMEOUT_S, Supd, wait_for

HOST, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def port() -> int:
    """One that is free at both addresses, below those that the kernel gives away."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for candidate in range(low - 1, 1024, -7):
        with socket.socket() as a, socket.socket() as b:
            try:
                a.bind((HOST, candidate))
                b.bind((OTHER, candidate))
            except OSError:
                continue
            return candidate
    raise AssertionError("no port is free")


@pytest.fixture
def nodes(short_dir: Path, port: int) -> Iterator[tuple[Supd, Supd]]:
    """The host and a node that joins it, neither of them started."""
    daemons = []
    for name, address in (("a", HOST), ("b", OTHER)):
        (short_dir / name).mkdir()
        supd = Supd(short_dir / name)
        supd.config.write_text(
            f'[node]\nname = "{name}"\n[listen]\ncontrol = "{supd.control}"\npeer = "{address}:{port}"\n'
            f'[fleet]\njoin = ["{HOST}:{port}"]\n[state]\ndir = "{supd.state}"\n[log]\nformat = "json"\n'
        )
        daemons.append(supd)
    host, joiner = daemons
    yield host, joiner
    joiner.close()
    host.close()


def lines(supd: Supd, event: str) -> list[dict[str, Any]]:
    """What a supd has logged of one kind; every line of its log is one of ours, so no traceback is among them."""
    *whole, _ = supd.log.read_text().split("\n")
    told = [json.loads(line) for line in whole]
    return [line for line in told if line["event"] == event]


def key_of(supd: Supd) -> Path:
    return supd.state / "fleet.pem"


def test_the_host_makes_the_key_and_a_node_that_joins_without_it_ends_with_one_clear_error(
    nodes: tuple[Supd, Supd], port: int
) -> None:
    host, joiner = nodes
    host.start()
    assert key_of(host).stat().st_mode & 0o777 == 0o600
    done = subprocess.run(
        [BIN / "supd", "run", "--config", joiner.config],
        env=joiner.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 78
    *_, error, hint = done.stderr.splitlines()
    assert error == f"supd: error[F013]: there is no fleet key at {key_of(joiner)}, and this node joins {HOST}:{port}"
    assert hint.startswith("→ copy fleet.pem of the host here")
    assert not key_of(joiner).exists()


def test_a_node_with_another_key_is_told_on_both_sides_and_gets_in_once_it_has_the_right_one(
    nodes: tuple[Supd, Supd], port: int
) -> None:
    host, joiner = nodes
    joiner.state.mkdir(0o700)
    write_once(str(key_of(joiner)), credential())
    host.start()
    joiner.launch()
    (here,) = wait_for("the host to tell", lambda: lines(host, "handshake_failed"))
    (there,) = wait_for("the node to tell", lambda: lines(joiner, "host_missed"))
    assert (here["peer"], here["level"]) == (OTHER, "warning")
    assert "fleet key differs from ours" in here["error"]
    assert there["error"].startswith(f"{HOST}:{port}: its fleet key differs from ours")
    assert (there["addresses"], "127.0.0.1" in there["own_addresses"]) == ([HOST], True)
    assert there["hint"].startswith("copy fleet.pem of the host here"), "it does answer"
    refused = joiner.supctl("status", check=False)
    assert refused.returncode == 69
    assert f"error[F110]: this node is not in the fleet: {HOST}:{port}: its fleet key differs" in refused.stderr
    assert "→ copy fleet.pem of the host here" in refused.stderr
    joiner.kill()
    key_of(joiner).write_bytes(key_of(host).read_bytes())
    joiner.launch()
    wait_for("the node to join", lambda: lines(joiner, "fleet_joined"))
    assert len(lines(host, "handshake_failed")) == 1


def test_a_node_that_the_host_refuses_says_why_and_how_to_mend_it(nodes: tuple[Supd, Supd], port: int) -> None:
    host, joiner = nodes
    host.start()
    joiner.state.mkdir(0o700)
    write_once(str(key_of(joiner)), key_of(host).read_bytes())
    joiner.config.write_text(joiner.config.read_text().replace("[fleet]\n", '[fleet]\nname = "x"\n'))
    joiner.launch()
    (told,) = wait_for("the node to tell", lambda: lines(joiner, "host_missed"))
    refused = joiner.supctl("status", check=False)
    assert refused.returncode == 69
    assert f"error[F110]: this node is not in the fleet: {HOST}:{port}: [F301] " in refused.stderr
    assert "`[fleet] name`" in told["hint"]
    assert f"→ {told['hint']}" in refused.stderr


def test_strangers_at_the_peers_port_are_told_once_and_cost_nothing_else(nodes: tuple[Supd, Supd], port: int) -> None:
    host, _ = nodes
    host.start()
    for _ in range(3):
        with socket.create_connection((HOST, port), TIMEOUT_S) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(100) == b""
        socket.create_connection((HOST, port), TIMEOUT_S).close()
    (line,) = lines(host, "handshake_failed")
    assert line["error"] == "it does not speak TLS"
    assert host.supctl("status").returncode == 0

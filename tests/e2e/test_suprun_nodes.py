"""suprun on several nodes: 127.0.0.2, .3 … of this machine, each with an address of its own."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.supd import BIN, wait_for
from tests.e2e.suprun import Launches, Suprun, worker

LAUNCHED = worker("launched")
HOST = "127.0.0.2"

OF_VERSION_0_0_1 = """
import sys
from supervisor.shell import version
version.VERSION = "0.0.1"
from supervisor.front.app import main
sys.exit(main())
"""


def elastic(port: int, number: int, nnodes: str, *conf: str) -> tuple[str, ...]:
    """The options of one node; node 0 is the endpoint's."""
    is_host = f"is_host={'true' if number == 0 else 'false'}"
    return (
        f"--nnodes={nnodes}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={HOST}:{port}",
        "--rdzv-id=job",
        f"--rdzv-conf={','.join((is_host, *conf))}",
        f"--local-addr=127.0.0.{2 + number}",
    )


def ranks(*launches: Suprun) -> list[tuple[int, ...]]:
    """(rank, world size, restart count) of all first lines, as they came."""
    found = (re.findall(r"up RANK=(\d+) .*WORLD_SIZE=(\d+) .*RESTART_COUNT=(\d+)", launch.text) for launch in launches)
    return [tuple(map(int, one)) for each in found for one in each]


def test_nodes_meet_in_any_order_and_end_together(suprun: Launches, port: int) -> None:
    late = suprun(*elastic(port, 1, "2"), "--nproc-per-node=2", LAUNCHED)
    first = suprun(*elastic(port, 0, "2"), "--nproc-per-node=2", LAUNCHED)
    assert (first.end(), late.end()) == (0, 0)
    assert sorted(ranks(first, late)) == [(0, 4, 0), (1, 4, 0), (2, 4, 0), (3, 4, 0)]
    assert "TORCHELASTIC_RUN_ID=job" in first.text
    assert first.left() + late.left() == []


def test_of_several_nodes_on_one_machine_the_first_one_coordinates(suprun: Launches, port: int) -> None:
    words = ("--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", LAUNCHED)
    nodes = [suprun(*words) for _ in range(3)]
    assert [launch.end() for launch in nodes] == [0, 0, 0]
    assert sorted(ranks(*nodes)) == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]


def test_nodes_with_one_home_make_one_key_whoever_is_first(suprun: Launches, port: int) -> None:
    home = suprun.folder / "home"
    words = ("--nnodes=4", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", LAUNCHED)
    nodes = [suprun(*words, env={"HOME": str(home), "XDG_CONFIG_HOME": ""}) for _ in range(4)]
    assert [launch.end() for launch in nodes] == [0] * 4, [launch.text for launch in nodes]
    (key,) = (home / ".config" / "supd").iterdir()
    assert (key.name, key.stat().st_mode & 0o777) == ("fleet.pem", 0o600)


def test_a_static_rendezvous_gives_ranks_by_node_rank(suprun: Launches, port: int) -> None:
    def node(number: int, address: int) -> Suprun:
        words = ("--nnodes=3", f"--node-rank={number}", f"--master-addr={HOST}", f"--master-port={port}")
        return suprun(*words, f"--local-addr=127.0.0.{address}", "--nproc-per-node=2", LAUNCHED)

    nodes = [node(2, 3), node(1, 4), node(0, 2)]
    assert [launch.end() for launch in nodes] == [0, 0, 0]
    for launch, places in zip(nodes, ((4, 5), (2, 3), (0, 1)), strict=True):
        assert sorted(rank for rank, _, _ in ranks(launch)) == list(places)


def test_two_nodes_with_one_place_are_named(suprun: Launches, port: int) -> None:
    words = ("--nnodes=3", f"--master-addr={HOST}", f"--master-port={port}")
    numbered = ((0, 2), (1, 3), (1, 4))
    host, *others = (suprun(*words, f"--node-rank={n}", f"--local-addr=127.0.0.{end}", LAUNCHED) for n, end in numbered)
    assert host.end() == 78
    assert re.search("error.C034.: .* and .* both have --node-rank 1", host.text)
    for launch in others:
        launch.signal(signal.SIGTERM)
        assert launch.end() == 143


def test_the_code_of_the_culprit_is_the_same_on_every_node(suprun: Launches, port: int) -> None:
    nodes = [suprun(*elastic(port, number, "2"), LAUNCHED, "sleep", "exit:1:41") for number in (0, 1)]
    assert [launch.end() for launch in nodes] == [41, 41]


def test_nodes_that_are_told_different_things_are_refused_and_both_are_named(suprun: Launches, port: int) -> None:
    host = suprun(*elastic(port, 0, "2"), "--nproc-per-node=2", LAUNCHED)
    other = suprun(*elastic(port, 1, "2"), "--nproc-per-node=3", LAUNCHED)
    assert other.end() == 78
    assert re.search("error.F320.: .* was started with --nproc-per-node 3, and .*, with 2", other.text)
    host.wait_for("not taken in: .* was started with --nproc-per-node 3, and .*, with 2")
    script = suprun(*elastic(port, 1, "2"), "--nproc-per-node=2", worker("recorded"))
    assert script.end() == 78
    assert re.search("error.F320.: .* was started with script .*recorded.py, and .*, with .*launched.py", script.text)
    words = (*elastic(port, 1, "2"), "--nproc-per-node=2", LAUNCHED)
    older = suprun.shell(shlex.join([sys.executable, "-c", OF_VERSION_0_0_1, *words]))
    assert older.end() == 78, older.text
    assert re.search(r"error.F320.: .* was started with version 0[.]0[.]1, and .*, with \d", older.text)
    host.signal(signal.SIGTERM)
    assert host.end() == 143


@pytest.mark.parametrize(("option", "was"), [("--nnodes=3", "2"), ("--rdzv-id=another", "job")])
def test_another_number_of_nodes_or_another_job_is_refused(suprun: Launches, port: int, option: str, was: str) -> None:
    host = suprun(*elastic(port, 0, "2"), LAUNCHED)
    other = suprun(*elastic(port, 1, "2"), option, LAUNCHED)
    assert other.end() == 78
    told = f"was started with {option.replace('=', ' ')}, and .*, where the nodes meet, with {was}"
    assert re.search(f"error.F320.: .* {told}", other.text)
    host.wait_for(f"not taken in: .* {told}")
    host.signal(signal.SIGTERM)
    assert host.end() == 143


@pytest.mark.parametrize("option", [(), ("--insecure",)])
def test_nodes_with_different_keys_tell_how_to_mend_it_on_both_sides(
    suprun: Launches, port: int, option: tuple[str, ...]
) -> None:
    host = suprun(*elastic(port, 0, "2"), *option, LAUNCHED)
    other = suprun(*elastic(port, 1, "2"), LAUNCHED, env={"XDG_CONFIG_HOME": str(suprun.folder / "other")})
    assert other.end() == 78
    assert "error[C035]" in other.text
    mend = "the nodes have different keys: copy .*/fleet.pem of one node to the others, or name one with SUPD_FLEET_KEY"
    assert re.search(f"  = {mend}", other.text)
    mend = "the nodes have different keys: give --insecure on all of them, or on none" if option else mend
    host.wait_for(f"is not let in: .*[.] If {mend}")
    host.signal(signal.SIGTERM)
    assert host.end() == 143


def test_insecure_needs_no_key_and_says_so_on_every_node(suprun: Launches, port: int) -> None:
    nodes = [
        suprun(*elastic(port, number, "2"), "--insecure", LAUNCHED, env={"XDG_CONFIG_HOME": f"/nowhere/{number}"})
        for number in (0, 1)
    ]
    assert [launch.end() for launch in nodes] == [0, 0]
    for launch in nodes:
        assert f"--insecure: whoever reaches port {port} can run programs as you" in launch.text


def test_an_endpoint_whose_port_is_in_use_is_told(suprun: Launches) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        launch = suprun("--nnodes=2", "--node-rank=0", f"--master-addr={HOST}", f"--master-port={port}", LAUNCHED)
        assert launch.end() == 78
    assert f"error[C032]: cannot listen on *:{port}: Address already in use" in launch.text
    assert "name another port" in launch.text


def test_who_waits_in_vain_is_told_for_whom(suprun: Launches, port: int) -> None:
    host = suprun(*elastic(port, 0, "2", "join_timeout=2"), LAUNCHED)
    assert host.end() == 124
    assert "error[C036]" in host.text
    assert "1 of 2 nodes are there" in host.text
    nobody = suprun(*elastic(port, 1, "2", "join_timeout=2"), LAUNCHED)
    assert nobody.end() == 124
    assert "connection refused" in nobody.text.lower()


def test_a_node_that_dies_is_done_without_and_may_come_back(suprun: Launches, port: int) -> None:
    host = suprun(*elastic(port, 0, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    other = suprun(*elastic(port, 1, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    wait_for("both to run", lambda: any(size == 2 for _, size, _ in ranks(host)) and ranks(other))
    other.signal(signal.SIGKILL)
    count = len(ranks(host))
    wait_for("the rest to go on", lambda: len(ranks(host)) > count and ranks(host)[-1][1] == 1)
    again = suprun(*elastic(port, 1, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    wait_for("it to be back", lambda: any(size == 2 for _, size, _ in ranks(again)))
    host.signal(signal.SIGTERM)
    assert (host.end(), again.end()) == (143, 143)


def test_a_node_that_is_told_to_end_leaves_the_others_running(suprun: Launches, port: int) -> None:
    host = suprun(*elastic(port, 0, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    other = suprun(*elastic(port, 1, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    wait_for("both to run", lambda: any(size == 2 for _, size, _ in ranks(host)) and ranks(other))
    other.signal(signal.SIGTERM)
    assert other.end() == 143
    wait_for("the rest to go on", lambda: ranks(host)[-1][1] == 1)
    again = suprun(*elastic(port, 1, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    wait_for("it to be back", lambda: any(size == 2 for _, size, _ in ranks(again)))
    host.signal(signal.SIGTERM)
    assert (host.end(), again.end()) == (143, 143)


def test_the_node_at_the_endpoint_may_die_and_come_back(suprun: Launches, port: int) -> None:
    host = suprun(*elastic(port, 0, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    other = suprun(*elastic(port, 1, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    wait_for("both to run", lambda: any(size == 2 for _, size, _ in ranks(host)) and ranks(other))
    host.signal(signal.SIGKILL)
    other.wait_for("the node that coordinates is away")
    again = suprun(*elastic(port, 0, "1:2", "last_call_timeout=2"), LAUNCHED, "sleep")
    wait_for("both to run again", lambda: any(size == 2 for _, size, _ in ranks(again)))
    again.signal(signal.SIGTERM)
    assert (again.end(), other.end()) == (143, 143)


def deaf_without_its_host(
    suprun: Launches, port: int, nnodes: str, grace: str, number: signal.Signals = signal.SIGKILL
) -> Suprun:
    """A node with a rank that SIGTERM does not end; the one that coordinates was killed, or stopped."""
    words = (f"--shutdown-timeout={grace}", LAUNCHED, "sleep", "deaf")
    host, other = (suprun(*elastic(port, each, nnodes, "last_call_timeout=2"), *words) for each in (0, 1))
    for launch in (host, other):
        launch.wait_for("up RANK.*WORLD_SIZE=2")
    host.signal(number)
    if number is signal.SIGKILL:
        host.end()
    return other


@pytest.mark.parametrize(
    ("nnodes", "number"), [("2", signal.SIGKILL), ("1:2", signal.SIGKILL), ("2", signal.SIGSTOP)], ids=str
)
def test_a_node_is_ended_within_its_grace_where_the_one_that_coordinates_is_gone(
    suprun: Launches, port: int, nnodes: str, number: signal.Signals
) -> None:
    other = deaf_without_its_host(suprun, port, nnodes, "2", number)
    other.signal(signal.SIGTERM)
    other.wait_for("deaf")
    assert other.end() == 143
    assert other.text.count("the node that coordinates is not reached") == 1
    other.wait_until_nothing_is_left()


def test_a_stop_reaches_the_node_that_coordinates_once_it_answers_again(suprun: Launches, port: int) -> None:
    words = ("--shutdown-timeout=6", LAUNCHED, "sleep", "deaf")
    host, other = (suprun(*elastic(port, each, "2"), *words) for each in (0, 1))
    for launch in (host, other):
        launch.wait_for("up RANK")
    host.signal(signal.SIGSTOP)
    other.signal(signal.SIGTERM)
    other.wait_for("is not reached: .*; this node's ranks are ended")
    host.signal(signal.SIGCONT)
    assert (host.end(), other.end()) == (143, 143)


def test_the_second_signal_kills_where_the_node_that_coordinates_is_gone(suprun: Launches, port: int) -> None:
    other = deaf_without_its_host(suprun, port, "2", "600")
    other.signal(signal.SIGINT)
    other.wait_for("deaf")
    other.signal(signal.SIGINT)
    assert other.end() == 130
    other.wait_until_nothing_is_left()


def test_a_signal_while_a_console_that_nobody_reads_is_waited_for_is_no_error(suprun: Launches, port: int) -> None:
    env = suprun("--help").env
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    where = f"--rdzv-endpoint=192.0.2.1:{port}"  # the loopback would be warned of
    words = (*elastic(port, 0, "2"), where, "--insecure", LAUNCHED)
    with subprocess.Popen(
        [str(BIN / "suprun"), *words], env=env, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
    ) as process:
        os.close(writer)

        def is_ended() -> bool:
            caught = re.search("SigCgt:\t(.*)", Path(f"/proc/{process.pid}/status").read_text())
            if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
                process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        try:
            wait_for("it to end", is_ended)
            assert process.returncode == 143
        finally:
            process.kill()
            os.close(reader)


@pytest.mark.parametrize("number", [0, 1], ids=["at the endpoint", "another"])
def test_where_the_number_of_nodes_is_fixed_one_that_dies_is_waited_for(
    suprun: Launches, port: int, number: int
) -> None:
    nodes = [suprun(*elastic(port, each, "2"), LAUNCHED, "sleep") for each in (0, 1)]
    for launch in nodes:
        launch.wait_for("up RANK")
    nodes[number].signal(signal.SIGKILL)
    nodes[number].end()
    nodes[number] = suprun(*elastic(port, number, "2"), LAUNCHED, "sleep")
    for launch in nodes:
        launch.wait_for("WORLD_SIZE=2 .*RESTART_COUNT=1")
    nodes[0].signal(signal.SIGTERM)
    assert [launch.end() for launch in nodes] == [143, 143]

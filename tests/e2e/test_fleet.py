"""A fleet of real supd: one generation everywhere, whoever dies."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import alive, wait_for

AT_ONCE = '[restart]\nbackoff = "0s"\nexclude_node_after = 0\n'


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """Two nodes, a and b."""
    with running_fleet(short_dir) as nodes:
        yield nodes


def test_a_job_runs_on_all_nodes_whichever_of_them_it_is_started_at(fleet: Fleet) -> None:
    path = fleet.job("ok", "sleeper.py", "--for", "0.3", nproc=2)
    done = fleet["b"].supctl("start", str(path), "--follow")
    assert "rank 0 of 4 generation 0" in done.stdout
    logs = fleet["b"].supctl("logs", "ok", "--ranks", "all").stdout
    assert all(f"rank {rank} of 4 generation 0" in logs for rank in range(4)), logs
    assert fleet["b"].status("ok") == fleet.host.status("ok") | {"logs_dir": None}, "that is a folder of the host"
    status = fleet.host.status("ok")
    assert (status["state"], status["generation"], status["nodes"]) == ("succeeded", 0, ["a", "b"])
    assert [(r["rank"], r["node"], r["exit_code"]) for r in fleet.ranks("ok")] == [
        (0, "a", 0),
        (1, "a", 0),
        (2, "b", 0),
        (3, "b", 0),
    ]
    wait_for("all to be gone", lambda: not fleet.workers())


def test_a_rank_that_dies_brings_everybody_back_at_the_next_generation(fleet: Fleet) -> None:
    run = fleet.host.start_job(fleet.job("train", "sleeper.py", tables=AT_ONCE))
    fleet.wait_generation(run, 0)
    before = [rank["pid"] for rank in fleet.ranks(run)]
    os.kill(before[1], signal.SIGKILL)
    status = fleet.wait_generation(run, 1)
    assert status["restarts_used"] == 1
    incident = status["incident"]
    assert (incident["cause"], incident["rank"], incident["node"], incident["signal"]) == ("signal", 1, "b", "SIGKILL")
    assert not set(before) & {rank["pid"] for rank in fleet.ranks(run)}
    fleet["b"].supctl("stop", run)
    assert fleet.host.status(run)["state"] == "stopped"
    assert fleet.workers() == []


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_supd_that_is_killed_and_comes_back_costs_a_run_nothing(fleet: Fleet, name: str) -> None:
    run = fleet.host.start_job(fleet.job("train", "sleeper.py"))
    fleet.wait_generation(run, 0)
    before = [rank["pid"] for rank in fleet.ranks(run)]
    fleet[name].kill()
    fleet[name].start()
    fleet.wait_joined("a", "b")
    status = fleet.wait_generation(run, 0)
    assert (status["restarts_used"], [rank["pid"] for rank in fleet.ranks(run)]) == (0, before)


@pytest.mark.parametrize("is_alive", [True, False], ids=["supd-alive", "supd-too"])
def test_a_node_that_loses_everything_of_a_run_is_back_in_the_next_generation(fleet: Fleet, is_alive: bool) -> None:
    run = fleet.host.start_job(fleet.job("train", "sleeper.py", tables=AT_ONCE))
    fleet.wait_generation(run, 0)
    node, ranks = fleet["b"], fleet.ranks(run)
    mine = [*node.runner_pids(), *node.guard_pids(), ranks[1]["pid"]]
    if not is_alive:
        node.kill()
    for pid in mine:
        os.kill(pid, signal.SIGKILL)
    if not is_alive:
        node.start()
    status = fleet.wait_generation(run, 1)
    assert (status["incident"]["cause"], status["incident"]["node"]) == ("runner-lost", "b")
    wait_for("the old ranks to be gone", lambda: not any(alive(rank["pid"]) for rank in ranks))


@pytest.mark.parametrize(("extra", "sizes"), [("grow", (3, 2, 3)), ("standby", (2, 2, 2))])
def test_a_node_is_left_out_when_it_is_asked_for_and_comes_in_again(
    short_dir: Path, extra: str, sizes: tuple[int, int, int]
) -> None:
    with running_fleet(short_dir, 3) as fleet:
        tables = f'extra_nodes = "{extra}"\n{AT_ONCE}'
        run = fleet.host.start_job(fleet.job("train", "sleeper.py", nnodes="2:3", tables=tables))
        out = fleet.wait_generation(run, 0)["nodes"][-1]
        seen = [fleet.wait_generation(run, 0)["nodes"]]
        fleet["b"].supctl("restart", run, "--without", out)
        seen.append(fleet.wait_generation(run, 1)["nodes"])
        fleet["b"].supctl("restart", run)
        seen.append(fleet.wait_generation(run, 2)["nodes"])
        assert tuple(map(len, seen)) == sizes
        assert out not in seen[1]
        assert [rank["node"] for rank in fleet.ranks(run)] == seen[2]
        wait_for("no other ranks to be alive", lambda: len(fleet.workers()) == len(seen[2]))


def test_a_whole_fleet_of_supd_that_is_killed_and_comes_back_costs_a_run_nothing(fleet: Fleet) -> None:
    run = fleet.host.start_job(fleet.job("train", "sleeper.py"))
    fleet.wait_generation(run, 0)
    before = [rank["pid"] for rank in fleet.ranks(run)]
    for supd in fleet.nodes.values():
        supd.kill()
    fleet.start()
    status = fleet.wait_generation(run, 0)
    assert (status["restarts_used"], [rank["pid"] for rank in fleet.ranks(run)]) == (0, before)
    os.kill(before[0], signal.SIGKILL)
    fleet.wait_generation(run, 1)


def test_the_order_in_which_nodes_start_does_not_matter(short_dir: Path) -> None:
    fleet = Fleet(short_dir)
    try:
        fleet["b"].launch()
        wait_for("b to be ready", lambda: b'"supd_ready"' in fleet["b"].log.read_bytes())
        refused = fleet["b"].supctl("status", check=False)
        assert (refused.returncode, "coordinator" in refused.stderr) == (69, True), refused.stderr
        fleet.host.start()
        fleet.wait_joined("a", "b")
        assert fleet["b"].supctl("status").returncode == 0
    finally:
        fleet.close()


def test_a_supd_that_never_found_its_host_ends_when_it_is_told(short_dir: Path) -> None:
    fleet = Fleet(short_dir)
    node = fleet["b"]
    try:
        node.launch()
        wait_for("b to be ready", lambda: b'"supd_ready"' in node.log.read_bytes())
        node.kill(signal.SIGTERM)
        assert node.process is not None
        assert node.process.returncode == 0
        assert b"Traceback" not in node.log.read_bytes()
    finally:
        fleet.close()

"""A fleet of three as its operator meets it: nodes that come late, are left out or left over; what each node tells."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.supd import TIMEOUT_S, wait_for
from tests.e2e.threes import AT_ONCE, Copies, survivors


def waits_for(fleet: Fleet, run: str, *words: str) -> Any:
    """Wait until the run says that it waits for this; returns its status."""

    def look() -> Any:
        status = fleet.host.status(run)
        return status if all(word in (status["waiting_for"] or "") for word in words) else None

    return wait_for(f"{run} to wait for {words}", look)


@pytest.mark.parametrize("node", ["a", "b"], ids=["host", "other"])
def test_a_node_is_left_out_by_a_restart_without_it_and_taken_in_again_by_the_next(fleet: Fleet, node: str) -> None:
    run = Copies(fleet, f"without-{node}", "grow")
    fleet["c"].supctl("restart", run.run, "--without", node, "--reason", "it is hot")
    status = run.at(1)
    assert (status["nodes"], status["restarts_used"]) == ([name for name in "abc" if name != node], 0)
    assert run.ranks(node) == []
    [asked] = fleet.events(run.run, "operator.restarted")
    assert (asked["detail"]["without"], "it is hot" in asked["text"]) == (node, True)
    fleet["b"].supctl("restart", run.run)
    assert sorted(run.at(2)["nodes"]) == ["a", "b", "c"]
    run.finish()


def test_a_spare_takes_the_place_of_a_node_that_is_left_out_and_gives_it_back_to_nobody(fleet: Fleet) -> None:
    run = Copies(fleet, "inherits", "standby")
    fleet.host.supctl("restart", run.run, "--without", "b")
    assert run.at(1)["nodes"] == ["a", "c"]
    fleet.host.supctl("restart", run.run)
    assert run.at(2, spares=1)["nodes"] == ["a", "c"]
    assert fleet.host.status(run.run)["spares"] == ["b"]
    run.finish()


def test_a_run_that_cannot_do_without_a_node_is_not_restarted_without_it(fleet: Fleet) -> None:
    run = Copies(fleet, "needed", "fixed")
    for node, words in (("b", "2 nodes"), ("nobody", "no node nobody")):
        refused = fleet["b"].supctl("restart", run.run, "--without", node, check=False)
        assert refused.returncode != 0
        assert words in refused.stderr
    assert run.at(0)["incident"] is None
    run.finish()


def test_a_node_that_comes_late_is_waited_for_by_name_and_the_run_begins_once_it_is_there(fleet: Fleet) -> None:
    fleet["c"].kill()
    wait_for("c to be away", lambda: node_of(fleet, "c")["state"] == "unreachable")
    run = fleet["b"].start_job(fleet.job("late", "sleeper.py"))
    status = waits_for(fleet, run, "c (unreachable)", "2 of 3 nodes")
    assert (status["generation"], status["ranks_running"]) == (None, 0)
    fleet["c"].launch()
    assert fleet.wait_generation(run, 0)["nodes"] == ["a", "b", "c"]


def test_a_follower_of_a_run_that_waits_for_its_nodes_says_so_and_shows_it_once_it_begins(fleet: Fleet) -> None:
    fleet["c"].kill()
    wait_for("c to be away", lambda: node_of(fleet, "c")["state"] == "unreachable")
    run = fleet["b"].start_job(fleet.job("awaited", "sleeper.py"))
    waits_for(fleet, run, "c (unreachable)", "2 of 3 nodes")
    with fleet["b"].popen("logs", "-f", "awaited") as following:
        assert following.stderr is not None
        try:
            assert "waiting for" in following.stderr.readline()
            fleet["c"].launch()
            fleet.wait_generation(run, 0)
            fleet.host.supctl("stop", run)
            out, _ = following.communicate(timeout=TIMEOUT_S)
        finally:
            following.kill()
    assert following.returncode == 0
    assert "── awaited generation 0 · 3 ranks" in out
    assert out.splitlines()[-1].startswith(f"── {run} stopped")


def test_a_node_that_comes_while_a_run_grows_without_it_disturbs_nobody_until_the_next_restart(fleet: Fleet) -> None:
    fleet["c"].kill()
    wait_for("c to be away", lambda: node_of(fleet, "c")["state"] == "unreachable")
    tables = '[rendezvous]\nlast_call = "1s"\n'
    run = Copies(fleet, "grows", "grow", tables=AT_ONCE + tables)
    assert run.at(0)["nodes"] == ["a", "b"]
    fleet["c"].start()
    assert run.at(0, spares=1)["spares"] == ["c"]
    assert run.starts(0) == 2
    fleet.host.supctl("restart", run.run)
    assert run.at(1)["nodes"] == ["a", "b", "c"]
    run.finish()


def test_a_node_left_over_parks_and_is_free_for_another_job(fleet: Fleet) -> None:
    two = fleet.host.start_job(fleet.job("two", "sleeper.py", nnodes=2))
    assert fleet.wait_generation(two, 0)["nodes"] == ["a", "b"]
    one = fleet.host.start_job(fleet.job("one", "sleeper.py", nnodes=1))
    assert fleet.wait_generation(one, 0)["nodes"] == ["c"]
    assert [node["runs"] for node in fleet.host.json("nodes")["nodes"]] == [[two], [two], [one]]
    fleet.host.supctl("restart", two)
    assert fleet.wait_generation(two, 1)["nodes"] == ["a", "b"]
    assert fleet.host.status(one)["generation"] == 0


def test_a_job_runs_only_where_it_may_also_where_it_is_started_elsewhere(fleet: Fleet) -> None:
    run = fleet.host.start_job(fleet.job("picky", "sleeper.py", nnodes=2, tables='exclude = ["a*"]\n'))
    assert fleet.wait_generation(run, 0)["nodes"] == ["b", "c"]
    tables = 'nodes = ["c", "d"]\n[rendezvous]\njoin_timeout = "1s"\n'
    done = fleet["b"].supctl("start", str(fleet.job("absent", "sleeper.py", nnodes=2, tables=tables)), check=False)
    assert (done.returncode, "d (has not joined the fleet)" in done.stderr) == (75, True), done.stderr


def test_every_node_tells_the_same_of_the_fleet_its_runs_and_their_output(fleet: Fleet) -> None:
    run = fleet["c"].start_job(fleet.job("told", "sleeper.py", nproc=2))
    fleet.wait_generation(run, 0)
    wait_for("all to have said who they are", lambda: fleet.host.supctl(*LOGS, run).stdout.count(" of 6 ") == 6)
    for supd in fleet.nodes.values():
        nodes = {node["node"]: node for node in supd.json("nodes")["nodes"]}
        assert [(name, node["state"], node["runs"]) for name, node in nodes.items()] == [
            (name, "ready", [run]) for name in "abc"
        ]
        assert [node["address"] for node in nodes.values()] == list(fleet.addresses.values())
        assert supd.status(run)["nodes"] == ["a", "b", "c"]
        ranks = supd.json("ps", run)["ranks"]
        assert [(rank["rank"], rank["node"]) for rank in ranks] == list(enumerate("aabbcc"))
        logs = supd.supctl(*LOGS, run).stdout
        for rank in ranks:
            assert f"{rank['node']}:{rank['rank']} │ rank {rank['rank']} of 6 generation 0 pid {rank['pid']}\n" in logs
        described = supd.supctl("describe", "node", "b").stdout
        assert "b  ready" in described
        assert f"{run} (ranks 2-3)" in described
    table = fleet["b"].supctl("status", run).stdout
    assert [line.split()[:4] for line in table.splitlines() if line.split()[:1] in (["a"], ["b"], ["c"])] == [
        ["a", "ready", "0-1", "2/2"],
        ["b", "ready", "2-3", "2/2"],
        ["c", "ready", "4-5", "2/2"],
    ]
    unknown = fleet["b"].supctl("describe", "node", "d", check=False)
    assert (unknown.returncode, "no node d" in unknown.stderr) == (3, True), unknown.stderr


LOGS = ("logs", "--ranks", "all")


def test_a_stop_lets_the_ranks_of_every_node_save_and_is_over_when_all_are_gone(fleet: Fleet) -> None:
    here = own_folder(fleet, "saves")
    job = fleet.host.job("saves", "saver.py", nproc=1, tables="nnodes = 3\n", run=f'workdir = "{here}"')
    run = fleet.host.start_job(job)
    wait_for("all to be ready", lambda: fleet.host.supctl(*LOGS, run).stdout.count(" ready\n") == 3)
    fleet["c"].supctl("stop", run)
    assert survivors(fleet) == []
    assert fleet.host.status(run)["state"] == "stopped"
    assert sorted(path.name for path in here.glob("saved-*")) == [f"saved-saves-0-{rank}" for rank in range(3)]


def test_stop_now_ends_ranks_that_do_not_listen_on_every_node(fleet: Fleet) -> None:
    here = own_folder(fleet, "deaf")
    tables = 'nnodes = 3\n[stop]\ngrace = "1h"\n'
    run = fleet.host.start_job(fleet.host.job("deaf", "stubborn.py", nproc=1, tables=tables, run=f'workdir = "{here}"'))
    wait_for("all to be ready", lambda: fleet.host.supctl(*LOGS, run).stdout.count(" ready\n") == 3)
    stop = fleet["b"].popen("stop", run)
    try:
        fleet.host.wait_state(run, "stopping")
        fleet["c"].supctl("stop", run, "--now")
        assert survivors(fleet) == []
        stop.communicate(timeout=60)
    finally:
        stop.kill()
        stop.communicate()
    assert fleet.host.status(run)["state"] == "stopped"


def own_folder(fleet: Fleet, name: str) -> Path:
    folder = fleet.folder / name
    folder.mkdir()
    return folder


def node_of(fleet: Fleet, name: str) -> Any:
    """What the host tells of a node."""
    return next(node for node in fleet.host.json("nodes")["nodes"] if node["node"] == name)

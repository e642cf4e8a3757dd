"""Processes of a node die, with real processes: the run is where it should be then, and nothing of it runs twice."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.supd import WORKERS, wait_for
from tests.e2e.threes import AT_ONCE, SIZES, Copies, kill, parent_of, survivors
from tests.netns import fleet_in_namespaces, needs_namespaces


def sees_the_loss(status: Any, size: str) -> bool:
    """Whether those have ranks who should, after the runner of b was gone.

    A spare is in its place, unless another runner is there on b by the time when the ranks of a have ended.
    """
    nodes, spares = status["nodes"], status["spares"]
    if size == "standby":
        return (nodes, spares) in ((["a", "c"], ["b"]), (["a", "c"], []), (["a", "b"], ["c"]))
    return (nodes, spares) == (["a", "b", "c"], [])


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_dies_costs_one_restart_on_the_nodes_that_were_there(fleet: Fleet, size: str) -> None:
    run = Copies(fleet, f"rank-{size}", size)
    nodes = fleet.host.status(run.run)["nodes"]
    kill(*run.ranks("b"))
    status = run.at(1)
    incident = status["incident"]
    assert (incident["cause"], incident["node"], incident["rank"], incident["signal"]) == ("signal", "b", 1, "SIGKILL")
    assert (status["nodes"], status["restarts_used"]) == (nodes, 1)
    assert run.finish()["generation"] == 1
    assert [run.starts(generation) for generation in (0, 1, 2)] == [len(nodes), len(nodes), 0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("victims", ["runner", "runner-and-guard", "all-but-supd", "all"])
def test_a_node_that_loses_its_runner_is_replaced_by_a_spare_or_is_there_again_and_that_is_not_charged(
    fleet: Fleet, size: str, victims: str
) -> None:
    run = Copies(fleet, f"{victims}-{size}", size)
    runner = run.runner("b")
    doomed = [runner]
    if victims != "runner":
        doomed = [parent_of(runner), runner]
    if victims.startswith("all"):
        doomed += run.ranks("b")
    if victims == "all":
        fleet["b"].kill()
    kill(*doomed)
    if victims == "all":
        fleet["b"].launch()
    status = run.at(1)
    assert (status["incident"]["cause"], status["incident"]["node"]) == ("runner-lost", "b")
    assert status["restarts_used"] == 0
    assert sees_the_loss(status, size), status
    if size == "standby":  # and whoever has no ranks stands by
        assert sorted([*status["nodes"], *run.at(1, spares=1)["spares"]]) == ["a", "b", "c"]
    assert [rank["node"] for rank in fleet.ranks(run.run)] == status["nodes"]
    assert run.finish()["generation"] == 1
    assert run.starts(1) == len(status["nodes"])


@needs_namespaces
def test_a_spare_takes_the_place_of_a_node_that_cannot_run_the_job_any_more(short_dir: Path) -> None:
    script = short_dir / "train.py"
    script.write_text((WORKERS / "sleeper.py").read_text())
    job = short_dir / "train.toml"
    job.write_text(
        f'name = "train"\n[run]\nscript = "{script}"\npython = "{sys.executable}"\n'
        f"[topology]\nnproc_per_node = 1\n{SIZES['standby']}{AT_ONCE}"
    )
    with fleet_in_namespaces(short_dir, 3) as fleet:
        run = fleet["b"].start_job(job)
        assert fleet.wait_generation(run, 0)["nodes"] == ["a", "b"]
        subprocess.run(fleet.hosts.of["b"].argv("mount", "--bind", "/dev/null", str(script)), check=True)
        runner = parent_of(fleet.ranks(run)[1]["pid"])
        kill(parent_of(runner), runner)
        status = fleet.wait_generation(run, 1)
        assert (status["nodes"], status["incident"]["node"], status["restarts_used"]) == (["a", "c"], "b", 0)
        [note] = [event for event in fleet.events(run, "generation.launched") if event["generation"] == 1]
        assert "c takes the place of b" in note["text"]


def test_a_node_that_is_gone_without_proof_is_waited_for_and_not_replaced(fleet: Fleet) -> None:
    run = Copies(fleet, "unproven", "standby")
    runner = run.runner("b")
    fleet["b"].kill()
    kill(parent_of(runner), runner, *run.ranks("b"))
    wait_for("b to be unreachable", lambda: states(fleet)["b"] == "unreachable")
    status = fleet.host.status(run.run)
    assert (status["generation"], status["nodes"]) == (0, ["a", "b"])
    assert run.starts(1) == 0
    fleet["b"].launch()
    assert sees_the_loss(run.at(1), "standby")
    run.finish()


@pytest.mark.parametrize("size", SIZES)
def test_a_guard_or_a_supd_that_dies_is_replaced_and_the_ranks_do_not_notice(fleet: Fleet, size: str) -> None:
    run = Copies(fleet, f"unnoticed-{size}", size)
    before, guard, runner = run.pids(), parent_of(run.runner("b")), run.runner("b")
    kill(guard)
    wait_for("another guard", lambda: {parent_of(pid) for pid in fleet["b"].guard_pids()} >= {runner})
    fleet["b"].kill()
    fleet["b"].start()
    fleet.wait_joined("b")
    status = run.at(0)
    assert (run.pids(), status["restarts_used"], status["incident"]) == (before, 0, None)
    kill(runner)  # whose new guard, no child of the new supd, proves its end
    assert sees_the_loss(run.at(1), size)
    run.finish()


def test_a_spare_that_loses_its_runner_disturbs_nobody_and_stands_by_again(fleet: Fleet) -> None:
    run = Copies(fleet, "spare", "standby")
    before, old = run.pids(), {*fleet["c"].runner_pids(), *fleet["c"].guard_pids()}
    kill(*old)
    wait_for("c's runners to be others", lambda: len(fleet["c"].runner_pids()) == 2)
    status = run.at(0, spares=1)
    assert (status["spares"], run.pids(), status["incident"]) == (["c"], before, None)
    assert not old & {*fleet["c"].runner_pids(), *fleet["c"].guard_pids()}
    run.finish()


def test_every_supd_is_told_to_end_and_replaced_one_after_the_other_and_the_ranks_do_not_notice(fleet: Fleet) -> None:
    run = Copies(fleet, "rolling", "fixed")
    before = run.pids()
    for name, supd in fleet.nodes.items():
        supd.kill(signal.SIGTERM)
        assert supd.process is not None
        assert supd.process.returncode == 0
        supd.start()
        fleet.wait_joined(name)
    fleet.wait_joined(*fleet.nodes)
    status = run.at(0)
    assert (run.pids(), status["restarts_used"], status["incident"]) == (before, 0, None)
    run.finish()


def test_a_stop_reaches_the_ranks_of_a_node_whose_supd_is_away(fleet: Fleet) -> None:
    run = Copies(fleet, "reached", "fixed")
    fleet["b"].kill()
    fleet["c"].supctl("stop", run.run)
    assert (fleet.host.status(run.run)["state"], survivors(fleet)) == ("stopped", [])


def test_a_stop_is_not_over_before_a_node_that_lost_everything_has_told_so(fleet: Fleet) -> None:
    run = Copies(fleet, "untold", "fixed")
    runner = run.runner("b")
    fleet["b"].kill()
    kill(parent_of(runner), runner)
    stop = fleet["c"].popen("stop", run.run)
    wait_for("a and c to have stopped", lambda: fleet.host.status(run.run)["ranks_running"] <= 1)
    assert fleet.host.status(run.run)["state"] == "stopping"
    fleet["b"].launch()
    stop.communicate(timeout=60)
    assert (stop.returncode, fleet.host.status(run.run)["state"], survivors(fleet)) == (0, "stopped", [])


def test_a_node_with_another_state_folder_does_not_get_the_name_under_which_ranks_may_run(fleet: Fleet) -> None:
    run = Copies(fleet, "seated", "fixed")
    before, node = run.pids(), fleet["b"]
    node.kill()
    config = node.config.read_text()
    other = node.folder / "other"
    other.mkdir(0o700)
    (other / "fleet.pem").write_bytes((node.state / "fleet.pem").read_bytes())
    (other / "fleet.pem").chmod(0o600)
    node.config.write_text(config.replace(f'"{node.state}"', f'"{other}"'))
    try:
        node.launch()
        wait_for("b to be refused", lambda: b"F305" in fleet.host.log.read_bytes())
        refused = wait_for(
            "b to tell", lambda: [line for line in node.log.read_text().splitlines() if "may still" in line]
        )
        assert run.run in refused[0]
        node.kill(signal.SIGTERM)
    finally:
        node.config.write_text(config)
    node.start()
    fleet.wait_joined("b")
    assert (run.at(0)["restarts_used"], run.pids()) == (0, before)
    run.finish()


def test_a_rank_may_die_while_the_supd_of_its_node_is_away(fleet: Fleet) -> None:
    run = Copies(fleet, "unattended", "fixed")
    fleet["b"].kill()
    kill(*run.ranks("b"))
    status = run.at(1)
    assert (status["nodes"], status["restarts_used"], status["incident"]["node"]) == (["a", "b", "c"], 1, "b")
    fleet["b"].start()
    fleet.wait_joined("b")
    assert run.at(1)["restarts_used"] == 1
    run.finish()


def test_while_the_host_is_away_ranks_go_on_and_a_failure_waits_for_it(fleet: Fleet) -> None:
    run = Copies(fleet, "headless", "fixed")
    before = run.pids()
    fleet.host.kill()
    refused = fleet["b"].supctl("status", check=False)
    assert (refused.returncode, "go on" in refused.stderr) == (69, True), refused.stderr
    fleet.host.start()
    fleet.wait_joined("a", "b", "c")
    assert (run.at(0)["restarts_used"], run.pids()) == (0, before)
    fleet.host.kill()
    kill(before[2])
    fleet.host.start()
    status = run.at(1)
    assert (status["restarts_used"], status["incident"]["node"], status["incident"]["rank"]) == (1, "c", 2)
    run.finish()


def test_everything_on_every_node_dies_at_once_and_the_run_goes_on_when_they_are_back(fleet: Fleet) -> None:
    run = Copies(fleet, "blackout", "fixed")
    doomed = [pid for node in "abc" for pid in (parent_of(run.runner(node)), run.runner(node), *run.ranks(node))]
    for supd in fleet.nodes.values():
        supd.kill()
    kill(*doomed)
    for supd in reversed(fleet.nodes.values()):
        supd.launch()
    fleet.host.wait_until_ready()
    status = run.at(1)
    assert (status["nodes"], status["restarts_used"]) == (["a", "b", "c"], 0)
    run.finish()


def test_victims_of_a_failure_that_die_for_seconds_after_belong_to_it(fleet: Fleet) -> None:
    trigger = fleet.folder / "trigger"
    run = fleet.host.start_job(fleet.job("victims", "victims.py", str(trigger), nproc=2, tables=AT_ONCE))
    fleet.wait_generation(run, 0)
    trigger.touch()
    status = fleet.wait_generation(run, 1)
    incident = status["incident"]
    assert (incident["rank"], incident["node"], incident["exit_code"]) == (3, "b", 7)
    assert (status["restarts_used"], incident["number"]) == (1, 1)
    assert [len(fleet.events(run, kind)) for kind in ("incident.opened", "restart.decided")] == [1, 1]


def states(fleet: Fleet) -> dict[str, str]:
    return {node["node"]: node["state"] for node in fleet.host.json("nodes")["nodes"]}

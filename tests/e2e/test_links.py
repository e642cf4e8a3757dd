"""A fleet on hosts of its own, whose links are disturbed: slow and lossy ones cost time, and nothing else."""

from pathlib import Path

from tests.e2e.supd import wait_for
from tests.netns import NamespaceFleet, fleet_in_namespaces, needs_namespaces

pytestmark = needs_namespaces


def states(fleet: NamespaceFleet) -> dict[str, str]:
    """The states of all nodes, as the host sees them."""
    return {node["node"]: node["state"] for node in fleet.host.json("nodes")["nodes"]}


def test_a_fleet_with_a_slow_and_lossy_link_forms_restarts_and_ends(short_dir: Path) -> None:
    with fleet_in_namespaces(short_dir, 3) as fleet:
        fleet.hosts.set_link("c", delay_ms=50, loss_pct=5)
        run = fleet.host.start_job(fleet.job("train", "sleeper.py"))
        assert fleet.wait_generation(run, 0)["nodes"] == ["a", "b", "c"]
        fleet["c"].supctl("restart", run)
        fleet.wait_generation(run, 1)
        fleet["b"].supctl("stop", run)
        fleet.host.wait_state(run, "stopped")
        assert fleet.hosts.links()["c"]["lost"] > 0


def test_a_node_that_is_cut_off_is_taken_in_again_when_its_link_is_healed(short_dir: Path) -> None:
    with fleet_in_namespaces(short_dir, 2) as fleet:
        fleet.hosts.cut("b")
        wait_for("b to be unreachable", lambda: states(fleet)["b"] == "unreachable")
        fleet.hosts.heal("b")
        fleet.wait_joined("b")
        done = fleet["b"].supctl("start", str(fleet.job("ok", "sleeper.py", "--for", "0")), "--follow", "--quiet")
        assert done.returncode == 0


def test_a_runner_that_is_cut_off_gives_its_connection_up_and_is_heard_soon_after_the_link_is_healed(
    short_dir: Path,
) -> None:
    with fleet_in_namespaces(short_dir, 2, config='[lease]\non_isolation = "keep"\n') as fleet:
        run = fleet.host.start_job(fleet.job("train", "sleeper.py"))
        fleet.wait_generation(run, 0)
        (said,) = (fleet["b"].state / "runs" / run).glob("*.log")
        fleet.hosts.cut("b")
        wait_for("its runner to give up", lambda: "coordinator_lost" in said.read_text())
        fleet.hosts.heal("b")
        wait_for("the run to wait for nothing", lambda: not fleet.host.status(run)["waiting_for"])
        assert fleet.host.status(run)["generation"] == 0

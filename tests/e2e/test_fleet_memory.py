"""The coordinator has lost its memory, or cannot know what an operator does: two real nodes."""

from pathlib import Path
from typing import Any

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import carriers, wait_for
from tests.e2e.threes import AT_ONCE, kill, survivors

FAST = '[lease]\nrenew = "0.4s"\nalone = "0.8s"\nsuspect = "1.2s"\nfence = "1.5s"\nttl = "2s"\nword = "0.8s"\n'
KEEP = f'{FAST}on_isolation = "keep"\n'
ELASTIC = f'extra_nodes = "grow"\n{AT_ONCE}'


def places(fleet: Fleet, run: str) -> list[tuple[str, int]]:
    """Where each rank runs, and as which process; all of them have one."""

    def look() -> list[tuple[str, int]] | None:
        ranks = [(rank["node"], rank["pid"]) for rank in fleet.ranks(run)]
        return ranks if ranks and all(pid for _, pid in ranks) else None

    return wait_for("every rank to be known", look)


def loses_its_memory(fleet: Fleet, run: str) -> None:
    """The host's supd is killed, its journal is gone when the next one starts, and a runner tells that of the run."""
    fleet.host.kill()
    for path in fleet.host.state.glob("journal.db*"):
        path.unlink()
    fleet.host.launch()
    fleet.host.wait_until_ready()
    fleet.wait_joined(*fleet.nodes)
    wait_for(f"{run} to be told", lambda: fleet.host.supctl("status", run, check=False).returncode == 0)


def test_a_run_that_the_coordinator_has_forgotten_goes_on_untouched_and_can_be_stopped(short_dir: Path) -> None:
    """R6: what it knows of it now is what the runners have told."""
    with running_fleet(short_dir) as fleet:
        run = fleet.host.start_job(fleet.job("train", "sleeper.py"))
        fleet.wait_generation(run, 0)
        before = places(fleet, run)
        loses_its_memory(fleet, run)
        status = fleet.wait_generation(run, 0)
        assert status["nodes"] == ["a", "b"]
        assert places(fleet, run) == before
        assert len(fleet.events(run, "job.taken_over")) == 1
        assert len(fleet.events(run, "run.taken_over")) == 1
        fleet["b"].supctl("stop", run)
        assert fleet.host.wait_state(run, "stopped")["generation"] == 0
        wait_for("nothing to be left of it", lambda: not survivors(fleet))


def test_a_run_that_was_taken_over_is_restarted_like_any_other_one(short_dir: Path) -> None:
    with running_fleet(short_dir) as fleet:
        run = fleet.host.start_job(fleet.job("train", "sleeper.py", tables=AT_ONCE))
        fleet.wait_generation(run, 0)
        before = places(fleet, run)
        loses_its_memory(fleet, run)
        fleet.wait_generation(run, 0)
        kill(before[1][1])
        fleet.wait_generation(run, 1)
        (_,) = fleet.host.state.glob(f"runs/{run}/*.log")  # no second runner beside that which was forgotten
        after = places(fleet, run)
        assert [node for node, _ in after] == ["a", "b"]
        assert not set(after) & set(before)


def state_of(fleet: Fleet, node: str) -> Any:
    """A node, as an operator sees it."""
    return next(one for one in fleet.host.json("nodes")["nodes"] if one["node"] == node)


def test_a_run_that_waits_for_proof_goes_on_without_a_node_once_an_operator_says_that_it_is_lost(
    short_dir: Path,
) -> None:
    """Without witnesses there is only proof, and nobody is left on b to give it."""
    with running_fleet(short_dir, config=KEEP) as fleet:
        run = fleet.host.start_job(fleet.job("train", "sleeper.py", nnodes="1:2", tables=ELASTIC))
        fleet.wait_generation(run, 0)
        untouched = places(fleet, run)[0]
        answers = fleet.host.supctl("node", "lost", "b", "--yes", check=False)
        assert (answers.returncode, "F115" in answers.stderr) == (1, True)
        fleet["b"].kill()
        kill(*carriers(fleet["b"].marker))

        def is_silent() -> Any:
            node = state_of(fleet, "b")
            return node if "its runner was heard" in node["note"] else None

        assert wait_for("its silence to be noticed", is_silent)["state"] == "unreachable"
        status = fleet.host.status(run)
        assert (status["generation"], status["state"]) == (0, "running")
        assert places(fleet, run)[0] == untouched, "that proves nothing"
        assert fleet.host.supctl("node", "lost", "b", "--yes", "--quiet").stdout == f"{run}\n"
        assert fleet.wait_generation(run, 1)["nodes"] == ["a"]
        (event,) = fleet.events(run, "operator.node_lost")
        assert event["detail"]["node"] == "b"
        fleet["b"].launch()
        fleet.wait_joined("b")
        wait_for("it to stand by", lambda: state_of(fleet, "b")["spare_of"] == [run])
        fleet.host.supctl("restart", run)
        assert fleet.wait_generation(run, 2)["nodes"] == ["a", "b"]

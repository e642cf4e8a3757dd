"""A fleet of three whose operator takes nodes out, scales runs, and gives them another job file."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.supd import TIMEOUT_S, Supd, wait_for

AT_ONCE = '[restart]\nbackoff = "0s"\nbackoff_max = "0s"\n'


class Training:
    """A run of saves.py, which saves when it is asked to."""

    def __init__(self, fleet: Fleet, name: str, topology: str, *, tables: str = "", has_saves: bool = True) -> None:
        """Starts it, and waits until all of its ranks run."""
        self.fleet, self.name = fleet, name
        self.shared = fleet.folder / f"{name}.shared"
        self.shared.mkdir()
        checkpoint = f'[checkpoint]\nmarker = "{self.shared}/marker"\n' if has_saves else ""
        self.tables = f"{topology}\n{AT_ONCE}{checkpoint}{tables}"
        self.run = fleet.host.start_job(self.job())
        self.at(0)

    def job(self, *args: str) -> Path:
        """Its file."""
        return self.fleet.host.job(self.name, "saves.py", str(self.shared), *args, nproc=1, tables=self.tables)

    def at(self, generation: int) -> Any:
        """Wait until every rank of this generation runs; returns the run's status."""
        return self.fleet.wait_generation(self.run, generation)

    def save(self) -> None:
        """Have it save once."""
        (self.shared / "save").touch()

    def notes(self) -> list[str]:
        """What ranks have noted."""
        return (self.shared / "notes").read_text().splitlines()

    def waits(self, *words: str) -> Any:
        """Wait until its planned change is this; returns the run's status."""

        def look() -> Any:
            status = self.fleet.host.status(self.run)
            return status if all(word in (status["plan"] or "") for word in words) else None

        return wait_for(f"{self.run} to plan {words}", look)


@pytest.fixture
def drained(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, whose nodes are used again afterwards."""
    yield fleet
    fleet.host.supctl("undrain", *fleet.nodes)


def state_of(supd: Supd, name: str) -> str:
    [state] = [node["state"] for node in supd.json("nodes")["nodes"] if node["node"] == name]
    return str(state)


def test_a_run_leaves_a_node_at_its_next_checkpoint_for_a_spare_and_supctl_looks_on(drained: Fleet) -> None:
    run = Training(drained, "moves", 'nnodes = "2:3"')
    wait_for("a spare", lambda: drained.host.status(run.run)["spares"] == ["c"])
    with drained["c"].popen("drain", "b", "--reason", "swap NIC") as draining:
        assert draining.stderr is not None
        try:
            first = draining.stderr.readline()
            assert first == f"b takes no new work. {run.run} uses it (rank 1); spare c is ready.\n"
            status = run.waits("b is to be free (swap NIC)", "next checkpoint")
            assert 1700 < status["plan_left_seconds"] <= 1800
            assert (state_of(drained["c"], "b"), status["generation"]) == ("draining", 0)
            run.save()
            _, told = draining.communicate(timeout=TIMEOUT_S)
        finally:
            draining.kill()
    assert draining.returncode == 0, told
    assert f"✓ generation 1 of {run.run} on a, c\n" in told
    assert "✓ b drained" in told
    status = run.at(1)
    assert (status["nodes"], status["restarts_used"], status["saved_step"]) == (["a", "c"], 0, 1)
    assert state_of(drained.host, "b") == "drained"
    kinds = [event["kind"] for event in drained.events(run.run, "node.*") if event["detail"].get("node") == "b"]
    assert [kind for kind in kinds if kind in ("node.draining", "node.drained")] == ["node.draining", "node.drained"]
    drained.host.supctl("undrain", "b")
    wait_for("b to stand by", lambda: drained.host.status(run.run)["spares"] == ["b"])


def test_ctrl_c_leaves_a_drain_on_that_waits_for_a_spare_and_undrain_lifts_it(drained: Fleet) -> None:
    run = Training(drained, "stays", "nnodes = 3")
    with drained.host.popen("drain", "b", "--reason", "swap NIC") as draining:
        assert draining.stderr is not None
        try:
            while "no spare" not in (line := draining.stderr.readline()):
                assert line
            run.waits("b is to be free (swap NIC)", "no spare")
            draining.send_signal(signal.SIGINT)
            _, told = draining.communicate(timeout=TIMEOUT_S)
        finally:
            draining.kill()
    assert (draining.returncode, told.splitlines()[-1]) == (130, "detached; b stays draining   → supctl nodes")
    run.save()
    assert state_of(drained.host, "b") == "draining"
    drained.host.supctl("undrain", "b")
    wait_for("b to be used again", lambda: state_of(drained.host, "b") == "ready")
    assert drained.host.status(run.run)["generation"] == 0
    assert not drained.host.status(run.run)["plan"]


def test_a_drain_now_takes_the_node_whatever_comes_of_it_and_the_run_waits_for_another(drained: Fleet) -> None:
    run = Training(drained, "now", "nnodes = 3", has_saves=False)
    told = drained.host.supctl("drain", "b", "--at", "now").stderr
    assert f"! {run.run} cannot go on without b: 2 nodes (a, c) would be left, and the job wants 3; it waits" in told
    assert "✓ b drained" in told
    status = drained.host.status(run.run)
    assert ("2 of 3 nodes" in status["waiting_for"], status["restarts_used"]) == (True, 0), status
    assert not [rank for rank in drained.ranks(run.run) if rank["node"] == "b" and rank["state"] == "running"]
    drained.host.supctl("undrain", "b")
    assert run.at(1)["nodes"] == ["a", "b", "c"]


def test_a_node_that_is_drained_takes_no_new_run_and_one_that_no_run_uses_is_free_at_once(drained: Fleet) -> None:
    told = drained.host.supctl("drain", "b", "c").stderr
    assert told.splitlines()[0] == "b takes no new work. No run uses it."
    assert "✓ c drained" in told
    run = drained.host.start_job(drained.job("elsewhere", "sleeper.py", nnodes=1))
    assert drained.wait_generation(run, 0)["nodes"] == ["a"]
    refused = drained.host.supctl("drain", "nobody", "b", check=False)
    assert (refused.returncode, "no node nobody" in refused.stderr) == (3, True)


def test_a_drain_survives_the_death_of_the_host_and_a_second_one_stands_for_the_first(drained: Fleet) -> None:
    run = Training(drained, "again", "nnodes = 3")
    drained.host.supctl("drain", "c", "--reason", "first", "--no-wait")
    drained.host.kill()
    drained.host.launch()
    drained.host.wait_until_ready()
    run.at(0)
    assert state_of(drained.host, "c") == "draining"
    drained.host.supctl("drain", "c", "--reason", "second", "--no-wait", "--deadline", "1h")
    assert run.waits("c is to be free (second)")["generation"] == 0


def test_a_run_is_scaled_down_at_its_next_checkpoint_and_up_again(drained: Fleet) -> None:
    run = Training(drained, "scales", 'nnodes = 3\nextra_nodes = "grow"\ngrow_min_interval = "0s"')
    told = drained["b"].supctl("scale", run.run, "--nnodes", "1:2").stderr
    assert f"✓ {run.run} is to be on 1 to 2 nodes\n" in told
    assert "next checkpoint" in told
    run.save()
    status = run.at(1)
    assert (status["nodes"], status["nnodes"], status["nnodes_max"], status["restarts_used"]) == (["a", "b"], 1, 2, 0)
    drained.host.supctl("scale", run.run, "--nnodes", "3")
    run.waits("checkpoint")
    run.save()
    assert run.at(2)["nodes"] == ["a", "b", "c"]


def test_a_run_goes_on_with_the_arguments_of_another_job_file_on_the_same_nodes(drained: Fleet) -> None:
    run = Training(drained, "reloads", 'nnodes = "2:3"')
    wait_for("a spare", lambda: drained.host.status(run.run)["spares"] == ["c"])
    other = drained.host.job("other", "saves.py", str(run.shared), nproc=1, tables=run.tables)
    refused = drained.host.supctl("restart", run.run, "--reload", str(other), check=False)
    assert refused.returncode == 1
    assert f"other.toml is of the job other, and {run.run} is a run of reloads" in refused.stderr
    wrong = drained.host.folder / "wrong.toml"
    wrong.write_text(run.job().read_text().replace('nnodes = "2:3"', "nnodes = 0"))
    assert drained["c"].supctl("restart", run.run, "--reload", str(wrong), check=False).returncode == 78
    assert drained.host.status(run.run)["generation"] == 0
    told = drained["c"].supctl("restart", run.run, "--reload", str(run.job("--lr", "2")), "--reason", "faster").stderr
    assert f"✓ {run.run} has the job of" in told
    status = run.at(1)
    assert (status["restarts_used"], status["user"]) == (0, drained.host.status(run.run)["user"])
    starts = [line.split(maxsplit=3) for line in run.notes() if line.startswith("1 ")]
    assert sorted(start[1:] for start in starts) == [
        [str(rank), node, "start 'faster' --lr 2"] for rank, node in enumerate("ab")
    ]
    drained.host.kill()
    drained.host.launch()
    drained.host.wait_until_ready()
    assert run.at(1)["generation"] == 1


def test_a_node_whose_supd_is_warned_is_left_once_the_ranks_have_saved_until_it_is_used_again(drained: Fleet) -> None:
    tables = '[preemption]\nsignals = ["SIGUSR1"]\n[stop]\npre_signal = "SIGUSR2"\npre_wait = "60s"\n'
    run = Training(drained, "warned", 'nnodes = "2:3"', tables=tables)
    wait_for("a spare", lambda: drained.host.status(run.run)["spares"] == ["c"])
    process = drained["b"].process
    assert process is not None
    process.send_signal(signal.SIGUSR1)
    wait_for("both ranks to be told", lambda: {"0 0 a SIGUSR2", "0 1 b SIGUSR2"} <= set(run.notes()))
    run.save()
    status = run.at(1)
    assert (status["nodes"], status["spares"], status["restarts_used"], status["saved_step"]) == (["a", "c"], [], 0, 1)
    [b] = drained["b"].json("nodes")["nodes"][1:2]
    assert (b["node"], b["note"], process.poll()) == ("b", "its supd was sent SIGUSR1", None)
    drained.host.supctl("undrain", "b")
    wait_for("b to stand by", lambda: drained.host.status(run.run)["spares"] == ["b"])
    process.send_signal(signal.SIGUSR1)
    wait_for("the spare to be given up", lambda: drained.host.status(run.run)["spares"] == [])
    assert drained.host.status(run.run)["generation"] == 1, "a spare has no ranks that would have to leave"

"""Several runs share the slots of a node: none has two owners, who does not fit waits in order and says for what."""

import os
from pathlib import Path
from typing import Any

from tests.e2e.fleet import Fleet
from tests.e2e.supd import Supd, running_supd, wait_for

FOUR = "[node]\ndevices = 4\n"


def at_work(supd: Supd, name: str, nproc: int) -> str:
    """A run whose ranks are at work."""
    run = supd.start_job(supd.job(name, "sleeper.py", nproc=nproc))
    wait_at_work(supd, run)
    return run


def wait_at_work(supd: Supd, run: str) -> None:
    """Wait until all its ranks run."""

    def look() -> bool:
        status = supd.status(run)
        return (status["state"], status["ranks_running"]) == ("running", status["ranks"])

    wait_for(f"{run} to be at work", look)


def waits_for(supd: Supd, run: str) -> str:
    """What a run says that it waits for, once it is pending."""
    return str(supd.wait_state(run, "pending")["waiting_for"])


def free(supd: Supd, node: str = "") -> Any:
    """The free slots of a node, or of the only one."""
    return next(one["free_slots"] for one in supd.json("nodes")["nodes"] if node in ("", one["node"]))


def test_two_jobs_share_a_node_and_a_third_waits_until_one_ends(short_dir: Path) -> None:
    with running_supd(short_dir, config=FOUR) as supd:
        first, second = at_work(supd, "first", 2), at_work(supd, "second", 2)
        assert free(supd) == 0
        third = supd.start_job(supd.job("third", "sleeper.py", nproc=2))
        lack = waits_for(supd, third)
        assert lack.startswith("1 node with 2 slots free; ")
        assert f"2 of its 4 slots are {first}'s, 2 {second}'s" in lack
        jobs = {line.split()[0] for line in supd.supctl("ps").stdout.splitlines()[1:]}
        assert jobs == {"first", "second"}
        assert "pending" in supd.supctl("status").stdout
        supd.supctl("stop", first)
        wait_at_work(supd, third)
        assert supd.status(second)["generation"] == 0


def test_nobody_overtakes_a_job_that_waits_for_a_whole_node(short_dir: Path) -> None:
    with running_supd(short_dir, config=FOUR) as supd:
        first = at_work(supd, "first", 1)
        whole = supd.start_job(supd.job("whole", "sleeper.py", nproc=4))
        waits_for(supd, whole)
        small = supd.start_job(supd.job("small", "sleeper.py", nproc=1))
        assert f"{whole} was accepted before" in waits_for(supd, small)
        supd.supctl("stop", first)
        wait_at_work(supd, whole)
        assert whole in waits_for(supd, small)
        supd.supctl("stop", whole)
        wait_at_work(supd, small)


def devices(supd: Supd, run: str) -> set[str]:
    """What the ranks of a run have for CUDA_VISIBLE_DEVICES."""
    born = [os.fsdecode(Path(f"/proc/{rank['pid']}/environ").read_bytes()).split("\0") for rank in supd.ranks(run)]
    return {line.partition("=")[2] for lines in born for line in lines if line.startswith("CUDA_VISIBLE_DEVICES=")}


def test_jobs_have_devices_of_their_own_of_those_that_supd_was_started_with(short_dir: Path) -> None:
    """And they keep them over generations, though lower ones are free."""
    with running_supd(short_dir, env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}) as supd:
        first, second = at_work(supd, "first", 2), at_work(supd, "second", 2)
        assert (devices(supd, first), devices(supd, second)) == ({"4,5"}, {"6,7"})
        supd.supctl("stop", first)
        supd.supctl("restart", second)
        wait_for("generation 1", lambda: supd.status(second)["generation"] == 1)
        wait_at_work(supd, second)
        assert devices(supd, second) == {"6,7"}


def test_a_job_may_hide_the_devices_and_takes_no_slot_then(short_dir: Path) -> None:
    with running_supd(short_dir, env={"CUDA_VISIBLE_DEVICES": "4,5"}) as supd:
        first = at_work(supd, "first", 2)
        job = supd.job("hidden", "sleeper.py", nproc=3, run='env = { CUDA_VISIBLE_DEVICES = "" }')
        hidden = supd.start_job(job)
        wait_at_work(supd, hidden)
        assert (devices(supd, first), devices(supd, hidden), free(supd)) == ({"4,5"}, {""}, 0)


def test_a_job_that_can_never_fit_is_refused_at_once_with_the_sizes(short_dir: Path) -> None:
    with running_supd(short_dir, config=FOUR) as supd:
        at_work(supd, "first", 4)
        done = supd.supctl("start", str(supd.job("large", "sleeper.py", nproc=16)), check=False)
        assert done.returncode == 1
        assert "error[F211]: no node has 16 slots: " in done.stderr
        assert " 4\n" in done.stderr
        assert [run["job"] for run in supd.json("status")["runs"]] == ["first"]


def test_a_node_takes_no_more_jobs_at_once_than_it_is_told_to(short_dir: Path) -> None:
    with running_supd(short_dir, config="[node]\nmax_jobs = 1\n") as supd:
        first = at_work(supd, "first", 1)
        second = supd.start_job(supd.job("second", "sleeper.py", nproc=1))
        assert f"it takes 1 job at once (node.max_jobs): {first}" in waits_for(supd, second)
        supd.supctl("stop", first)
        wait_at_work(supd, second)


def test_a_new_supd_gives_nobody_what_runs_have_already(short_dir: Path) -> None:
    with running_supd(short_dir, config=FOUR) as supd:
        first, second = at_work(supd, "first", 1), at_work(supd, "second", 2)
        pids = [rank["pid"] for run in (first, second) for rank in supd.ranks(run)]
        third = supd.start_job(supd.job("third", "sleeper.py", nproc=2))
        waits_for(supd, third)
        supd.kill()
        supd.start()
        assert "1 of its 4 slots is" in waits_for(supd, third)
        wait_for("every rank to be told of", lambda: all(supd.status(run)["ranks_running"] for run in (first, second)))
        assert [rank["pid"] for run in (first, second) for rank in supd.ranks(run)] == pids
        assert free(supd) == 1
        supd.supctl("stop", first)
        wait_at_work(supd, third)


def test_a_job_of_two_nodes_begins_on_both_or_waits_and_leaves_each_to_nobody(short_dir: Path) -> None:
    fleet = Fleet(short_dir, 2)
    for supd in fleet.nodes.values():
        supd.config.write_text(supd.config.read_text().replace("[node]\n", "[node]\ndevices = 2\n"))
    try:
        fleet.start()
        first = at_work(fleet.host, "first", 2)
        pair = fleet.host.start_job(fleet.job("pair", "sleeper.py", nproc=2))
        assert waits_for(fleet.host, pair) == f"2 nodes with 2 slots free; a: its 2 slots are {first}'s"
        assert fleet.host.status(pair)["nodes"] == []
        small = fleet.host.start_job(fleet.host.job("small", "sleeper.py", nproc=2))
        assert f"b: {pair} was accepted before" in waits_for(fleet.host, small)
        fleet.host.supctl("stop", first)
        wait_at_work(fleet.host, pair)
        assert sorted(fleet.host.status(pair)["nodes"]) == ["a", "b"]
    finally:
        fleet.close()

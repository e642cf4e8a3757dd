"""supctl from any node of a real fleet: what is shown of nodes and of their output, while nodes come and go."""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import Supd, wait_for


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """Two nodes, a and b; a hosts."""
    with running_fleet(short_dir) as nodes:
        yield nodes


@contextmanager
def left_running(supd: Supd, *args: str) -> Iterator["subprocess.Popen[str]"]:
    """A call of supctl that is ended in any case."""
    process = supd.popen(*args)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_follower_sees_each_line_of_every_node_once_though_a_supd_is_killed_and_comes_back(
    fleet: Fleet, tmp_path: Path
) -> None:
    run = fleet.host.start_job(fleet.job("count", "counter.py", str(tmp_path)))
    fleet.wait_generation(run, 0)

    def lines(rank: int) -> list[str]:
        (file,) = (fleet["ab"[rank]].state / "logs").glob(f"*/gen-0000/rank-0000{rank}.out")
        return file.read_text().splitlines()

    with left_running(fleet.host, "logs", "-f", "-r", "all", "-n", "all", "--json", run) as follower:
        wait_for("b to have written", lambda: len(lines(1)) > 20)
        fleet["b"].kill()
        written = len(lines(1))
        wait_for("b to have written more", lambda: len(lines(1)) > written + 50)
        fleet["b"].start()
        fleet.wait_joined("a", "b")
        (tmp_path / "enough").touch()
        out, err = follower.communicate(timeout=60)
    got: dict[int, list[str]] = defaultdict(list)
    for line in map(json.loads, out.splitlines()):
        got[line["rank"]].append(line["line"])
        assert line["node"] == "ab"[line["rank"]]
    assert got == {rank: lines(rank) for rank in (0, 1)}
    assert (follower.returncode, err.count("b does not answer")) == (0, 1)
    past = fleet["b"].supctl("logs", "-r", "all", "-n", "all", "--no-prefix", run).stdout.splitlines()
    assert sorted(past) == sorted([*lines(0), *lines(1)])


def test_where_the_host_is_away_that_is_said_at_once_and_runs_and_followers_go_on(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.host.start_job(fleet.job("count", "counter.py", str(tmp_path)))
    fleet.wait_generation(run, 0)
    before = fleet.ranks(run)
    with left_running(fleet["b"], "logs", "-f", "-r", "1", "-n", "all", "--no-prefix", run) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        first = os.read(follower.stdout.fileno(), 1 << 16).decode()
        fleet.host.kill()
        told = os.read(follower.stderr.fileno(), 1 << 16).decode()
        assert "waiting for supd to be back: the coordinator of this fleet at" in told
        refused = fleet["b"].supctl("status", check=False)
        assert (refused.returncode, "runs go on" in refused.stderr) == (69, True)
        assert f"{fleet.addresses['a']}:{fleet.port}" in refused.stderr
        fleet.host.start()
        fleet.wait_joined("a", "b")
        assert os.read(follower.stderr.fileno(), 1 << 16).decode() == "… supd is back\n"
        assert fleet.wait_generation(run, 0)["restarts_used"] == 0
        assert [rank["pid"] for rank in fleet.ranks(run)] == [rank["pid"] for rank in before]
        (tmp_path / "enough").touch()
        rest, _ = follower.communicate(timeout=60)
    (file,) = (fleet["b"].state / "logs").glob("*/gen-0000/rank-00001.out")
    assert (follower.returncode, first + rest) == (0, file.read_text())


def test_nodes_are_shown_with_what_runs_there_from_each_of_them(fleet: Fleet) -> None:
    run = fleet.host.start_job(fleet.job("one", "sleeper.py", nnodes=1, tables='nodes = ["b"]\n'))
    fleet.wait_generation(run, 0)
    mine, theirs = ({node["node"]: node for node in supd.json("nodes")["nodes"]} for supd in fleet.nodes.values())
    assert [(node["state"], node["runs"], node["is_host"]) for node in mine.values()] == [
        ("ready", [], True),
        ("ready", [run], False),
    ]
    assert {name: node["address"] for name, node in theirs.items()} == fleet.addresses
    about = fleet["b"].json("describe", "node", "b")
    assert about["ranks"] == [{"run": run, "ranks": [0]}]
    assert about["node"]["kernel"]
    missing = fleet["b"].supctl("describe", "node", "c", check=False)
    assert missing.returncode == 3

"""The parts of H09, H15, H20 and H25 of the field reports that need two nodes. `front` is left out of all of them:
what it does is here `supctl start --follow`, where Ctrl-C detaches."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import BIN, TIMEOUT_S, alive, wait_for
from tests.e2e.threes import survivors
from tests.field.watching import pids, runs_at, stays, terminal

NEVER = '[restart]\npolicy = "never"\n'
JOB_FAILED = 4
"""What supctl ends with after a run that failed (docs/cli.md, exit codes)."""


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """Two nodes, a and b."""
    with running_fleet(short_dir) as nodes:
        yield nodes


def in_own_folder(fleet: Fleet, name: str, worker: str, *args: str, tables: str = "") -> tuple[Path, Path]:
    """A job of one rank a node, and the working directory that its ranks share."""
    here = fleet.folder / f"{name}.dir"
    here.mkdir()
    run, tables = f'workdir = "{here}"', f"nnodes = 2\n{tables}"
    return fleet.host.job(name, worker, *args, nproc=1, run=run, tables=tables), here


def test_ctrl_c_ends_a_client_that_waits_for_a_node_and_leaves_no_ghost_in_the_next_run(short_dir: Path) -> None:
    """H09."""
    fleet = Fleet(short_dir)
    try:
        fleet.host.start()
        job = fleet.job("train", "sleeper.py")
        client = fleet.host.popen("start", str(job), "--follow")
        wait_for("the job to wait", lambda: bool(runs(fleet)) and bool(fleet.host.status()["waiting_for"]))
        first = fleet.host.status()["run"]
        client.send_signal(signal.SIGINT)
        _, error = client.communicate(timeout=TIMEOUT_S)
        assert (client.returncode, "detached" in error) == (130, True), error
        assert "1 of 2 nodes" in fleet.host.status(first)["waiting_for"]
        fleet.host.supctl("stop", first)
        fleet["b"].start()
        fleet.wait_joined("a", "b")
        second = fleet["b"].start_job(job)
        status = runs_at(fleet.host, second, 0)
        assert (status["nodes"], status["spares"], status["ranks"]) == (["a", "b"], [], 2)
        assert [node["runs"] for node in fleet.host.json("nodes")["nodes"]] == [[second], [second]]
    finally:
        fleet.close()


def runs(fleet: Fleet) -> list[object]:
    """All of them."""
    known: list[object] = fleet.host.json("status")["runs"]
    return known


def test_ctrl_c_in_a_client_s_terminal_reaches_no_node_and_the_stop_after_it_is_orderly_on_all(fleet: Fleet) -> None:
    """H15."""
    job, here = in_own_folder(fleet, "train", "saver.py")
    node = fleet["b"]
    with terminal() as tty:
        argv = [*tty.argv, str(BIN / "supctl"), "start", str(job), "--follow"]
        client = subprocess.Popen(argv, env=node.env, cwd=node.folder, stdin=subprocess.DEVNULL)
        try:
            wait_for("the run to be there", lambda: runs(fleet))
            runs_at(fleet.host, "train", 0)
            before = pids(fleet.host, "train")
            wait_for("both to be ready", lambda: output(fleet).count("ready\n") == 2)
            tty.type(b"\x03")
            assert client.wait(TIMEOUT_S) == 130
        finally:
            client.kill()
            client.wait()
    stays("the ranks are alive", lambda: all(map(alive, before.values())))
    assert list(here.glob("term-*")) == []
    assert pids(fleet.host, "train") == before
    node.supctl("stop", "train")
    assert sorted(path.name for path in here.glob("saved-*")) == ["saved-train-0-0", "saved-train-0-1"]
    assert survivors(fleet) == []


def output(fleet: Fleet) -> str:
    """What all ranks have written."""
    return fleet.host.supctl("logs", "train", "--ranks", "all", "--no-prefix").stdout


@pytest.mark.parametrize("rank", ["0", "1", "-1"], ids=["first-node", "second-node", "both"])
def test_whoever_waits_on_whichever_node_learns_of_a_failure_on_any_by_the_exit_code(fleet: Fleet, rank: str) -> None:
    """H20."""
    job = fleet.job("fails", "crasher.py", "--rank", rank, "--code", "7", tables=NEVER)
    for supd in fleet.nodes.values():
        followed = supd.supctl("start", str(job), "--follow", check=False)
        assert (followed.returncode, "exited with code 7" in followed.stderr) == (JOB_FAILED, True)
        assert supd.supctl("wait", "fails", check=False).returncode == JOB_FAILED
    incident = fleet.host.status("fails")["incident"]
    assert (incident["exit_code"], incident["node"]) == (7, "ab"[incident["rank"]])
    if rank != "-1":
        assert incident["rank"] == int(rank)


@pytest.mark.parametrize("codes", [("75", "75"), ("75", "1")], ids=["agree", "differ"])
def test_exit_codes_of_every_node_are_kept_as_they_were(fleet: Fleet, codes: tuple[str, ...]) -> None:
    """H25. In status and ps, on every node; `front` ends with the code itself."""
    job, _ = in_own_folder(fleet, "codes", "peers.py", *codes, tables=NEVER)
    run = fleet["b"].start_job(job)
    first = fleet["b"].wait_state(run, "failed")["incident"]
    for supd in fleet.nodes.values():
        ranks = supd.json("ps", run)["ranks"]
        assert [(r["node"], r["exit_code"]) for r in ranks] == list(zip("ab", map(int, codes), strict=True))
        assert supd.status(run)["incident"] == first
    assert (first["exit_code"], first["shell_code"]) == (int(codes[first["rank"]]),) * 2

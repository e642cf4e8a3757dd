"""Cases of the field reports that are about the front: suprun, with torchrun's command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.supd import BIN, wait_for
from tests.e2e.suprun import Launches, worker

LAUNCHED = worker("launched")
SAYS_HOW = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "python": sys.executable, "omp": os.environ.get("OMP_NUM_THREADS")}))
"""


def two_nodes(port: int, number: int) -> tuple[str, ...]:
    """Options of one node of two."""
    conf = f"--rdzv-conf=is_host={'true' if number == 0 else 'false'}"
    return (
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.2:{port}",
        conf,
        f"--local-addr=127.0.0.{2 + number}",
    )


@pytest.mark.parametrize("number", [0, 1])
def test_h09_ctrl_c_ends_the_wait_for_other_nodes_and_leaves_no_ghost(suprun: Launches, port: int, number: int) -> None:
    alone = suprun(*two_nodes(port, number), LAUNCHED)
    alone.wait_for("waiting at .* for the other nodes")
    alone.signal(signal.SIGINT)
    assert alone.end() == 130
    nodes = [suprun(*two_nodes(port, each), LAUNCHED) for each in (0, 1)]
    assert [launch.end() for launch in nodes] == [0, 0]


def test_h10_a_hangup_that_is_ignored_at_the_start_stays_ignored(suprun: Launches) -> None:
    output = suprun.folder / "nohup"
    env = suprun("--help").env
    with output.open("wb") as out:
        words = ["nohup", str(BIN / "suprun"), "--standalone", LAUNCHED, "sleep"]
        process = subprocess.Popen(words, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_for("it to run", lambda: "up RANK" in output.read_text())
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert "SIGHUP" not in output.read_text()
    finally:
        process.kill()
        process.wait()


def test_h14_workers_share_no_group_with_suprun(suprun: Launches) -> None:
    one, other = (suprun("--standalone", LAUNCHED, "sleep") for _ in range(2))
    one.wait_for("up RANK")
    other.wait_for("up RANK")
    groups = {os.getpgid(pid) for pid in one.left() if b"launched.py" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    assert os.getpgid(one.process.pid) in groups, "suprun itself has the script in its words"
    assert len(groups) == 2
    one.signal(signal.SIGTERM)
    assert one.end() == 143
    assert other.process.poll() is None


@pytest.mark.parametrize("rank", [0, 1], ids=["first node", "second node"])
def test_h20_the_code_of_a_failed_rank_is_that_of_every_suprun(suprun: Launches, port: int, rank: int) -> None:
    nodes = [suprun(*two_nodes(port, each), LAUNCHED, "sleep", f"exit:{rank}:7") for each in (0, 1)]
    assert [launch.end() for launch in nodes] == [7, 7]


def test_h74_what_stands_behind_the_script_is_the_scripts(suprun: Launches) -> None:
    script = suprun.folder / "script.py"
    script.write_text(SAYS_HOW)
    words = ["--r=16", "--log", "x", "--node", "1", "-m", "y", "{rank}", "$HOME", "a b", ""]
    launch = suprun("--standalone", "--nproc_per_node", "1", "script.py", *words)
    assert launch.end() == 0
    assert json.loads(launch.text)["argv"] == words


def test_h75_the_interpreter_is_the_active_environments(suprun: Launches) -> None:
    script = suprun.folder / "script.py"
    script.write_text(SAYS_HOW)
    bin_dir = suprun.folder / "env" / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "python3").symlink_to(sys.executable)
    launch = suprun("--standalone", "script.py", env={"VIRTUAL_ENV": str(bin_dir.parent)})
    assert launch.end() == 0
    assert json.loads(launch.text)["python"] == str(bin_dir / "python3")


def test_h80_the_users_omp_num_threads_wins(suprun: Launches) -> None:
    script = suprun.folder / "script.py"
    script.write_text(SAYS_HOW)
    launch = suprun("--standalone", "--nproc-per-node=2", "script.py", env={"OMP_NUM_THREADS": "3"})
    assert launch.end() == 0
    assert [json.loads(line)["omp"] for line in launch.text.splitlines()] == ["3", "3"]
    plain = suprun("--standalone", "--nproc-per-node=2", "script.py")
    assert plain.end() == 0
    assert [json.loads(line)["omp"] for line in plain.text.splitlines()] == ["1", "1"]

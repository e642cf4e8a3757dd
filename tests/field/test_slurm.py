"""Cases of the field reports that are about Slurm. A step is emulated by its variables; tests/e2e/test_slurm.py has a
real one."""

import re
import signal
import sys
from pathlib import Path

from tests.e2e.supd import BIN, wait_for
from tests.e2e.suprun import Launches, Suprun, worker

LAUNCHED = worker("launched")

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURMD_NODENAME": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "1",
}
"""A step of one task, on one node."""

SHOWS = """
import os
names = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID")
print(*(f"{name}={os.environ.get(name)}" for name in names))
"""

SRUN = """
import signal, subprocess, sys
task = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: print("srun: TERM", flush=True))
task.wait()
"""
"""In place of srun: a parent that passes no signal on."""


def test_eight_tasks_on_a_node_end_with_one_clear_line_each(suprun: Launches) -> None:
    """H90."""
    step = {**STEP, "SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8"}
    step |= {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}
    tasks = [
        suprun("--nproc-per-node=8", LAUNCHED, env={**step, "SLURM_LOCALID": str(n), "SLURM_PROCID": str(n)})
        for n in range(8)
    ]
    assert [task.end() for task in tasks] == [2] * 8
    for task in tasks:
        assert "error[C025]: Slurm starts 8 suprun on a node" in task.text
        assert "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 suprun --nproc-per-node=8" in task.text


def test_ranks_are_suprun_s_and_slurm_s_variables_are_kept_or_hidden_as_the_line_says(suprun: Launches) -> None:
    """H91. The switch is --hide-slurm (docs/slurm.md)."""
    script = suprun.folder / "shows.py"
    script.write_text(SHOWS)
    step = {**STEP, "RANK": "5", "WORLD_SIZE": "9"}
    for options, slurms in (([], "0 1 7"), (["--hide-slurm"], "None None None")):
        launch = suprun(*options, "--nproc-per-node=2", "shows.py", env=step)
        assert launch.end() == 0, launch.text
        procid, ntasks, job = slurms.split()
        assert sorted(launch.text.splitlines()) == [
            f"RANK={rank} WORLD_SIZE=2 SLURM_PROCID={procid} SLURM_NTASKS={ntasks} SLURM_JOB_ID={job}"
            for rank in range(2)
        ]


def test_suprun_ends_with_an_srun_that_passes_no_signal_on(suprun: Launches) -> None:
    """H92. In a step suprun ends with its parent."""
    stub = suprun.folder / "bin" / "srun"
    stub.parent.mkdir()
    stub.write_text(f"#!{sys.executable}{SRUN}")
    stub.chmod(0o755)
    line = ("--nproc-per-node=2", "--shutdown-timeout=1", LAUNCHED, "sleep", "deaf")
    launch = suprun(*line, env=STEP, argv=[str(stub)])
    launch.wait_for("up RANK", 2)
    launch.signal(signal.SIGTERM)
    launch.wait_for("srun: TERM")
    assert len(launch.left()) >= 4, "it was not passed on"
    launch.signal(signal.SIGKILL)
    assert launch.end() == -signal.SIGKILL
    wait_for("suprun to see it", lambda: "the process that started suprun has ended" in launch.text)
    wait_for("the ranks to be told", lambda: set(re.findall("deaf ([01])", launch.text)) == {"0", "1"})
    launch.wait_until_nothing_is_left()


def logs_of(launch: Suprun) -> dict[Path, str]:
    """All that ranks have written to --log-dir so far."""
    return {file: file.read_text() for file in launch.folder.glob("logs/*/attempt_*/*/stdout.log")}


def test_ranks_that_by_pass_term_are_gone_before_slurm_kills_and_the_job_starts_anew(suprun: Launches) -> None:
    """H93. The time from TERM to KILL is scaled down, as --shutdown-timeout is; tests/suprun/test_slurm.py has the
    one that a step has by itself, which is less than Slurm's."""
    line = ("--nproc-per-node=2", "--shutdown-timeout=1", "--log-dir=logs", LAUNCHED)
    first = suprun(*line, "sleep", "deaf", "family", env=STEP)
    first.wait_for("up RANK", 2)
    first.signal(signal.SIGCONT)
    first.signal(signal.SIGTERM)
    assert first.end() == 143, "and no KILL"
    assert not first.left()
    kept = logs_of(first)
    assert sorted(text[:9] for text in kept.values()) == ["up RANK=0", "up RANK=1"]

    second = suprun(*line, env={**STEP, "SLURM_RESTART_COUNT": "1"})
    assert second.end() == 0, second.text
    logs = logs_of(second)
    assert len(logs) == 4
    assert {file: logs[file] for file in kept} == kept


def test_a_requeued_job_needs_no_scontrol_and_keeps_what_its_earlier_start_has_written(suprun: Launches) -> None:
    """H94. It is the batch script that requeues: outside of the container, where scontrol is."""
    line = ("--nproc-per-node=2", "--max-restarts=3", "--log-dir=logs", LAUNCHED, "exit:1:75", "sleep")
    first = suprun(*line, env={**STEP, "PATH": str(BIN)})
    assert first.end() == 75, first.text
    assert "suprun: to go on: scontrol requeue 7, in the batch script, outside of any container" in first.text
    kept = logs_of(first)
    assert len(kept) == 2, "nothing was restarted"

    second = suprun(*line, env={**STEP, "PATH": str(BIN), "SLURM_RESTART_COUNT": "1"})
    assert second.end() == 75, second.text
    assert "suprun: Slurm has requeued job 7: this is its start number 2" in second.text
    logs = logs_of(second)
    assert len(logs) == 4
    assert {file: logs[file] for file in kept} == kept

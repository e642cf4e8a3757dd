"""Cases H83 and H84 of the field reports: how many descriptors there are, and whose limits a rank has."""

import os
import resource
from pathlib import Path

import pytest

from supervisor.shell.open_files import FILES_A_RANK, OWN_FILES
from tests.e2e.jobs import command_job, output
from tests.e2e.supd import Supd, running_supd
from tests.field.watching import nothing_is_left, pids, running

MANY = 200
TINY = ["sh", "-c", "echo here; exec sleep 1000"]
"""A rank that costs next to nothing."""


def limited(soft: int, hard: int | None = None) -> tuple[str, ...]:
    """What goes in front of a command line to run it with such limits of open files."""
    return ("prlimit", f"--nofile={soft}:{'' if hard is None else hard}")


def runners_descriptors(supd: Supd, run: str) -> list[int]:
    """The numbers of the descriptors that the run's runner has open."""
    stat = Path(f"/proc/{pids(supd, run)[0]}/stat").read_text()
    runner = stat.rpartition(")")[2].split()[1]
    return [int(name) for name in os.listdir(f"/proc/{runner}/fd")]


@pytest.mark.timeout(180)
def test_many_ranks_run_under_a_low_soft_limit_and_with_descriptors_over_1023(short_dir: Path) -> None:
    """H83. supd is started with a soft limit of 256. 200 ranks take numbers over 1023: 1,200 would show no more."""
    with running_supd(short_dir, argv=limited(256)) as supd:
        job = command_job(supd, "many", TINY, nproc=MANY)
        run = running(supd, job)
        numbers = runners_descriptors(supd, run)
        supd.supctl("restart", run)
        assert max(numbers) > 1023
        assert len(numbers) <= OWN_FILES + FILES_A_RANK * MANY, "what is asked for up front is enough"
        assert max(runners_descriptors(supd, run)) > 1023
        supd.supctl("stop", run, "--now")
        nothing_is_left(supd)


def test_ranks_that_need_more_descriptors_than_the_hard_limit_has_are_refused_up_front_with_both_numbers(
    short_dir: Path,
) -> None:
    """H83. Nothing is spawned; a job that fits runs under the same limit."""
    with running_supd(short_dir, argv=limited(256, 256)) as supd:
        done = supd.supctl("start", str(command_job(supd, "many", TINY, nproc=MANY)), check=False)
        assert done.returncode == 78
        assert "200 ranks take up to 1664 open files on a node, and the hard limit there is 256" in done.stderr
        assert supd.json("status")["runs"] == []
        run = running(supd, command_job(supd, "few", TINY, nproc=20))
        assert len(runners_descriptors(supd, run)) < 256


SHOW = ["cat", "/proc/self/limits"]
NAMES = {
    "nofile": "Max open files",
    "core": "Max core file size",
    "memlock": "Max locked memory",
    "stack": "Max stack size",
}


def shown(supd: Supd, name: str) -> dict[str, tuple[str, str]]:
    """The soft and hard limits that rank 0 of a job has printed by SHOW; sizes in bytes."""
    lines = output(supd, name).decode().splitlines()
    found = {short: next(line for line in lines if line.startswith(long)) for short, long in NAMES.items()}
    return {short: tuple(line.removeprefix(NAMES[short]).split()[:2]) for short, line in found.items()}  # type: ignore[misc]


SHELLS = ("prlimit", "--nofile=4000:", "--core=0:", "--stack=4194304:", "--memlock=65536:")
"""The submitter's."""


@pytest.mark.parametrize(
    ("line", "soft"),
    [
        ("", {"nofile": 4000, "core": 0, "memlock": 65536, "stack": 4194304}),
        (
            "limits = { nofile = 5000, core = 4096, stack = 6291456 }",
            {"nofile": 5000, "core": 4096, "memlock": 65536, "stack": 6291456},
        ),
    ],
    ids=["client", "job file"],
)
def test_a_rank_has_the_limits_of_the_submitter_or_the_job_file_and_never_those_supd_raised_for_itself(
    short_dir: Path, line: str, soft: dict[str, int]
) -> None:
    """H84. supd was started with 1,024 descriptors (soft); where a limit comes from is shown by `describe`."""
    hard = min(16_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    with running_supd(short_dir, argv=limited(1024, hard)) as supd:
        assert supd.process is not None
        assert resource.prlimit(supd.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        supd.argv = SHELLS
        supd.supctl("start", str(command_job(supd, "shows", SHOW, run=line)), "--follow")
        seen = shown(supd, "shows")
        assert {name: int(pair[0]) for name, pair in seen.items()} == soft
        assert seen["nofile"][1] == str(hard)
        assert supd.json("describe", "shows")["limits"] == soft


def test_a_limit_that_this_node_cannot_give_is_told_at_start_and_cut(short_dir: Path) -> None:
    """H84: the submitter has 4,000 descriptors, supd's hard limit is 1,024."""
    with running_supd(short_dir, argv=limited(1024, 1024)) as supd:
        supd.argv = SHELLS
        done = supd.supctl("start", str(command_job(supd, "shows", SHOW)), "--follow")
        assert shown(supd, "shows")["nofile"] == ("1024", "1024")
        assert "the submitter's limit nofile, 4000, is above this node's hard limit: ranks get 1024" in done.stderr

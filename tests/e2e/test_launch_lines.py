"""Each launch line of scripts and notes, run by a shell on hosts with names of their own, with `torchrun` replaced by
`suprun`: those that torchrun takes work, the others end with the line that does."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts.hosts.namespaces import Hosts
from tests.e2e.batch import tasks_of
from tests.e2e.suprun import Launches, Suprun, launching
from tests.netns import hosts_in_namespaces, needs_namespaces
from tests.suprun.launch_lines import ELASTIC, INLINE, SINGLE_NODE, SLURM, STATIC

pytestmark = needs_namespaces

TRAIN = """\
import os, sys
names = "RANK LOCAL_RANK WORLD_SIZE GROUP_RANK LOCAL_WORLD_SIZE".split()
print("at", *(os.environ[name] for name in names), *sys.argv[1:], flush=True)
"""

TORCH = """\
import os
def init_process_group(backend): print(backend, os.environ["NCCL_DEBUG"], flush=True)
def get_rank(): return os.environ["RANK"]
def get_world_size(): return os.environ["WORLD_SIZE"]
"""
"""In place of a torch.distributed, whose nccl needs GPUs."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """a, b, c and d."""
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    try:
        with hosts_in_namespaces(folder, 4) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def suprun(short_dir: Path) -> Iterator[Launches]:
    """Starts suprun in a folder with the scripts."""
    (short_dir / "train.py").write_text(TRAIN)
    (short_dir / "torch").mkdir()
    (short_dir / "torch" / "__init__.py").touch()  # else one that is installed comes before it
    (short_dir / "torch" / "distributed.py").write_text(TORCH)
    with launching(short_dir) as launches:
        yield launches


def by_one_word(line: str) -> str:
    """For suprun, on these hosts."""
    return line.replace("torchrun", "suprun").replace("10.0.0.1", "10.77.0.1")


def places(launches: Sequence[Suprun]) -> list[tuple[int, ...]]:
    """RANK, LOCAL_RANK, WORLD_SIZE, GROUP_RANK, LOCAL_WORLD_SIZE of all ranks, by rank."""
    found = re.findall(r"^at (\d+) (\d+) (\d+) (\d+) (\d+)", "".join(launch.text for launch in launches), re.MULTILINE)
    return sorted(tuple(map(int, one)) for one in found)


def wanted(nodes: int) -> list[tuple[int, ...]]:
    """The same of so many nodes with eight ranks each."""
    return [(rank, rank % 8, 8 * nodes, rank // 8, 8) for rank in range(8 * nodes)]


def mend(launch: Suprun) -> str:
    """The line that an error ends with."""
    return launch.text.splitlines()[-1].removeprefix("  = ")


def test_one_node(suprun: Launches, hosts: Hosts) -> None:
    launch = suprun.shell(by_one_word(SINGLE_NODE), argv=hosts.of["a"].argv())
    assert launch.end() == 0, launch.text
    assert places([launch]) == wanted(1)
    assert launch.text.count(" --batch-size 32\n") == 8


@pytest.mark.parametrize("is_changed", [False, True], ids=["as it is", "with dashes and a name"])
def test_several_nodes(suprun: Launches, hosts: Hosts, is_changed: bool) -> None:
    """The line of the first node comes last."""
    line = by_one_word(STATIC)
    if is_changed:
        line = re.sub("--[a-z_]+", lambda option: option[0].replace("_", "-"), line).replace("10.77.0.1", "a")
    numbered = reversed(list(enumerate(hosts.of.values())))
    launches = [suprun.shell(line.format(rank=rank), argv=host.argv()) for rank, host in numbered]
    assert [launch.end() for launch in launches] == [0] * 4, [launch.text for launch in launches]
    assert places(launches) == wanted(4)
    for rank, launch in enumerate(reversed(launches)):
        assert {group for _, _, _, group, _ in places([launch])} == {rank}


def test_an_elastic_line_ends_with_the_one_that_works_with_what_comes(suprun: Launches, hosts: Hosts) -> None:
    broken = suprun.shell(by_one_word(ELASTIC), argv=hosts.of["a"].argv())
    assert broken.end() != 0
    assert "error[C027]: the script would be ' ': a backslash with a blank behind it does not join lines" in broken.text
    told = next(line for line in broken.text.splitlines() if line.startswith("  = write no comment there: "))
    line = told.partition("there: ")[2].replace("HOST:PORT", "10.77.0.1:29500")
    launches = [suprun.shell(line, argv=hosts.of[name].argv()) for name in "cba"]
    assert [launch.end() for launch in launches] == [0] * 3, [launch.text for launch in launches]
    assert places(launches) == wanted(3)


def test_code_on_the_line_ends_with_the_line_that_runs_it(suprun: Launches, hosts: Hosts) -> None:
    broken = suprun.shell(by_one_word(INLINE), argv=hosts.of["a"].argv())
    assert broken.end() == 2
    assert "error[C026]: -c is an option of python" in broken.text
    launch = suprun.shell(f"NCCL_DEBUG=INFO {mend(broken)}", argv=hosts.of["a"].argv())
    assert launch.end() == 0, launch.text
    assert sorted(launch.text.splitlines()) == [*(f"Rank {n} of 8 ready" for n in range(8)), *["nccl INFO"] * 8]


def test_a_batch_script_with_eight_tasks_a_node_ends_with_the_line_that_works(suprun: Launches, hosts: Hosts) -> None:
    tasks = tasks_of(suprun, hosts, by_one_word(SLURM), 8)
    assert [task.end() for task in tasks] == [2] * 4
    assert all("error[C025]" in task.text and "each would start all ranks of the node" in task.text for task in tasks)
    launches = tasks_of(suprun, hosts, mend(tasks[0]), 1)
    assert [launch.end() for launch in launches] == [0] * 4, [launch.text for launch in launches]
    assert places(launches) == wanted(4)


def test_a_batch_script_works_with_one_task_a_node(suprun: Launches, hosts: Hosts) -> None:
    """Although it has one place of all nodes filled in: that of its own."""
    launches = tasks_of(suprun, hosts, by_one_word(SLURM), 1)
    assert [launch.end() for launch in launches] == [0] * 4, [launch.text for launch in launches]
    assert places(launches) == wanted(4)
    assert "suprun: --node_rank 0 is a's place: d has 3 in Slurm's step" in launches[3].text

"""The same promises without privileges and without control groups: by descent, subreaper and job marker."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.places import NOBODY, as_ordinary_user, without_cgroups
from tests.e2e.supd import Supd, alive, running_supd, wait_for
from tests.e2e.test_adoption import at_generation, deserters, parent_of


@pytest.fixture(params=["ordinary user", "cgroup off", "cgroups read-only"])
def confined(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Supd]:
    """A supd that has to go without."""
    config = '[workers]\ncgroup = "off"\n' if request.param == "cgroup off" else ""
    argv: tuple[str, ...] = ()
    if request.param == "ordinary user":
        argv = as_ordinary_user(short_dir)
    elif request.param == "cgroups read-only":
        if os.geteuid() != 0:
            pytest.skip("only root can take control groups away")
        argv = without_cgroups()
    with running_supd(short_dir, config=config, argv=argv) as supd:
        assert supd.process is not None
        if request.param == "ordinary user" and argv:
            assert Path(f"/proc/{supd.process.pid}").stat().st_uid == NOBODY
        (lock,) = wait_for("a ready runner", lambda: list((supd.state / "runners").glob("*.lock")))
        assert lock.read_text() == "-", "it has a control group"
        yield supd


def test_a_crash_brings_everybody_back_and_a_stop_ends_them_grandchildren_included(confined: Supd) -> None:
    run, tree = deserters(confined, "train", "keep")
    os.kill(tree[0], signal.SIGKILL)
    status = at_generation(confined, run, 1)
    assert (status["incident"]["signal"], status["restarts_used"]) == ("SIGKILL", 1)
    assert not any(map(alive, tree)), "R1"
    confined.supctl("stop", run)
    assert confined.status(run)["state"] == "stopped"
    everybody = [int(line) for line in (confined.folder / "pids").read_text().split()]
    assert len(everybody) == 6
    assert not any(map(alive, everybody))
    assert confined.survivors() == []


def test_a_runner_that_is_killed_leaves_nothing_behind(confined: Supd) -> None:
    run, tree = deserters(confined, "train", "clear")
    os.kill(parent_of(tree[0]), signal.SIGKILL)
    wait_for("everything to be gone", lambda: not any(map(alive, tree)))
    status = at_generation(confined, run, 1)
    assert (status["restarts_used"], status["incident"]["cause"]) == (0, "runner-lost")


def test_supd_finds_its_run_again_and_sweeps_where_the_guard_is_dead_as_well(confined: Supd) -> None:
    run, tree = deserters(confined, "train", "keep")
    confined.kill()
    confined.start()
    wait_for("the runner to report", lambda: confined.ranks(run)[0]["pid"] == tree[0])
    runner = parent_of(tree[0])
    os.kill(parent_of(runner), signal.SIGKILL)
    os.kill(runner, signal.SIGKILL)
    wait_for("everything to be gone", lambda: not any(map(alive, tree)))
    at_generation(confined, run, 1)

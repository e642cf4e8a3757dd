"""Many ranks, twice: what is left afterwards is what was there before, and the runs' own logs."""

import contextlib
from collections import Counter
from pathlib import Path

import pytest

from supervisor.shell.cgroup import group_name
from tests.e2e.supd import Supd, carriers, running_supd, wait_for

RANKS = 64


def descriptors(supd: Supd) -> Counter[str]:
    """What supd has open, by kind: files by their path, all others without their number."""
    assert supd.process is not None
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{supd.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[str(entry.readlink()).partition(":[")[0]] += 1
    return found


def files(supd: Supd) -> set[str]:
    """All there are but the runs' own; a ready runner's by their kind."""
    found = (path.relative_to(supd.state) for path in supd.state.rglob("*") if path.is_file())
    return {str(p if p.parts[0] != "runners" else p.suffix) for p in found if p.parts[0] not in ("logs", "runs")}


def is_at_rest(supd: Supd) -> bool:
    """Whether there is only supd and one ready runner with its guard."""
    locks = list((supd.state / "runners").glob("*.lock"))
    if any(list((supd.state / "runs").glob(f"*/{lock.stem}.*")) for lock in locks):
        return False  # that one serves a run
    return len(locks) == len(supd.runner_pids()) == len(supd.guard_pids()) == 1 and len(carriers(supd.marker)) == 3


@pytest.mark.timeout(300)
def test_two_full_runs_of_64_ranks_leave_no_process_no_descriptor_and_no_file_behind(short_dir: Path) -> None:
    temporary = short_dir / "tmp"
    temporary.mkdir()
    with running_supd(short_dir, env={"TMPDIR": str(temporary)}) as supd:
        job = supd.job("warm-up", "sleeper.py", "--for", "0", nproc=1)
        supd.wait_state(supd.start_job(job), "succeeded")
        wait_for("supd to be at rest", lambda: is_at_rest(supd))
        (lock,) = (supd.state / "runners").glob("*.lock")
        groups = Path(lock.read_text()).parent  # "-" where there are none: a folder that holds none either
        files_before, open_before = files(supd), descriptors(supd)
        for _ in range(2):
            run = supd.start_job(supd.job("wide", "sleeper.py", "--for", "0.5", nproc=RANKS))
            assert supd.wait_state(run, "succeeded", "failed", timeout_s=120)["state"] == "succeeded"
            assert [r["exit_code"] for r in supd.ranks(run)] == [0] * RANKS
        wait_for("supd to be at rest", lambda: is_at_rest(supd))
        wait_for(f"{open_before} to be open again", lambda: descriptors(supd) == open_before, timeout_s=10)
        assert files(supd) == files_before
        assert list(temporary.iterdir()) == []
        runs = supd.state / "runs"
        wait_for("the records to go: the coordinator has them", lambda: not list(runs.rglob("*.record")))
        kept = [path for path in runs.rglob("*") if path.is_file()]
        assert {path.suffix for path in kept} == {".log"}
        served = {path.stem for path in kept}
        assert len(served) == 3
        assert not any((groups / group_name(incarnation)).exists() for incarnation in served)

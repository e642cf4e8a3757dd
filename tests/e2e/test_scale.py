"""Many ranks, twice: what is left afterwards is what was there before, and the runs' own logs and records."""

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest

from supervisor.shell.cgroup import group_name
from tests.e2e.supd import MARKER, carriers, running_supd, wait_for

RANKS = 64


@pytest.mark.timeout(300)
def test_two_full_runs_of_64_ranks_leave_no_process_no_descriptor_and_no_file_behind(short_dir: Path) -> None:
    temporary = short_dir / "tmp"
    temporary.mkdir()
    with running_supd(short_dir, env={"TMPDIR": str(temporary)}) as supd:
        assert supd.process is not None
        table = Path(f"/proc/{supd.process.pid}/fd")

        def at_rest() -> bool:
            """Only supd and one ready runner with its guard are there."""
            return len(supd.runner_pids()) == 1 and len(carriers(supd.marker)) == 3

        def descriptors() -> Counter[str]:
            """What supd has open, by kind: files by their path, all others without their number."""
            found: Counter[str] = Counter()
            for entry in table.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    found[str(entry.readlink()).partition(":[")[0]] += 1
            return found

        def files() -> set[str]:
            """All there are but the runs' own; a ready runner's by their kind."""
            kept = ("logs", "runs")
            found = (path.relative_to(supd.state) for path in supd.state.rglob("*") if path.is_file())
            return {str(p if p.parts[0] != "runners" else p.suffix) for p in found if p.parts[0] not in kept}

        wait_for("supd to be at rest", at_rest)
        job = supd.job("warm-up", "sleeper.py", "--for", "0", nproc=1)
        supd.wait_state(supd.start_job(job), "succeeded")
        wait_for("supd to be at rest", at_rest)
        (lock,) = (supd.state / "runners").glob("*.lock")
        groups = Path(lock.read_text()).parent  # "-" where there are none: a folder that holds none either
        before = files()
        open_before = descriptors()
        for _ in range(2):
            run = supd.start_job(supd.job("wide", "sleeper.py", "--for", "0.5", nproc=RANKS))
            assert supd.wait_state(run, "succeeded", "failed", timeout_s=120)["state"] == "succeeded"
            assert [r["exit_code"] for r in supd.ranks(run)] == [0] * RANKS
        wait_for(f"all that carry {MARKER} to be gone but three", at_rest)
        try:
            wait_for("as few descriptors as before", lambda: descriptors() == open_before, timeout_s=3)
        except AssertionError:
            assert descriptors() == open_before, [(e.name, os.readlink(e)) for e in table.iterdir()]
        assert files() == before
        assert list(temporary.iterdir()) == []
        kept = {path.suffix for path in (supd.state / "runs").rglob("*") if path.is_file()}
        assert kept == {".record", ".log"}
        served = {path.stem for path in (supd.state / "runs").rglob("*.record")}
        assert len(served) == 3
        assert not any((groups / group_name(incarnation)).exists() for incarnation in served)

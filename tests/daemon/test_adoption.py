"""supervisor/daemon/adoption.py: a journal was lost, and runners were not."""

import fcntl
import os
from pathlib import Path

from supervisor.daemon.adoption import known_runners
from supervisor.daemon.journal import Journal, StoredRunner

RUN = "job@123456"


def leave(folder: Path, incarnation: str, group: str = "-", run: str = RUN) -> int:
    """What a runner of ours has on disk, and its lock, held."""
    (folder / "runners").mkdir(exist_ok=True)
    (folder / "runs" / run).mkdir(parents=True, exist_ok=True)
    (folder / "runs" / run / f"{incarnation}.log").touch()
    lock = os.open(folder / "runners" / f"{incarnation}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(lock, group.encode())
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


async def test_a_runner_whose_lock_is_held_is_known_again_and_stays_so(tmp_path: Path) -> None:
    journal, locks = Journal(tmp_path / "journal.db"), [leave(tmp_path, "aa"), leave(tmp_path, "bb", "/cgroup/supd-bb")]
    found = await known_runners(tmp_path, journal)
    by_name = sorted(found, key=lambda runner: runner.incarnation)
    assert by_name == [StoredRunner("aa", RUN, None), StoredRunner("bb", RUN, "/cgroup/supd-bb")]
    for lock in locks:
        os.close(lock)  # they end
    assert await known_runners(tmp_path, journal) == found, "the journal has them: their end will be noticed"
    journal.close()


async def test_a_runner_whose_lock_is_free_may_live_elsewhere_and_one_without_a_run_is_nobodys(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    os.close(leave(tmp_path, "aa"))
    ready = leave(tmp_path, "bb")
    (tmp_path / "runs" / RUN / "bb.log").rename(tmp_path / "runners" / "bb.log")
    assert await known_runners(tmp_path, journal) == []
    os.close(ready)
    journal.close()


async def test_a_folder_that_has_never_been_used_has_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    assert await known_runners(tmp_path, journal) == []
    journal.close()

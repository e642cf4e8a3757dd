"""supervisor/daemon/own_folder.py: a copied state folder does not pass for the original."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from structlog.testing import capture_logs

from protocol.coordinator_events import RunRecord
from supervisor.daemon.journal import StoredRunner
from supervisor.daemon.own_folder import see_that_it_is_our_own
from tests.daemon.test_journal import JOB, journal_at

RUNNER = StoredRunner("aa", "j@1", None)


async def begin(folder: Path) -> tuple[str, int]:
    """What a supd in that folder says of itself."""
    async with journal_at(folder / "journal.db") as journal:
        await see_that_it_is_our_own(folder, journal)
        return await journal.next_incarnation()


async def with_a_runner(folder: Path) -> tuple[str, int]:
    """The same, and a run with a runner is in the journal then."""
    (folder / "runners").mkdir(parents=True)
    (folder / "runners" / "aa.lock").touch()
    start = await begin(folder)
    async with journal_at(folder / "journal.db") as journal:
        await journal.add_run("one", JOB, RunRecord(), 1.0)
        await journal.add_runner(RUNNER)
    return start


async def test_a_copy_is_a_node_of_its_own_and_knows_nothing_of_the_runners_of_the_original(tmp_path: Path) -> None:
    identity, _ = await with_a_runner(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with capture_logs() as log:
        starts = [await begin(tmp_path / "b"), await begin(tmp_path / "b")]
    (line,) = log
    assert (line["event"], line["log_level"], line["not_ours"]) == ("state_copied", "warning", ["aa"])
    (copied, first), (again, second) = starts
    assert copied == again != identity
    assert [first, second] == [1, 2], "fewer than the original had count for nothing: it is another identity"
    async with journal_at(tmp_path / "b" / "journal.db") as journal:
        assert await journal.runners() == []
        assert [stored.run for stored in await journal.runs()] == ["j@1"], "a job is a job wherever it is written"
    assert not (tmp_path / "b" / "runners").exists(), "a lock that is free there proves nothing"
    assert await begin(tmp_path / "a") == (identity, 2)


async def test_a_folder_that_is_moved_stays_itself(tmp_path: Path) -> None:
    identity, _ = await with_a_runner(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    with capture_logs() as log:
        assert await begin(tmp_path / "b") == (identity, 2)
    assert log == []
    async with journal_at(tmp_path / "b" / "journal.db") as journal:
        assert await journal.runners() == [RUNNER]
    assert (tmp_path / "b" / "runners" / "aa.lock").exists()


async def test_a_journal_that_has_not_kept_its_folder_yet_takes_the_one_it_is_in(tmp_path: Path) -> None:
    identity, _ = await with_a_runner(tmp_path / "a")
    with closing(sqlite3.connect(tmp_path / "a" / "journal.db")) as db, db:
        db.execute("DELETE FROM meta WHERE key = 'folder'")
    assert await begin(tmp_path / "a") == (identity, 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert (await begin(tmp_path / "b"))[0] != identity

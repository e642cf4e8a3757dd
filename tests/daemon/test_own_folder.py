"""supervisor/daemon/own_folder.py: a copied state folder does not pass for the original."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol.coordinator_events import RunRecord
from protocol.errors import Refused
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


async def test_a_copy_may_host_only_where_the_first_entry_says_so(tmp_path: Path) -> None:
    await with_a_runner(tmp_path / "a")
    async with journal_at(tmp_path / "a" / "journal.db") as journal:
        await journal.tell_to_host(True, 4)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    await begin(tmp_path / "b")
    async with journal_at(tmp_path / "b" / "journal.db") as journal:
        assert (await journal.is_told_to_host(), await journal.epoch()) == (None, 4)


async def test_another_nodes_journal_in_place_of_our_own_moves_no_coordinator(tmp_path: Path) -> None:
    identity, _ = await with_a_runner(tmp_path / "a")
    _, before = await with_a_runner(tmp_path / "b")
    (tmp_path / "b" / "journal.db").rename(tmp_path / "own")
    shutil.copy(tmp_path / "a" / "journal.db", tmp_path / "b" / "journal.db")
    async with journal_at(tmp_path / "b" / "journal.db") as journal:
        with pytest.raises(Refused, match="is of another state folder") as caught:
            await see_that_it_is_our_own(tmp_path / "b", journal, is_moving=True)
        assert (await journal.next_incarnation())[0] == identity, "nothing was changed in it"
    assert (caught.value.code, str(tmp_path / "b" / "moved") in caught.value.hint) == ("F311", True)
    assert (tmp_path / "b" / "runners" / "aa.lock").exists()
    (tmp_path / "own").rename(tmp_path / "b" / "journal.db")
    assert (await begin(tmp_path / "b"))[1] == before + 1


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

"""supervisor/daemon/journal.py: what it takes in is there again; what it cannot take in is told."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from protocol.coordinator_events import Phase, RunRecord
from protocol.errors import Refused
from protocol.fleet_events import NodeRecord
from protocol.job import Job
from protocol.messages.control import EventRecord
from supervisor.daemon.journal import EVENTS_A_READ_MAX, Journal, StoredRun, StoredRunner
from tests.protocol.build import job_spec, submitted

TIMEOUT_S = 20.0
JOB = submitted(job_spec())


@contextlib.asynccontextmanager
async def journal_at(path: Path) -> AsyncIterator[Journal]:
    async with asyncio.timeout(TIMEOUT_S):
        journal = Journal(path)
        try:
            yield journal
        finally:
            journal.close()


def event(number: int, run: str = "j@1") -> EventRecord:
    return EventRecord(
        id=0, wall_s=1.5, run=run, generation=None, kind="job.accepted", text=f"{number}", detail={"n": number}
    )


async def test_every_epoch_is_above_all_before(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        async with journal_at(tmp_path / "j.db") as journal:
            epochs += [await journal.next_epoch(), await journal.next_epoch()]
    assert epochs == [1, 2, 3, 4, 5, 6]


async def test_no_epoch_begins_at_or_below_one_that_was_heard_of(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        assert await journal.epoch() == 0
        assert [await journal.raise_to(7), await journal.raise_to(3)] == [7, 7]
    async with journal_at(tmp_path / "j.db") as journal:
        assert [await journal.epoch(), await journal.next_epoch()] == [7, 8]


async def test_who_hosts_is_remembered_with_the_epoch_that_said_so(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        assert await journal.is_told_to_host() is None
    for hosts, epoch, highest in ((True, 4, 4), (False, 6, 6), (True, 2, 6)):
        async with journal_at(tmp_path / "j.db") as journal:
            await journal.tell_to_host(hosts, epoch)
        async with journal_at(tmp_path / "j.db") as journal:
            assert (await journal.is_told_to_host(), await journal.epoch()) == (hosts, highest)


async def test_runs_are_there_again_with_their_newest_record_oldest_first(tmp_path: Path) -> None:
    other = Job(run="k@2", spec=JOB.spec, submitter=JOB.submitter)
    async with journal_at(tmp_path / "j.db") as journal:
        assert await journal.add_run("one", JOB, RunRecord(), 1.0) == "j@1"
        assert await journal.add_run("two", other, RunRecord(), 2.0) == "k@2"
        done = RunRecord(phase=Phase.FAILED, generation=3, reason="it had to")
        await journal.save_run("j@1", done, 9.0)
    async with journal_at(tmp_path / "j.db") as journal:
        assert await journal.runs() == [
            StoredRun(run="j@1", job=JOB, record=done, submitted_wall_s=1.0, ended_wall_s=9.0),
            StoredRun(run="k@2", job=other, record=RunRecord(), submitted_wall_s=2.0, ended_wall_s=None),
        ]


async def test_a_request_makes_one_run_whichever_of_its_repetitions_is_first(tmp_path: Path) -> None:
    other = Job(run="j@2", spec=JOB.spec, submitter=JOB.submitter)
    async with journal_at(tmp_path / "j.db") as journal:
        assert await journal.run_of_request("one") is None
        assert await journal.add_run("one", JOB, RunRecord(), 1.0) == "j@1"
        assert await journal.add_run("one", other, RunRecord(), 2.0) == "j@1"
    async with journal_at(tmp_path / "j.db") as journal:
        assert await journal.run_of_request("one") == "j@1"
        assert [stored.run for stored in await journal.runs()] == ["j@1"]


async def test_every_runner_is_kept_until_it_is_removed_several_of_one_run_too(tmp_path: Path) -> None:
    old, new = StoredRunner("aa", "j@1", "/sys/fs/cgroup/supd-aa"), StoredRunner("bb", "j@1", None)
    other = StoredRunner("cc", "k@1", None)
    async with journal_at(tmp_path / "j.db") as journal:
        for runner in (old, other, new):
            await journal.add_runner(runner)
        await journal.remove_runner("cc")
    async with journal_at(tmp_path / "j.db") as journal:
        assert {runner.incarnation: runner for runner in await journal.runners()} == {"aa": old, "bb": new}


async def test_a_state_folder_has_one_identity_and_its_supds_are_counted(tmp_path: Path) -> None:
    starts = []
    for name in ("j.db", "j.db", "other.db"):
        async with journal_at(tmp_path / name) as journal:
            starts.append(await journal.next_incarnation())
    (first, _), (second, _), (other, _) = starts
    assert [number for _, number in starts] == [1, 2, 1]
    assert first == second != other
    assert len(first) == 16


async def test_nodes_are_there_again_as_they_were_seen_last(tmp_path: Path) -> None:
    def node(name: str, incarnation: int) -> NodeRecord:
        return NodeRecord(
            name=name, identity="0" * 16, incarnation=incarnation, address="10.0.0.2", port=29410, joined=0
        )

    async with journal_at(tmp_path / "j.db") as journal:
        for record in (node("b", 1), node("a", 1), node("gone", 1), node("b", 2)):
            journal.save_node(record)
        journal.remove_node("gone")
    async with journal_at(tmp_path / "j.db") as journal:
        assert await journal.nodes() == [node("a", 1), node("b", 2)]


async def test_a_journal_of_the_version_before_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with journal_at(path) as journal:
        assert await journal.next_epoch() == 1
        await journal.add_run("one", JOB, RunRecord(), 1.0)
        await journal.add_runner(StoredRunner("aa", "j@1", None))
    with contextlib.closing(sqlite3.connect(path)) as db:  # as version 1 wrote it
        db.execute("DROP TABLE nodes")
        db.execute("DELETE FROM meta WHERE key != 'epoch'")
        (blob,) = db.execute("SELECT job FROM runs").fetchone()
        job = msgspec.msgpack.decode(blob)
        job["spec"]["topology"] = {"nnodes": 1, "nproc_per_node": 2, "role": "default"}
        db.execute("UPDATE runs SET job = ?", (msgspec.msgpack.encode(job),))
        db.execute("PRAGMA user_version = 1")
        db.commit()
    for number in (1, 2):
        async with journal_at(path) as journal:
            (stored,) = await journal.runs()
            topology = stored.job.spec.topology
            assert (topology.nnodes, topology.nproc_per_node) == ((1, 1), 2)
            assert [runner.incarnation for runner in await journal.runners()] == ["aa"]
            assert (await journal.nodes(), await journal.next_epoch()) == ([], number + 1)
            assert (await journal.next_incarnation())[1] == number


async def test_a_journal_of_version_2_goes_on_as_one_of_the_present_version(tmp_path: Path) -> None:
    """Else a supd that knows version 2 would open it again, and take the record of a run that is held for damage."""
    path = tmp_path / "j.db"
    async with journal_at(path) as journal:
        await journal.add_run("one", JOB, RunRecord(), 1.0)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")
    async with journal_at(path) as journal:
        assert [stored.job.run for stored in await journal.runs()] == [JOB.run]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)


async def test_events_come_back_in_order_by_run_behind_any_of_them_and_survive(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        for number in range(4):
            journal.add_event(event(number, "j@1" if number % 2 else "k@1"), lambda: None)
    async with journal_at(tmp_path / "j.db") as journal:
        everything = await journal.events("", -1)
        assert [e.detail["n"] for e in everything] == [0, 1, 2, 3]
        assert [e.id for e in everything] == sorted({e.id for e in everything})
        assert [e.text for e in await journal.events("j@1", -1)] == ["1", "3"]
        assert await journal.events("", everything[1].id) == everything[2:]


async def test_who_is_told_of_an_event_can_read_it(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        told = asyncio.Event()
        journal.add_event(event(1), told.set)
        await told.wait()
        assert [e.text for e in await journal.events("j@1", -1)] == ["1"]


async def test_one_read_takes_no_more_events_than_a_client_can_be_given_at_once(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        for number in range(EVENTS_A_READ_MAX + 5):
            journal.add_event(event(number), lambda: None)
        first = await journal.events("", -1)
        assert len(first) == EVENTS_A_READ_MAX
        assert len(await journal.events("", first[-1].id)) == 5


async def test_a_question_whose_asker_went_away_harms_nobody(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        for _ in range(200):
            asking = asyncio.get_running_loop().create_task(journal.events("", -1))
            await asyncio.sleep(0)
            journal.add_event(event(1), lambda: None)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        assert len(await journal.events("", -1)) == 200


async def test_what_could_not_be_written_was_not_done_and_nothing_else_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with journal_at(path) as journal:
        journal.add_event(event(1), lambda: None)
        await journal.next_epoch()
        with contextlib.closing(sqlite3.connect(path)) as saboteur:
            saboteur.execute("DROP TABLE runs")
        journal.add_event(event(2), lambda: None)
        with pytest.raises(Refused, match="no such table: runs") as caught:
            await journal.add_run("one", JOB, RunRecord(), 1.0)
        assert caught.value.code == "F022"
        assert [e.text for e in await journal.events("", -1)] == ["1", "2"]


async def test_an_event_that_is_lost_ends_the_watch_over_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with journal_at(path) as journal:
        with contextlib.closing(sqlite3.connect(path)) as saboteur:
            saboteur.execute("DROP TABLE events")
        journal.add_event(event(1), lambda: None)
        with pytest.raises(Refused, match="no such table: events"):
            await journal.watch()


async def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with journal_at(path) as journal:
        await journal.add_run("one", JOB, RunRecord(), 1.0)
        with contextlib.closing(sqlite3.connect(path)) as saboteur, saboteur:
            saboteur.execute("UPDATE runs SET record = x'c1'")
        with pytest.raises(Refused, match=str(path)):
            await journal.runs()


async def test_what_is_no_journal_of_this_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    newer, foreign, letter = tmp_path / "newer.db", tmp_path / "foreign.db", tmp_path / "letter"
    with contextlib.closing(sqlite3.connect(newer)) as theirs:
        theirs.execute("PRAGMA user_version = 7")
    with contextlib.closing(sqlite3.connect(foreign)) as theirs:
        theirs.execute("CREATE TABLE precious (gold)")
    letter.write_bytes(b"a letter to my mother, which is longer than any header of a database would ever be\n" * 20)
    for path, why in ((newer, "of version 7"), (foreign, "another program's"), (letter, "not a database")):
        before = path.read_bytes()
        with pytest.raises(Refused, match=why):
            Journal(path)
        assert path.read_bytes() == before
    with pytest.raises(Refused, match="No such file"):
        Journal(tmp_path / "missing" / "j.db")


async def test_the_journal_is_its_owners_alone(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        await journal.next_epoch()
        assert {os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path)} == {0o600}


# --- the journal of another node ---------------------------------------------------------------------------------


def node_record(name: str) -> NodeRecord:
    return NodeRecord(name=name, identity="0" * 16, incarnation=1, address="10.0.0.2", port=29410, joined=0)


async def lived(path: Path, node: str, run: str, epochs: int) -> tuple[str, int]:
    """A journal with one run, event, node and runner; returns its identity."""
    async with journal_at(path) as journal:
        start = await journal.next_incarnation()
        for _ in range(epochs):
            await journal.next_epoch()
        await journal.add_run(f"of {node}", Job(run=run, spec=JOB.spec, submitter=JOB.submitter), RunRecord(), 1.0)
        await journal.add_runner(StoredRunner(f"of-{node}", run, None))
        journal.save_node(node_record(node))
        journal.add_event(event(epochs, run), lambda: None)
    return start


async def test_the_coordinators_part_of_another_journal_takes_the_place_of_ours_which_is_kept(tmp_path: Path) -> None:
    await lived(tmp_path / "a.db", "a", "j@a", epochs=5)
    identity, _ = await lived(tmp_path / "b.db", "b", "j@b", epochs=2)
    async with journal_at(tmp_path / "b.db") as journal:
        assert await journal.take_over(tmp_path / "a.db", tmp_path / "kept.db") == 1
    async with journal_at(tmp_path / "b.db") as journal:
        assert [run.run for run in await journal.runs()] == ["j@a"]
        assert await journal.run_of_request("of a") == "j@a"
        assert [(event.run, event.id) for event in await journal.events("", 0)] == [("j@a", 1)]
        assert [node.name for node in await journal.nodes()] == ["a"]
        assert await journal.epoch() == 5
        assert [runner.incarnation for runner in await journal.runners()] == ["of-b"]
        assert (await journal.next_incarnation())[0] == identity
    async with journal_at(tmp_path / "kept.db") as kept:
        assert [run.run for run in await kept.runs()] == ["j@b"]
        assert await kept.epoch() == 2


async def test_a_journal_that_had_no_runs_is_not_kept_and_no_epoch_is_lowered(tmp_path: Path) -> None:
    await lived(tmp_path / "a.db", "a", "j@a", epochs=1)
    async with journal_at(tmp_path / "b.db") as journal:
        await journal.raise_to(9)
        await journal.take_over(tmp_path / "a.db", tmp_path / "kept.db")
        assert await journal.epoch() == 9
    assert not (tmp_path / "kept.db").exists()


@pytest.mark.parametrize("damage", ["no database", "a row twice"])
async def test_a_journal_that_cannot_be_taken_over_changes_nothing(tmp_path: Path, damage: str) -> None:
    await lived(tmp_path / "a.db", "a", "j@a", epochs=5)
    await lived(tmp_path / "b.db", "b", "j@b", epochs=2)
    if damage == "no database":
        (tmp_path / "a.db").write_bytes(b"x" * 4096)
    else:
        with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
            db.executescript(
                "ALTER TABLE nodes RENAME TO old; CREATE TABLE nodes (node TEXT, record BLOB);"
                "INSERT INTO nodes SELECT * FROM old UNION ALL SELECT * FROM old;"
            )
    async with journal_at(tmp_path / "b.db") as journal:
        with pytest.raises(Refused, match="journal"):
            await journal.take_over(tmp_path / "a.db", tmp_path / "kept.db")
        await journal.next_epoch()  # what is written next takes nothing of it along
    async with journal_at(tmp_path / "b.db") as journal:
        assert ([run.run for run in await journal.runs()], await journal.epoch()) == (["j@b"], 3)

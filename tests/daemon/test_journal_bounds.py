"""supervisor/daemon/journal.py: however long it lives, it holds so much and no more."""

from pathlib import Path

import pytest

from protocol.coordinator_events import RunRecord
from protocol.job import Job
from supervisor.daemon import journal as module
from supervisor.daemon.journal import Journal
from tests.daemon.test_journal import JOB, event, journal_at

FIRST, NEWEST, EVERY = 10, 30, 5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_FIRST", FIRST)
    monkeypatch.setattr(module, "EVENTS_NEWEST", NEWEST)
    monkeypatch.setattr(module, "LOOK_EVERY", EVERY)
    monkeypatch.setattr(module, "DELETED_AT_ONCE", 7)


def add(journal: Journal, count: int, run: str = "j@1", first: int = 0) -> None:
    for number in range(first, first + count):
        journal.add_event(event(number, run), lambda: None)


async def texts(journal: Journal, run: str = "j@1", after: int = 0) -> list[int]:
    return [int(one.text) for one in await journal.events(run, after) if one.run == run]


async def test_of_a_runs_events_the_first_and_the_newest_are_kept(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        add(journal, 30, "other@2")
        add(journal, 500)
        told = await texts(journal)
        assert told[:FIRST] == list(range(FIRST))
        assert told[-NEWEST:] == list(range(500 - NEWEST, 500))
        assert len(told) <= FIRST + NEWEST + EVERY
        assert await texts(journal, "other@2") == list(range(30)), "another run's are as they were"


async def test_of_the_fleets_own_events_the_newest_are_kept(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        add(journal, 500, "")
        told = await texts(journal, "")
        assert told[-NEWEST:] == list(range(500 - NEWEST, 500))
        assert len(told) <= NEWEST + EVERY


async def test_who_follows_by_the_id_of_an_event_misses_nothing_that_is_told_later(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        seen, after = list[int](), 0
        for first in range(0, 400, 20):
            add(journal, 20, first=first)
            for one in await journal.events("j@1", after):
                seen.append(int(one.text))
                after = one.id
        assert seen == list(range(400)), "also where the event that was seen last is gone"


async def test_it_is_seen_to_over_restarts_however_few_events_each_brings(tmp_path: Path) -> None:
    for first in range(0, 90, 2):
        async with journal_at(tmp_path / "j.db") as journal:
            add(journal, 2, first=first)
            assert len(await texts(journal)) <= FIRST + NEWEST + EVERY


async def test_a_journal_that_has_far_too_many_already_is_not_held_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(module, "EVENTS_NEWEST", 10_000)
        async with journal_at(tmp_path / "j.db") as journal:
            add(journal, 400)
    async with journal_at(tmp_path / "j.db") as journal:
        add(journal, 1, first=400)
        assert len(await texts(journal)) == 394, "a few at a time"
        add(journal, 1000, first=401)
        assert len(await texts(journal)) <= FIRST + NEWEST + EVERY


async def test_nothing_is_left_of_a_run_that_is_forgotten(tmp_path: Path) -> None:
    other = Job(run="k@2", spec=JOB.spec, submitter=JOB.submitter)
    async with journal_at(tmp_path / "j.db") as journal:
        await journal.add_run("one", JOB, RunRecord(), 1.0)
        await journal.add_run("two", other, RunRecord(), 2.0)
        add(journal, 25)
        add(journal, 3, "k@2")
        await journal.forget_run("j@1")
        assert [run.run for run in await journal.runs()] == ["k@2"]
        assert await texts(journal) == []
        assert await texts(journal, "k@2") == [0, 1, 2]
        assert await journal.run_of_request("one") is None
        assert await journal.add_run("one", JOB, RunRecord(), 3.0) == "j@1", "the same request would start it anew"


async def test_events_of_runs_that_are_not_known_any_more_are_found(tmp_path: Path) -> None:
    async with journal_at(tmp_path / "j.db") as journal:
        await journal.add_run("one", JOB, RunRecord(), 1.0)
        for run in ("j@1", "", "gone@3", "k@2"):
            add(journal, 2, run)
        assert await journal.stray_runs() == ["gone@3", "k@2"]


async def test_room_of_what_was_forgotten_is_used_again(tmp_path: Path) -> None:
    sizes = []
    for life in range(4):
        async with journal_at(tmp_path / "j.db") as journal:
            for number in range(15 * life, 15 * (life + 1)):
                run = f"j@{number:x}"
                await journal.add_run(run, Job(run=run, spec=JOB.spec, submitter=JOB.submitter), RunRecord(), 1.0)
                add(journal, FIRST + NEWEST, run)
                if number >= 10:
                    await journal.forget_run(f"j@{number - 10:x}")
        sizes.append((tmp_path / "j.db").stat().st_size)
    assert sizes[3] <= 1.2 * sizes[0]

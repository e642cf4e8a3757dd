"""What supd must not forget, in SQLite: its identity, runners; and where it hosts the coordinator epoch, runs, events
and nodes.

One thread owns the database. Calls that are awaited are barriers: when they return they are on disk, with
everything handed in before them (synchronous=FULL: https://www.sqlite.org/pragma.html#pragma_synchronous). Events
are written behind, with the next barrier or as soon as the thread has nothing else to do.

What cannot be written is never passed over: the call raises Refused, and where anything may be lost supd ends.
"""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from protocol.coordinator_events import RunRecord
from protocol.dataclass import dataclass
from protocol.errors import Refused
from protocol.fleet_events import NodeRecord
from protocol.job import Job
from protocol.messages.control import EventRecord
from supervisor.daemon.journal_file import HINT, keep_copy, open_journal, pack

log = structlog.get_logger()

T = TypeVar("T")

EVENTS_A_READ_MAX = 1000

EVENTS_FIRST, EVENTS_NEWEST = 1000, 20_000
"""What is kept of a run's events: how it began, and what was last. Of what belongs to no run the newest are kept."""

LOOK_EVERY = 500
"""Events of a run between two looks at whether there are too many."""

DELETED_AT_ONCE = 2000
"""Rows: about 10 ms, in which nothing else is read or written."""

DISK_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})
"""What passes once the disk has room again (https://www.sqlite.org/rescode.html; extended codes have one of these in
their lowest byte)."""

AGAIN_S = 1.0


class DiskTrouble(Refused):
    """The journal's disk is full, or away: nothing was written, and trying again makes sense."""


@dataclass(frozen=True)
class StoredRun:
    """A run as the journal holds it."""

    run: str
    job: Job
    record: RunRecord
    submitted_wall_s: float
    ended_wall_s: float | None


@dataclass(frozen=True)
class StoredRunner:
    """A runner that was given a run and has not been proven gone."""

    incarnation: str
    run: str
    cgroup: str | None


class Journal:
    """The durable memory of one supd. Made inside the loop; raises Refused where the file is no journal of ours."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._failure: Refused | None = None
        self.trouble = ""  # why nothing can be written for the time being, as the last one found that insists on it
        self._has_failed = asyncio.Event()
        self._unlooked: dict[str, int] = {}  # run -> events since the last look at how many it has
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any] | None] | None] = queue.SimpleQueue()
        self._db = open_journal(path)
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    # --- called from the loop ------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Until cancelled; raises Refused once the journal cannot be used, for another reason than its disk."""
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure

    async def next_epoch(self) -> int:
        """Begin a new epoch of the coordinator; on disk before it is returned."""
        return await self._barrier(lambda: self._count_up("epoch"))

    async def epoch(self) -> int:
        """The highest one that this supd has begun, or has heard of; 0: none."""
        return await self._barrier(lambda: self._number("epoch") or 0)

    async def raise_to(self, epoch: int) -> int:
        """See that no epoch below this one is ever begun here; returns the highest one, on disk before."""

        def lift() -> int:
            self._db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'epoch'", (epoch,))
            return self._number("epoch") or 0

        return await self._insist(lift)

    async def is_told_to_host(self) -> bool | None:
        """Whether this node is to host the coordinator, by what has happened; None: nothing has, `join` decides."""

        def look() -> bool | None:
            told = self._number("hosts")
            return None if told is None else bool(told)

        return await self._barrier(look)

    async def tell_to_host(self, hosts: bool, epoch: int) -> None:
        """From now on this node hosts, or another one does, which has this epoch or a lower one."""

        def tell() -> None:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('hosts', ?)", (int(hosts),))
            self._db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'epoch'", (epoch,))

        await self._insist(tell)

    async def take_over(self, other: Path, kept: Path) -> int:
        """Have the runs, events and nodes of another journal instead of our own, and no epoch below its own; where we
        have runs, all that is ours goes to the file `kept` before. Returns how many runs came. Raises Refused, and
        nothing has changed then.

        What is of this folder alone stays: identity, runners.
        """
        with contextlib.closing(await asyncio.to_thread(open_journal, other)) as theirs:
            await asyncio.to_thread(keep_copy, self._path, kept)
            return await self._barrier(lambda: self._take_over(theirs))

    async def set_aside(self, kept: Path) -> None:
        """Forget runs, events and nodes; where we have runs, all that is ours goes to the file `kept` before. Raises
        Refused."""

        def forget() -> None:
            for table in ("runs", "events", "nodes"):
                self._db.execute(f"DELETE FROM {table}")

        await asyncio.to_thread(keep_copy, self._path, kept)
        await self._barrier(forget)

    async def next_incarnation(self) -> tuple[str, int]:
        """The identity of this state folder, made once, and how often a supd has begun in it, this one included."""

        def begin() -> tuple[str, int]:
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('identity', ?)", (int.from_bytes(os.urandom(8)) >> 1,))
            return f"{self._number('identity') or 0:016x}", self._count_up("incarnation")

        return await self._barrier(begin)

    async def folder(self) -> int | None:
        """What the folder is known by that the identity was made for, by `bind`; None: that was not kept yet."""

        return await self._barrier(lambda: self._number("folder"))

    async def bind(self, folder: int) -> None:
        """The identity is that of this folder."""
        await self._barrier(lambda: self._bind(folder))

    async def begin_anew(self, folder: int) -> list[StoredRunner]:
        """Have no identity yet, in this folder. Returns the runners that are forgotten: they are another one's."""

        def forget() -> list[StoredRunner]:
            runners = self._runners()
            self._db.execute("DELETE FROM runners")
            self._db.execute("DELETE FROM meta WHERE key IN ('identity', 'hosts')")
            self._db.execute("UPDATE meta SET value = 0 WHERE key = 'incarnation'")
            self._bind(folder)
            return runners

        return await self._barrier(forget)

    async def add_run(self, request_id: str, job: Job, record: RunRecord, wall_s: float) -> str:
        """Accept a run; returns the run that this request made, which is an older one if it was made before."""

        def add() -> str:
            known = self._db.execute("SELECT run FROM runs WHERE request_id = ?", (request_id,)).fetchone()
            if known is not None:
                return str(known[0])
            self._db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, NULL)",
                (job.run, request_id, pack(job), pack(record), wall_s),
            )
            return job.run

        return await self._barrier(add)

    async def run_of_request(self, request_id: str) -> str | None:
        """The run that a request has made, if it has been here before."""

        def look() -> str | None:
            known = self._db.execute("SELECT run FROM runs WHERE request_id = ?", (request_id,)).fetchone()
            return None if known is None else str(known[0])

        return await self._barrier(look)

    async def save_run(self, run: str, record: RunRecord, ended_wall_s: float | None) -> None:
        """Put a run's whole record on disk."""

        def save() -> None:
            self._db.execute(
                "UPDATE runs SET record = ?, ended_wall_s = ? WHERE run = ?", (pack(record), ended_wall_s, run)
            )

        await self._insist(save)

    async def runs(self) -> list[StoredRun]:
        """Every run, oldest first."""

        def read() -> list[StoredRun]:
            rows = self._db.execute("SELECT run, job, record, submitted_wall_s, ended_wall_s FROM runs ORDER BY rowid")
            return [
                StoredRun(
                    run=row[0],
                    job=msgspec.msgpack.decode(row[1], type=Job),
                    record=msgspec.msgpack.decode(row[2], type=RunRecord),
                    submitted_wall_s=row[3],
                    ended_wall_s=row[4],
                )
                for row in rows
            ]

        return await self._barrier(read)

    async def forget_run(self, run: str) -> None:
        """Forget a run, its request and its events, a few at a time: others get their turn between them. What a kill
        leaves half done is done again."""

        def forget() -> bool:
            if self._delete_events("run = ?", run):
                return True
            self._db.execute("DELETE FROM runs WHERE run = ?", (run,))
            self._unlooked.pop(run, None)
            return False

        while await self._insist(forget):
            pass

    async def stray_runs(self) -> list[str]:
        """Runs that are not known any more, and have events: something may be told of one that goes."""

        def read() -> list[str]:
            known = {row[0] for row in self._db.execute("SELECT run FROM runs")}
            return [run for run in self._runs_with_events() if run not in known]

        return await self._barrier(read)

    async def add_runner(self, runner: StoredRunner) -> None:
        """Remember who serves a run, before it is told to."""

        def add() -> None:
            self._db.execute("INSERT INTO runners VALUES (?, ?, ?)", (runner.incarnation, runner.run, runner.cgroup))

        await self._insist(add)

    async def remove_runner(self, incarnation: str) -> None:
        """Forget a runner that is proven gone, once the coordinator knows that."""

        def remove() -> None:
            self._db.execute("DELETE FROM runners WHERE incarnation = ?", (incarnation,))

        await self._insist(remove)

    async def runners(self) -> list[StoredRunner]:
        """Every runner that is not proven gone, as far as the coordinator knows."""
        return await self._barrier(self._runners)

    def save_node(self, node: NodeRecord) -> None:
        """Write behind what is known of a node of the fleet: it is on disk with the next barrier."""
        self._write_behind("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (node.name, pack(node)))

    async def settle(self) -> None:
        """See what was written behind so far on disk. Raises Refused."""
        await self._barrier(lambda: None)

    async def save_job(self, job: Job) -> None:
        """Put another revision of a run's job on disk. Raises Refused."""

        def save() -> None:
            self._db.execute("UPDATE runs SET job = ? WHERE run = ?", (pack(job), job.run))

        await self._barrier(save)

    def remove_node(self, name: str) -> None:
        """Forget a node of the fleet, written behind as well."""
        self._write_behind("DELETE FROM nodes WHERE node = ?", (name,))

    async def nodes(self) -> list[NodeRecord]:
        """Every node of the fleet that has ever joined."""

        def read() -> list[NodeRecord]:
            rows = self._db.execute("SELECT record FROM nodes ORDER BY node")
            return [msgspec.msgpack.decode(row[0], type=NodeRecord) for row in rows]

        return await self._barrier(read)

    def add_event(self, event: EventRecord, then: Callable[[], None]) -> None:
        """Write an event behind (its id is given here); `then` is called in the loop once it can be read."""

        def add() -> None:
            self._db.execute(
                "INSERT INTO events (run, generation, wall_s, kind, text, detail) VALUES (?, ?, ?, ?, ?, ?)",
                (event.run, event.generation, event.wall_s, event.kind, event.text, pack(event.detail)),
            )
            self._see_to_events(event.run)
            self._tell(then)

        self._jobs.put((add, None))

    async def events(self, run: str, after: int) -> list[EventRecord]:
        """Events of a run (or of all, with "") behind `after`, oldest first, at most EVENTS_A_READ_MAX."""

        def read() -> list[EventRecord]:
            rows = self._db.execute(
                "SELECT id, run, generation, wall_s, kind, text, detail FROM events"
                " WHERE id > ? AND (? = '' OR run = ?) ORDER BY id LIMIT ?",
                (after, run, run, EVENTS_A_READ_MAX),
            )
            return [
                EventRecord(
                    id=row[0],
                    run=row[1],
                    generation=row[2],
                    wall_s=row[3],
                    kind=row[4],
                    text=row[5],
                    detail=msgspec.msgpack.decode(row[6]),
                )
                for row in rows
            ]

        return await self._barrier(read)

    def _write_behind(self, statement: str, values: tuple[Any, ...]) -> None:
        self._jobs.put((lambda: self._db.execute(statement, values), None))

    def close(self) -> None:
        """Finish what was handed in, and let go of the file; raises Refused where the last of it is not on disk."""
        last: Future[None] = Future()
        self._jobs.put((lambda: None, last))
        self._jobs.put(None)
        self._thread.join()
        last.result()

    # --- the thread ----------------------------------------------------------------------------------------------

    async def _insist(self, job: Callable[[], T]) -> T:
        """As `_barrier`, but a disk that has no room (or is away) is waited for: what waits was accepted before."""
        while True:
            try:
                done = await self._barrier(job)
            except DiskTrouble as exc:
                self.trouble = str(exc)
                log.error("journal_waits", error=self.trouble)
                await asyncio.sleep(AGAIN_S)
            else:
                self.trouble = ""
                return done

    async def _barrier(self, job: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return await asyncio.wrap_future(future)

    def _bind(self, folder: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('folder', ?)", (folder,))

    def _runners(self) -> list[StoredRunner]:
        rows = self._db.execute("SELECT incarnation, run, cgroup FROM runners")
        return [StoredRunner(incarnation=row[0], run=row[1], cgroup=row[2]) for row in rows]

    def _take_over(self, theirs: sqlite3.Connection) -> int:
        self._db.execute("SAVEPOINT take_over")
        try:
            for table, columns in (("runs", 6), ("events", 7), ("nodes", 2)):
                self._db.execute(f"DELETE FROM {table}")
                rows = theirs.execute(f"SELECT * FROM {table} ORDER BY rowid")
                self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})", rows)
            epoch = theirs.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0]
            self._db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'epoch'", (epoch,))
        except sqlite3.Error:
            self._db.execute("ROLLBACK TO take_over")
            raise
        return int(self._db.execute("SELECT count(*) FROM runs").fetchone()[0])

    def _see_to_events(self, run: str) -> None:
        """See now and then that a run has not too many events; a kill costs the count, so the first one counts much."""
        self._unlooked[run] = self._unlooked.get(run, LOOK_EVERY) + 1
        if self._unlooked[run] < LOOK_EVERY:
            return
        self._unlooked[run] = 0
        first = EVENTS_FIRST if run else 0
        before = self._id_of_event("DESC", run, EVENTS_NEWEST)
        if before is not None:
            after = self._id_of_event("ASC", run, first - 1) if first else 0
            self._delete_events("run = ? AND id > ? AND id <= ?", run, after, before)

    def _id_of_event(self, order: str, run: str, place: int) -> int | None:
        """The id of a run's event at this place, from 0, from one end; None: it has not so many."""
        query = f"SELECT id FROM events WHERE run = ? ORDER BY id {order} LIMIT 1 OFFSET ?"
        found = self._db.execute(query, (run, place)).fetchone()
        return None if found is None else int(found[0])

    def _runs_with_events(self) -> Iterator[str]:
        """From one to the next by the index: there may be a million events."""
        run = ""
        while found := self._db.execute("SELECT min(run) FROM events WHERE run > ?", (run,)).fetchone()[0]:
            yield (run := str(found))

    def _delete_events(self, which: str, *values: object) -> bool:
        """Delete some of these, the oldest first; returns whether there were any. Their room is used again."""
        some = f"SELECT id FROM events WHERE {which} ORDER BY id LIMIT {DELETED_AT_ONCE}"
        return self._db.execute(f"DELETE FROM events WHERE id IN ({some})", values).rowcount > 0

    def _number(self, key: str) -> int | None:
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else int(found[0])

    def _count_up(self, key: str) -> int:
        self._db.execute("UPDATE meta SET value = value + 1 WHERE key = ?", (key,))
        return self._number(key) or 0

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            # A client that goes away takes its question with it: nobody wants the answer.
            is_wanted = future is None or future.set_running_or_notify_cancel()
            try:
                if not self._db.in_transaction:
                    self._db.execute("BEGIN IMMEDIATE")
                result = job() if is_wanted else None
                if future is not None or self._jobs.empty():
                    self._db.execute("COMMIT")
            except (sqlite3.Error, msgspec.MsgspecError) as exc:
                refusal = self._refusal(exc)
                if future is not None and is_wanted:
                    future.set_exception(refusal)
                # SQLite undoes the statement that failed, or else the whole transaction, and with it what was
                # written behind (https://www.sqlite.org/lang_transaction.html#response_to_errors_within_a_transaction).
                if future is None or not self._db.in_transaction:
                    self._tell(self._on_lost_events if isinstance(refusal, DiskTrouble) else self._fail, refusal)
            else:
                if future is not None and is_wanted:
                    future.set_result(result)
        self._db.close()

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *args)

    def _refusal(self, exc: Exception) -> Refused:
        code = getattr(exc, "sqlite_errorcode", None)
        kind = DiskTrouble if code is not None and code & 0xFF in DISK_CODES else Refused
        return kind("F022", f"the journal {self._path} has failed: {exc}", hint=HINT)

    def _on_lost_events(self, refusal: Refused) -> None:
        log.error("events_lost", error=str(refusal))

    def _fail(self, refusal: Refused) -> None:
        self._failure = self._failure or refusal
        self._has_failed.set()

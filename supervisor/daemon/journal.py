"""What supd must not forget, in SQLite: its identity, runners; and where it hosts the coordinator epoch, runs, events
and nodes.

One thread owns the database. Calls that are awaited are barriers: when they return they are on disk, with
everything handed in before them (synchronous=FULL: https://www.sqlite.org/pragma.html#pragma_synchronous). Events
are written behind, with the next barrier or as soon as the thread has nothing else to do.

What cannot be written is never passed over: the call raises Refused, and where anything may be lost supd ends.
"""

import asyncio
import contextlib
import queue
import secrets
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from protocol.coordinator_events import RunRecord
from protocol.errors import Refused
from protocol.fleet_events import NodeRecord
from protocol.job import Job
from protocol.messages.control import EventRecord

log = structlog.get_logger()

T = TypeVar("T")

SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE runs (
    run TEXT PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, job BLOB NOT NULL, record BLOB NOT NULL,
    submitted_wall_s REAL NOT NULL, ended_wall_s REAL
) STRICT;
CREATE TABLE runners (incarnation TEXT PRIMARY KEY, run TEXT NOT NULL, cgroup TEXT) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, generation INTEGER, wall_s REAL NOT NULL,
    kind TEXT NOT NULL, text TEXT NOT NULL, detail BLOB NOT NULL
) STRICT;
CREATE INDEX events_of_run ON events (run, id);
CREATE TABLE nodes (node TEXT PRIMARY KEY, record BLOB NOT NULL) STRICT;
INSERT INTO meta VALUES ('epoch', 0), ('incarnation', 0);
"""
_FROM_1 = (
    "CREATE TABLE nodes (node TEXT PRIMARY KEY, record BLOB NOT NULL) STRICT",
    "INSERT INTO meta VALUES ('incarnation', 0)",
)
"""What version 2 adds. The jobs of version 1 gave the number of nodes as one number (`_renew`)."""

EVENTS_A_READ_MAX = 1000

_HINT = "see that its disk has room; a damaged one can be moved away: supd begins anew, and no longer knows its runs"


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
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any] | None] | None] = queue.SimpleQueue()
        self._db = _open(path)
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
        with contextlib.closing(await asyncio.to_thread(_open, other)) as theirs:
            await asyncio.to_thread(_keep, self._path, kept)
            return await self._barrier(lambda: self._take_over(theirs))

    async def set_aside(self, kept: Path) -> None:
        """Forget runs, events and nodes; where we have runs, all that is ours goes to the file `kept` before. Raises
        Refused."""

        def forget() -> None:
            for table in ("runs", "events", "nodes"):
                self._db.execute(f"DELETE FROM {table}")

        await asyncio.to_thread(_keep, self._path, kept)
        await self._barrier(forget)

    async def next_incarnation(self) -> tuple[str, int]:
        """The identity of this state folder, made once, and how often a supd has begun in it, this one included."""

        def begin() -> tuple[str, int]:
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('identity', ?)", (secrets.randbits(63),))
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
                (job.run, request_id, _pack(job), _pack(record), wall_s),
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
                "UPDATE runs SET record = ?, ended_wall_s = ? WHERE run = ?", (_pack(record), ended_wall_s, run)
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
        self._write_behind("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (node.name, _pack(node)))

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
                (event.run, event.generation, event.wall_s, event.kind, event.text, _pack(event.detail)),
            )
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
        return kind("F022", f"the journal {self._path} has failed: {exc}", hint=_HINT)

    def _on_lost_events(self, refusal: Refused) -> None:
        log.error("events_lost", error=str(refusal))

    def _fail(self, refusal: Refused) -> None:
        self._failure = self._failure or refusal
        self._has_failed.set()


def _open(path: Path) -> sqlite3.Connection:
    """Raises Refused where the file is not a journal of this version; it is left as it is then."""
    try:
        with contextlib.ExitStack() as undo:
            path.touch(0o600)
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            undo.callback(db.close)
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            is_new = version == 0 and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version not in (1, SCHEMA_VERSION) and not is_new:
                found = f"is of version {version}" if version else "is another program's"
                raise Refused("F021", f"the journal {path} {found}, this supd knows version {SCHEMA_VERSION}")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            if is_new:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            elif version == 1:
                _renew(db)
            undo.pop_all()
            return db
    except (sqlite3.Error, OSError) as exc:
        raise Refused("F020", f"cannot use the journal {path}: {exc}", hint=_HINT) from exc


def _keep(path: Path, kept: Path) -> None:
    """Copy a journal that has runs. By a connection of its own: VACUUM cannot be in the middle of a transaction
    (https://www.sqlite.org/lang_vacuum.html). Raises Refused."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            if db.execute("SELECT 1 FROM runs").fetchone():
                kept.unlink(missing_ok=True)  # of an attempt that was cut short
                db.execute("VACUUM INTO ?", (str(kept),))
    except (sqlite3.Error, OSError) as exc:
        raise Refused("F022", f"the journal {path} cannot be copied to {kept}: {exc}", hint=_HINT) from exc


def _renew(db: sqlite3.Connection) -> None:
    """Make a journal of version 1 one of this version, or leave it as it is."""
    db.execute("BEGIN IMMEDIATE")
    for statement in _FROM_1:
        db.execute(statement)
    for run, blob in db.execute("SELECT run, job FROM runs").fetchall():
        job = msgspec.msgpack.decode(blob)
        topology = job["spec"].get("topology", {})
        if isinstance(number := topology.get("nnodes"), int):
            topology["nnodes"] = [number, number]
            db.execute("UPDATE runs SET job = ? WHERE run = ?", (_pack(job), run))
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def _pack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)

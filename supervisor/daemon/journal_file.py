"""The journal's file: its tables, and what earlier versions made of them."""

import contextlib
import sqlite3
from pathlib import Path

import msgspec

from protocol.errors import Refused

SCHEMA_VERSION = 3
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
"""What version 2 adds. The jobs of version 1 gave the number of nodes as one number (`_renew`). Version 3 has the same
tables, and records in them (of runs that are held, say) that a supd which knows version 2 would take for damage."""

HINT = "see that its disk has room; a damaged one can be moved away: supd begins anew, and no longer knows its runs"


def open_journal(path: Path) -> sqlite3.Connection:
    """Raises Refused where the file is not a journal of this version; it is left as it is then."""
    try:
        with contextlib.ExitStack() as undo:
            path.touch(0o600)
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            undo.callback(db.close)
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            is_new = version == 0 and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version not in range(1, SCHEMA_VERSION + 1) and not is_new:
                found = f"is of version {version}" if version else "is another program's"
                raise Refused("F021", f"the journal {path} {found}, this supd knows version {SCHEMA_VERSION}")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            if is_new:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            elif version < SCHEMA_VERSION:
                _renew(db, version)
            undo.pop_all()
            return db
    except (sqlite3.Error, OSError) as exc:
        raise Refused("F020", f"cannot use the journal {path}: {exc}", hint=HINT) from exc


def keep_copy(path: Path, kept: Path) -> None:
    """Copy a journal that has runs. By a connection of its own: VACUUM cannot be in the middle of a transaction
    (https://www.sqlite.org/lang_vacuum.html). Raises Refused."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            if db.execute("SELECT 1 FROM runs").fetchone():
                kept.unlink(missing_ok=True)  # of an attempt that was cut short
                db.execute("VACUUM INTO ?", (str(kept),))
    except (sqlite3.Error, OSError) as exc:
        raise Refused("F022", f"the journal {path} cannot be copied to {kept}: {exc}", hint=HINT) from exc


def _renew(db: sqlite3.Connection, version: int) -> None:
    """Make a journal of an earlier version one of this version, or leave it as it is."""
    db.execute("BEGIN IMMEDIATE")
    if version == 1:
        _renew_1(db)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def _renew_1(db: sqlite3.Connection) -> None:
    for statement in _FROM_1:
        db.execute(statement)
    for run, blob in db.execute("SELECT run, job FROM runs").fetchall():
        job = msgspec.msgpack.decode(blob)
        topology = job["spec"].get("topology", {})
        if isinstance(number := topology.get("nnodes"), int):
            topology["nnodes"] = [number, number]
            db.execute("UPDATE runs SET job = ? WHERE run = ?", (pack(job), run))


def pack(value: object) -> bytes:
    """As the journal holds what is no number and no text."""
    return msgspec.msgpack.encode(value)

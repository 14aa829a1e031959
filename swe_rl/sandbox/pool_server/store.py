"""The book on disk: SQLite in WAL mode behind one writer thread, which commits what waits together.

`synchronous=NORMAL`: a kill -9 of this process loses nothing that was acknowledged. A power cut may lose the last
moments of the journal; the reaper then finds the containers that the book does not know.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import uuid
from collections.abc import Iterable
from dataclasses import astuple, fields
from pathlib import Path
from typing import NamedTuple

from swe_rl.errors import DataError
from swe_rl.sandbox.pool_server.lease import Lease, LeaseState

COLUMNS = [field.name for field in fields(Lease)]
NODE_COLUMNS = "url TEXT PRIMARY KEY, capacity INTEGER, draining INTEGER NOT NULL, gone INTEGER NOT NULL"
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS nodes ({NODE_COLUMNS});
CREATE TABLE IF NOT EXISTS leases ({", ".join(f"{name} UNIQUE" if name == "allocate_key" else name for name in COLUMNS)},
    PRIMARY KEY (id));
"""
SAVE_LEASE = f"INSERT OR REPLACE INTO leases ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
VERSION = 2
FROM_1 = f"""
BEGIN;
ALTER TABLE nodes RENAME TO nodes_1;
CREATE TABLE nodes ({NODE_COLUMNS});
INSERT INTO nodes SELECT url, capacity, draining, 0 FROM nodes_1;
DROP TABLE nodes_1;
ALTER TABLE leases ADD COLUMN request DEFAULT '';
PRAGMA user_version=2;
COMMIT;
"""
MAX_BATCH = 500
Statement = tuple[str, tuple[object, ...]]


class NodeRow(NamedTuple):
    """What the disk knows of a node that has ever joined."""

    url: str
    capacity: int | None  # None: whatever the server's default is
    draining: bool
    gone: bool  # it was taken out, and stays out where it is still on the server's own list


class Store:
    """Owns the database file and the thread that writes it. `open()` before use, `close()` at the end."""

    def __init__(self, path: str, pool_id: str = "") -> None:
        self.path = path
        self.pool_id = pool_id
        self.was_version_1 = False  # that wrote the server's default down as the capacity of each node on its list
        self._work: queue.Queue[tuple[list[Statement], asyncio.Future[None]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> tuple[list[Lease], list[NodeRow]]:
        """Open or make the file (or bring an older one up to date), start the writer; returns all leases and nodes.

        Raises DataError where the file is no book of this version or another pool server holds it.
        """
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            database = sqlite3.connect(self.path, timeout=2.0, check_same_thread=False, isolation_level=None)
            database.execute("PRAGMA locking_mode=EXCLUSIVE")  # two pool servers on one book would both reap
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, 1, VERSION):
                raise DataError(f"{self.path}: written by another version ({version}, this is {VERSION})")
            self.was_version_1 = version == 1
            if self.was_version_1:
                database.executescript(FROM_1)
            database.executescript(SCHEMA)
            database.execute(f"PRAGMA user_version={VERSION}")
            database.execute("INSERT OR IGNORE INTO meta VALUES ('pool_id', ?)", (uuid.uuid4().hex[:12],))
            self.pool_id = self.pool_id or database.execute("SELECT value FROM meta WHERE name='pool_id'").fetchone()[0]
            leases = [_lease(row) for row in database.execute(f"SELECT {', '.join(COLUMNS)} FROM leases")]
            rows = database.execute("SELECT url, capacity, draining, gone FROM nodes")
            nodes = [NodeRow(url, capacity, bool(draining), bool(gone)) for url, capacity, draining, gone in rows]
        except sqlite3.Error as error:
            raise DataError(f"{self.path}: {error} (does another pool server use this file?)") from error
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, args=(database,), name="pool-book")
        self._thread.start()
        return leases, nodes

    async def execute(self, statements: Iterable[Statement]) -> None:
        """Commit statements together; returns when they are in the journal. Raises sqlite3.Error."""
        assert self._loop is not None
        done: asyncio.Future[None] = self._loop.create_future()
        self._work.put((list(statements), done))
        await asyncio.shield(done)

    async def save(self, *leases: Lease) -> None:
        await self.execute([(SAVE_LEASE, _row(lease)) for lease in leases])

    async def save_node(self, node: NodeRow) -> None:
        await self.execute([("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", tuple(node))])

    async def delete_node(self, url: str) -> None:
        await self.execute([("DELETE FROM nodes WHERE url=?", (url,))])

    async def delete_leases(self, ids: list[str]) -> None:
        await self.execute([("DELETE FROM leases WHERE id=?", (lease_id,)) for lease_id in ids])

    def close(self) -> None:
        """Write what waits, end the thread, close the file."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(timeout=30)
            self._thread = None

    def _write(self, database: sqlite3.Connection) -> None:
        ended = False
        while not ended:
            batch = [self._work.get()]
            while len(batch) < MAX_BATCH and not self._work.empty():
                batch.append(self._work.get())
            ended = None in batch
            work = [item for item in batch if item is not None]
            if work:
                error = _commit(database, [statement for statements, _ in work for statement in statements])
                self._report([done for _, done in work], error)
        database.close()

    def _report(self, waiting: list[asyncio.Future[None]], error: sqlite3.Error | None) -> None:
        def resolve() -> None:
            for done in waiting:
                if done.done():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(resolve)


def _commit(database: sqlite3.Connection, statements: list[Statement]) -> sqlite3.Error | None:
    try:
        database.execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            database.execute(sql, values)
        database.execute("COMMIT")
    except sqlite3.Error as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        return error
    return None


def _row(lease: Lease) -> tuple[object, ...]:
    return tuple(value.value if isinstance(value, LeaseState) else value for value in astuple(lease))


def _lease(row: tuple) -> Lease:
    values = dict(zip(COLUMNS, row, strict=True))
    return Lease(**{**values, "state": LeaseState(values["state"])})

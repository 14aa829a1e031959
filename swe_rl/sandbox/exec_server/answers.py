"""Exactly one effect: the first answer of every idempotency key is kept and given again, also after a restart.

The intent is on disk before a command starts. A key whose command was under way when the server ended is answered with
`outcome_unknown`: whether it ran cannot be known, and running it again could do it twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any

from swe_rl.sandbox.exec_server.faults import ExecFault

SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, request BLOB NOT NULL, state TEXT NOT NULL, body BLOB NOT NULL, at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_at ON answers (at);
"""
KEEP_SECONDS = 6 * 3600.0
KEEP_BYTES = 256 * 1024 * 1024
STOP_SECONDS = 10.0  # that cancelled work may take to clean up
PRUNE_EVERY = 500  # new keys


def open_database(path: str) -> sqlite3.Connection:
    """A WAL database; commits survive the end of the process without waiting for the disk."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA busy_timeout=5000")
    return db


class Answers:
    """The store of answers. `aclose()` ends what still runs; its keys stay `started`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._running: dict[str, tuple[bytes, asyncio.Task[bytes]]] = {}
        self._unkeyed: set[asyncio.Task[bytes]] = set()
        self._since_prune = 0
        self.replayed = 0
        self.stopping = False  # what runs may end and be joined, nothing new is begun: it would be cut
        db.executescript(SCHEMA)

    async def once(
        self, key: str, request: bytes, work: Callable[[], Awaitable[dict[str, Any]]], *, repeatable: bool = False
    ) -> bytes:
        """The JSON answer of `work`, which runs at most once per key and to its end even if the caller goes away.

        request: what the key stands for; the same key with another one is refused. repeatable: doing it twice is the
        same as once, so an unfinished key may be run again. Raises ExecFault.
        """
        if not key:
            self._refuse_while_stopping()
            task = asyncio.create_task(_to_json(work))
            self._unkeyed.add(task)
            task.add_done_callback(self._unkeyed.discard)
            return await asyncio.shield(task)
        digest = hashlib.sha256(request).digest()
        running = self._running.get(key)
        if running is None:
            kept = self._kept(key, digest, repeatable)
            if kept is not None:
                return kept
            self._refuse_while_stopping()
            self._remember(key, digest, "started", b"")
            task = asyncio.create_task(self._work(key, digest, work), name=f"key {key}")
            self._running[key] = (digest, task)
            task.add_done_callback(lambda _: self._running.pop(key, None))
        else:
            self.replayed += 1
            _same(running[0], digest)
            task = running[1]
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        tasks = [*self._unkeyed, *(task for _, task in self._running.values())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)

    @property
    def running(self) -> int:
        return len(self._running) + len(self._unkeyed)

    async def drained(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what runs."""
        tasks = [*self._unkeyed, *(task for _, task in self._running.values())]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def _refuse_while_stopping(self) -> None:
        if self.stopping:
            raise ExecFault("stopping", "the exec server is stopping; nothing was done")

    async def _work(self, key: str, digest: bytes, work: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
        try:
            body = await _to_json(work)
        except Exception as error:
            fault = ExecFault.of(error)
            if fault is not None and fault.kind != "outcome_unknown":
                self._db.execute("DELETE FROM answers WHERE key = ?", (key,))  # nothing was done: it may be tried again
            else:
                self._remember(key, digest, "unknown", str(error).encode())
            raise
        self._remember(key, digest, "done", body)
        return body

    def _kept(self, key: str, digest: bytes, repeatable: bool) -> bytes | None:
        row = self._db.execute("SELECT request, state, body FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        _same(row[0], digest)
        if row[1] == "done":
            self.replayed += 1
            return row[2]
        if repeatable:
            return None
        why = row[2].decode() or "the server ended while it ran"
        raise ExecFault("outcome_unknown", f"whether this request took effect is unknown: {why}")

    def _remember(self, key: str, digest: bytes, state: str, body: bytes) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", (key, digest, state, body, time.time())
        )
        self._since_prune += state == "started"
        if self._since_prune >= PRUNE_EVERY:
            self.prune()

    def prune(self) -> None:
        """Forget answers that are old, then the oldest until all together are small enough."""
        self._since_prune = 0
        now = time.time()
        self._db.execute("DELETE FROM answers WHERE at < ? AND state != 'started'", (now - KEEP_SECONDS,))
        self._db.execute("DELETE FROM answers WHERE at < ?", (now - 2 * 86400.0,))  # no command may take that long
        query = (
            "SELECT key, SUM(LENGTH(body)) OVER (ORDER BY at DESC, key) AS size FROM answers WHERE state != 'started'"
        )
        self._db.execute(f"DELETE FROM answers WHERE key IN (SELECT key FROM ({query}) WHERE size > ?)", (KEEP_BYTES,))


def _same(kept: bytes, given: bytes) -> None:
    if kept != given:
        raise ExecFault("key_conflict", "this idempotency key belongs to another request")


async def _to_json(work: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
    # Clients look for `ok`, whatever the status says.
    return json.dumps({"ok": True, **(await work())}).encode()

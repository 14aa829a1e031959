"""A running exec server, in a process of its own or inside another server's."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import UsageError
from swe_rl.sandbox.exec_server.answers import Answers, open_database
from swe_rl.sandbox.exec_server.app import make_app
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.settings import ExecSettings
from swe_rl.sandbox.server.process import Listening, listening


@dataclass(frozen=True)
class ExecServer:
    """It answers on `port`. Its containers outlive it."""

    node: Node
    answers: Answers
    listening: Listening

    @property
    def port(self) -> int:
        return self.listening.port

    async def drain(self) -> None:
        """No new connections and no new commands on old ones; those under way may still end, for a bounded time."""
        self.answers.stopping = True
        self.listening.refuse_new()
        await self.answers.drained(self.node.settings.drain_seconds)


@contextlib.asynccontextmanager
async def exec_server(settings: ExecSettings, host: str, port: int) -> AsyncIterator[ExecServer]:
    """Serve until the context ends. port: 0 = a free one.

    Raises UsageError where the address cannot be had or another server has the database.
    """
    with held(settings.database):
        db = open_database(settings.database)
        answers, node = Answers(db), Node(settings, db)
        try:
            await node.start()
            async with listening(make_app(node, answers), host, port) as server:
                try:
                    yield ExecServer(node, answers, server)
                finally:
                    await answers.aclose()
        finally:
            await node.stop()
            db.close()


@contextlib.contextmanager
def held(database: str) -> Iterator[None]:
    """One server a database: two would take each other's containers for what an earlier one left.

    Raises UsageError where another process has it.
    """
    with Path(f"{database}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--database {database}: another exec server uses it; give each one of its own") from None
        yield

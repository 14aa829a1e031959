"""`swe-rl pool-server`: flags, and the life of the process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
from pathlib import Path

from swe_rl.errors import UsageError
from swe_rl.sandbox.pool_server.app import make_app
from swe_rl.sandbox.pool_server.local_engine import local_exec_server, local_pool_id
from swe_rl.sandbox.pool_server.pool import Pool
from swe_rl.sandbox.pool_server.settings import PoolSettings
from swe_rl.sandbox.server import process

SHORTEST_TTL, LONGEST_TTL = 5.0, 86400.0
CLOSE_SECONDS = 20.0  # that --close-at-exit may take

DESCRIPTION = """Leases of sandboxes over a row of exec servers. Leases and nodes are kept in one SQLite file, so the server
can be killed and started again at any time. Without a token it listens on loopback only."""
EPILOG = """The token comes from the variable SWE_SERVER_TOKEN (or --token-file), never from a flag: command lines can be read by
every user of the machine. Nodes can also join, drain and leave while it runs:
  curl -H "Authorization: Bearer $SWE_SERVER_TOKEN" -d '{"url": "http://node7:5000", "capacity": 30}' http://pool:18090/nodes
  (the same body to /nodes/drain and /nodes/leave)"""


def make_parser() -> argparse.ArgumentParser:
    env = os.environ.get
    parser = process.make_parser("pool-server", DESCRIPTION, EPILOG)
    port = _at_least("SWE_ENV_SERVER_PORT", env("SWE_ENV_SERVER_PORT", "18090"), 0)
    process.add_server_flags(parser, port=port, database="pool.sqlite3", keeps="the book of leases")
    add = parser.add_argument
    add("--nodes", default=env("SWE_EXEC_SERVER_URLS", ""), metavar="URLS", help="exec servers, comma-separated")
    add(
        "--capacity",
        default=env("SWE_MAX_CONTAINERS_PER_NODE", "15"),
        metavar="N",
        help="containers at once per node; SWE_MAX_CONTAINERS_PER_NODE [15]",
    )
    add("--ttl", type=float, default=120.0, metavar="S", help="seconds a lease lives without heartbeats [120]")
    add("--node-token-file", metavar="FILE", help="token of the exec servers, where it is another one")
    add("--local-engine", default="", metavar="URL", help="also serve this machine's engine, unix:///...; for one run")
    add(
        "--close-at-exit",
        action="store_true",
        help="close every lease before stopping (for a pool that belongs to one run)",
    )
    return parser


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Raises UsageError for settings that cannot work."""
    flags = make_parser().parse_args(argv)
    parent = process.parent_of(flags)
    process.set_up_logging("pool", access=flags.access_log)
    token = process.token_of(flags.token_file)
    settings = PoolSettings(
        database=flags.database,
        pool_id=local_pool_id() if flags.local_engine else "",
        token=token,
        node_token=process.read_token(flags.node_token_file) if flags.node_token_file else "",
        capacity=_at_least("--capacity (SWE_MAX_CONTAINERS_PER_NODE)", flags.capacity, 1),
        default_ttl=_seconds("--ttl", flags.ttl),
    )
    host = process.listen_host(flags.host, token, "pool")
    asyncio.run(serve(settings, flags, host, parent))
    return 0


async def serve(settings: PoolSettings, flags: argparse.Namespace, host: str, parent: int | None) -> None:
    """Start the pool and the HTTP server, wait for a signal (or the parent's end), stop in order."""
    stop = process.stop_signals()
    pool = Pool(settings)
    async with contextlib.AsyncExitStack() as stack:
        nodes = [url.strip() for url in flags.nodes.split(",") if url.strip()]
        if flags.local_engine:
            folder = Path(settings.database).resolve().parent
            nodes.append(await stack.enter_async_context(local_exec_server(flags.local_engine, settings.token, folder)))
        await pool.start(nodes)
        stack.push_async_callback(pool.stop)
        # A caller that hangs up leaves the waiting line.
        server = await stack.enter_async_context(process.listening(make_app(pool), host, flags.port, cancel_lost=True))
        logging.info("pool server %s on http://%s:%d", pool.store.pool_id, host, server.port)
        process.write_port_file(flags.port_file, server.port)
        await process.until_stopped(stop, parent)
        if flags.close_at_exit:
            left = await pool.close_all("the pool server of this run ends", within=CLOSE_SECONDS)
            logging.info("%d leases could not be closed", left)


def _seconds(name: str, value: float) -> float:
    if not SHORTEST_TTL <= value <= LONGEST_TTL:
        raise UsageError(f"{name} {value}: from {SHORTEST_TTL:.0f} to {LONGEST_TTL:.0f} s")
    return value


def _at_least(name: str, text: str, least: int) -> int:
    if not text.strip().isdigit() or int(text) < least:
        raise UsageError(f"{name} {text}: a whole number, at least {least}")
    return int(text)

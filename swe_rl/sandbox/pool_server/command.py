"""`swe-rl pool-server`: flags, signals and the life of the process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
from pathlib import Path

from aiohttp import web

from swe_rl.errors import UsageError
from swe_rl.sandbox.pool_server.app import make_app
from swe_rl.sandbox.pool_server.local_engine import local_exec_server, local_pool_id
from swe_rl.sandbox.pool_server.pool import Pool
from swe_rl.sandbox.pool_server.settings import PoolSettings

SHUTDOWN_SECONDS = 5.0  # that answers under way may still take after SIGTERM
CLOSE_SECONDS = 20.0  # that --close-at-exit may take

DESCRIPTION = """Leases of sandboxes over a row of exec servers. Leases and nodes are kept in one SQLite file, so the server
can be killed and started again at any time. Without a token it listens on loopback only."""
EPILOG = """The token comes from the variable SWE_SERVER_TOKEN (or --token-file), never from a flag: command lines can be read by
every user of the machine. Nodes can also join, drain and leave while it runs:
  curl -H "Authorization: Bearer $SWE_SERVER_TOKEN" -d '{"url": "http://node7:5000", "capacity": 30}' http://pool:18090/nodes
  (the same body to /nodes/drain and /nodes/leave)"""


def make_parser() -> argparse.ArgumentParser:
    home = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "swe-rl"
    env = os.environ.get
    parser = argparse.ArgumentParser(
        "swe-rl pool-server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--nodes", default=env("SWE_EXEC_SERVER_URLS", ""), metavar="URLS", help="exec servers, comma-separated")
    add("--host", default="", help="address to listen on; default: 127.0.0.1, with a token 0.0.0.0")
    add("--port", type=int, default=int(env("SWE_ENV_SERVER_PORT", "18090")), help="0 = a free one [18090]")
    add("--port-file", metavar="FILE", help="write the port there once it answers")
    add("--database", default=str(home / "pool.sqlite3"), metavar="FILE", help="the book of leases [%(default)s]")
    add(
        "--capacity",
        type=int,
        default=int(env("SWE_MAX_CONTAINERS_PER_NODE", "15")),
        metavar="N",
        help="containers at once per node; SWE_MAX_CONTAINERS_PER_NODE [15]",
    )
    add("--ttl", type=float, default=120.0, metavar="S", help="seconds a lease lives without heartbeats [120]")
    add("--token-file", metavar="FILE", help="file with the bearer token, in place of SWE_SERVER_TOKEN")
    add("--node-token-file", metavar="FILE", help="token of the exec servers, where it is another one")
    add("--local-engine", default="", metavar="URL", help="also serve this machine's engine, unix:///...; for one run")
    add(
        "--close-at-exit",
        action="store_true",
        help="close every lease before stopping (for a pool that belongs to one run)",
    )
    add("--exit-with-parent", action="store_true", help="stop when the process that started this one ends")
    add("--access-log", action="store_true", help="one JSON line per request on stderr")
    return parser


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Raises UsageError for settings that cannot work."""
    flags = make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("swe_rl.pool.access").setLevel(logging.INFO if flags.access_log else logging.WARNING)
    token = _token(flags.token_file) or os.environ.get("SWE_SERVER_TOKEN", "").strip()
    settings = PoolSettings(
        database=flags.database,
        pool_id=local_pool_id() if flags.local_engine else "",
        token=token,
        node_token=_token(flags.node_token_file),
        capacity=_at_least_one("--capacity", flags.capacity),
        default_ttl=flags.ttl,
    )
    host = flags.host or ("0.0.0.0" if token else "127.0.0.1")
    if not token and not is_loopback(host):
        raise UsageError(f"--host {host}: without a token the pool server binds to loopback only; set SWE_SERVER_TOKEN")
    asyncio.run(serve(settings, flags, host))
    return 0


async def serve(settings: PoolSettings, flags: argparse.Namespace, host: str) -> None:
    """Start the pool and the HTTP server, wait for a signal (or the parent's end), stop in order."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    pool = Pool(settings)
    async with contextlib.AsyncExitStack() as stack:
        nodes = [url.strip() for url in flags.nodes.split(",") if url.strip()]
        if flags.local_engine:
            folder = Path(settings.database).resolve().parent
            nodes.append(await stack.enter_async_context(local_exec_server(flags.local_engine, settings.token, folder)))
        await pool.start(nodes)
        stack.push_async_callback(pool.stop)
        # With handler_cancellation a caller that hangs up leaves the waiting line.
        runner = web.AppRunner(
            make_app(pool), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS
        )
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, host, flags.port, backlog=1024).start()
        port = runner.addresses[0][1]
        logging.info("pool server %s on http://%s:%d", pool.store.pool_id, host, port)
        if flags.port_file:
            _write_atomically(Path(flags.port_file), str(port))
        await _until_stopped(stop, os.getppid() if flags.exit_with_parent else None)
        if flags.close_at_exit:
            left = await pool.close_all("the pool server of this run ends", within=CLOSE_SECONDS)
            logging.info("%d leases could not be closed", left)


async def _until_stopped(stop: asyncio.Event, parent: int | None) -> None:
    while not stop.is_set() and (parent is None or os.getppid() == parent):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), None if parent is None else 0.5)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(path: str | None) -> str:
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"token file {path}: {error.strerror}") from None
    if not token:
        raise UsageError(f"token file {path} is empty")
    return token


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise UsageError(f"{name} {value}: at least 1")
    return value


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)

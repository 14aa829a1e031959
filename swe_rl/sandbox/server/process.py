"""The life of a server process: flags, token, address, signals, and an end in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from swe_rl.errors import UsageError
from swe_rl.owned_tasks import within
from swe_rl.sandbox.server.guard import access_log

SHUTDOWN_SECONDS = 5.0  # that answers under way may still take at the end
LONG_SECONDS = 3600.0  # a bound where there is nothing else to look at
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, questions without answer
PARENT_SECONDS = 0.5  # between two looks at whether the parent still lives


def state_folder() -> Path:
    """Where a server keeps its database when no flag says otherwise."""
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "swe-rl"


def make_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser for `swe-rl NAME` with its texts as they are written."""
    return argparse.ArgumentParser(
        f"swe-rl {name}", description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_server_flags(parser: argparse.ArgumentParser, *, port: int, database: str, keeps: str) -> None:
    """The flags of every server. port: the default one; database: file name below the state folder; keeps: its use."""
    add = parser.add_argument
    add("--host", default="", help="address to listen on; default: 127.0.0.1, with a token 0.0.0.0")
    add("--port", type=int, default=port, help="0 = a free one [%(default)s]")
    add("--port-file", metavar="FILE", help="write the port there once it answers")
    add("--database", default=str(state_folder() / database), metavar="FILE", help=f"{keeps} [%(default)s]")
    add("--token-file", metavar="FILE", help="file with the bearer token, in place of SWE_SERVER_TOKEN")
    add(
        "--exit-with-parent",
        metavar="PID",
        type=int,
        nargs="?",
        const=0,
        help="stop when the process that started this one ends; PID: that process, in case it ends before this one looks",
    )
    add("--access-log", action="store_true", help="one JSON line per request on stderr")


def set_up_logging(server: str, *, access: bool) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    requests = access_log(server)
    requests.setLevel(logging.INFO if access else logging.WARNING)
    requests.propagate = False  # the line is JSON by itself, without time and level before it
    requests.addHandler(logging.StreamHandler())


def token_of(path: str | None) -> str:
    """The token of `--token-file`, else of SWE_SERVER_TOKEN. Raises UsageError for a file without one."""
    return read_token(path) if path else os.environ.get("SWE_SERVER_TOKEN", "").strip()


def read_token(path: str) -> str:
    """The token in a file. Raises UsageError where there is none."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"token file {path}: {error.strerror}") from None
    if not token:
        raise UsageError(f"token file {path} is empty")
    return token


def listen_host(asked: str, token: str, server: str) -> str:
    """The address to listen on. Raises UsageError where others could reach a server that has no token."""
    host = asked or ("0.0.0.0" if token else "127.0.0.1")
    if not token and not is_loopback(host):
        raise UsageError(
            f"--host {host}: without a token the {server} server binds to loopback only; set SWE_SERVER_TOKEN"
        )
    return host


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def stop_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT from now on, in place of what they would do."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    return stop


def parent_of(flags: argparse.Namespace) -> int | None:
    """With --exit-with-parent the pid of the parent, to be asked for early: one that ends meanwhile must be missed."""
    return None if flags.exit_with_parent is None else flags.exit_with_parent or os.getppid()


async def until_stopped(stop: asyncio.Event, parent: int | None) -> None:
    """Return when `stop` is set or the process `parent` is no longer this one's parent."""
    while not stop.is_set() and parent in (None, os.getppid()):
        with contextlib.suppress(asyncio.TimeoutError):
            await within(PARENT_SECONDS if parent is not None else LONG_SECONDS, stop.wait())


@dataclass(frozen=True)
class Listening:
    """A server that answers. `refuse_new` before the end lets answers under way leave and nothing else in."""

    server: asyncio.Server
    host: str
    port: int

    def refuse_new(self) -> None:
        self.server.close()


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, cancel_lost: bool = False
) -> AsyncIterator[Listening]:
    """Serve `app` until the context ends. cancel_lost: a handler ends when its caller hangs up.

    Raises UsageError where the address cannot be had.
    """
    runner = web.AppRunner(app, access_log=None, handler_cancellation=cancel_lost, shutdown_timeout=SHUTDOWN_SECONDS)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(runner.server, host, port, backlog=1024, start_serving=False)
            stack.callback(server.close)
            for listener in server.sockets:
                notice_vanished(listener)
            await server.start_serving()
        except OSError as error:
            raise UsageError(f"--host {host} --port {port}: {error.strerror or error}") from error
        yield Listening(server, host, server.sockets[0].getsockname()[1])


def notice_vanished(listener: socket.socket) -> None:
    """Look after callers that are quiet: one whose machine is gone says no goodbye, and what it holds must be freed.

    What is accepted takes these options over. Without them the system would ask after two hours.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def write_port_file(path: str | None, port: int) -> None:
    """Tell the port to whoever waits for it: the file is there whole or not at all."""
    if path:
        file = Path(path)
        temporary = file.with_name(file.name + ".tmp")
        temporary.write_text(str(port))
        temporary.replace(file)

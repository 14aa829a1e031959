"""`swe-rl exec-server`: flags, signals and the life of the process."""

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
from swe_rl.sandbox.container.limits import Limits
from swe_rl.sandbox.exec_server.answers import Answers, open_database
from swe_rl.sandbox.exec_server.app import make_app
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.settings import ExecSettings

DESCRIPTION = """HTTP server in front of this machine's container engine (Docker, or Podman through its compatible socket).
Containers are hardened: no network, no capabilities, bounded memory, cpus, processes and disk. Without a token it
listens on loopback only."""
EPILOG = """The token comes from the variable SWE_SERVER_TOKEN (or --token-file), never from a flag: command lines can be read by
every user of the machine. The engine is that of DOCKER_HOST, else /var/run/docker.sock."""
SHUTDOWN_SECONDS = 5.0  # that connections may still take once their commands have ended
SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")


def make_parser() -> argparse.ArgumentParser:
    home = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "swe-rl"
    default = ExecSettings("")
    bounds = Limits()
    parser = argparse.ArgumentParser(
        "swe-rl exec-server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="", help="address to listen on; default: 127.0.0.1, with a token 0.0.0.0")
    add("--port", type=int, default=5000, help="0 = a free one [5000]")
    add("--port-file", metavar="FILE", help="write the port there once it answers")
    add("--docker-host", default="", metavar="URL", help="the engine, unix:///path or tcp://host:port [DOCKER_HOST]")
    add("--database", default=str(home / "exec.sqlite3"), metavar="FILE", help="answers by key [%(default)s]")
    add("--token-file", metavar="FILE", help="file with the bearer token, in place of SWE_SERVER_TOKEN")
    add("--memory-mb", type=int, default=bounds.memory_mb, metavar="N", help="memory of a container [%(default)s]")
    add("--cpus", type=float, default=bounds.cpus, metavar="N", help="processors of a container [%(default)s]")
    add("--pids", type=int, default=bounds.pids, metavar="N", help="processes of a container [%(default)s]")
    add("--disk-mb", type=int, default=bounds.disk_mb, metavar="N", help="written layer of a container [%(default)s]")
    add("--shm-mb", type=int, default=bounds.shm_mb, metavar="N", help="/dev/shm of a container [%(default)s]")
    add("--allow-network", action="store_true", help="requests may ask for a network; without this none can")
    add("--capability", action="append", default=[], metavar="NAME", help="give this capability back; may be repeated")
    add("--no-pull", action="store_true", help="do not pull images that are missing")
    add("--pull-timeout", type=float, default=default.pull_timeout, metavar="S", help="seconds of a pull [%(default)s]")
    add("--registry-mirror", action="append", default=[], metavar="PREFIX", help="tried before docker.io; repeatable")
    add("--registry-config", default="", metavar="FILE", help="docker config.json with registry credentials")
    add("--pin", action="append", default=[], metavar="IMAGE", help="never evict this image; may be repeated")
    add("--disk-high", type=float, default=default.disk_high, metavar="F", help="fullness that evicts [%(default)s]")
    add("--disk-low", type=float, default=default.disk_low, metavar="F", help="fullness that is enough [%(default)s]")
    add("--max-age", type=float, default=default.max_age, metavar="S", help="remove older containers [%(default)s]")
    add("--watch-interval", type=float, default=default.watch_interval, metavar="S", help=argparse.SUPPRESS)
    add("--exit-with-parent", action="store_true", help="stop when the process that started this one ends")
    add("--access-log", action="store_true", help="one JSON line per request on stderr")
    return parser


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Raises UsageError for settings that cannot work."""
    flags = make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("swe_rl.exec.access").setLevel(logging.INFO if flags.access_log else logging.WARNING)
    settings = settings_of(flags, _token(flags.token_file))
    host = flags.host or ("0.0.0.0" if settings.token else "127.0.0.1")
    if not settings.token and not is_loopback(host):
        raise UsageError(f"--host {host}: without a token the exec server binds to loopback only; set SWE_SERVER_TOKEN")
    Path(settings.database).parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(settings, flags, host))
    return 0


def settings_of(flags: argparse.Namespace, token: str) -> ExecSettings:
    """Checked settings. Raises UsageError naming the flag."""
    for name in ("memory_mb", "cpus", "pids", "disk_mb", "shm_mb", "pull_timeout", "max_age", "watch_interval"):
        if not getattr(flags, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(flags, name)}: must be above 0")
    if flags.pids < 32:
        raise UsageError(f"--pids {flags.pids}: at least 32, the supervisor needs some itself")
    if not 0 < flags.disk_low <= flags.disk_high <= 1:
        raise UsageError("--disk-low and --disk-high: fractions with 0 < low <= high <= 1")
    return ExecSettings(
        database=flags.database,
        docker_host=docker_host(flags.docker_host),
        token=token,
        limits=Limits(flags.memory_mb, flags.cpus, flags.pids, flags.disk_mb, flags.shm_mb, flags.allow_network),
        capabilities=tuple(flags.capability),
        pull=not flags.no_pull,
        pull_timeout=flags.pull_timeout,
        mirrors=tuple(flags.registry_mirror),
        registry_config=flags.registry_config,
        pinned=tuple(flags.pin),
        disk_high=flags.disk_high,
        disk_low=flags.disk_low,
        max_age=flags.max_age,
        watch_interval=flags.watch_interval,
    )


def docker_host(given: str) -> str:
    """The engine's address: the flag, DOCKER_HOST, else the first socket that is there."""
    address = given or os.environ.get("DOCKER_HOST", "")
    if not address:
        found = next((path for path in SOCKETS if Path(path).is_socket()), "/var/run/docker.sock")
        return f"unix://{found}"
    if not address.startswith(("unix://", "tcp://", "http://", "https://")):
        raise UsageError(f"--docker-host {address!r}: unix:///path or tcp://host:port")
    return address


async def serve(settings: ExecSettings, flags: argparse.Namespace, host: str) -> None:
    """Start node and HTTP server, wait for a signal (or the parent's end), stop in order."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    db = open_database(settings.database)
    answers, node = Answers(db), Node(settings, db)
    await node.start()
    runner = web.AppRunner(make_app(node, answers), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        await runner.setup()
        site = web.TCPSite(runner, host, flags.port, backlog=1024)
        await site.start()
        port = runner.addresses[0][1]
        engine = node.engine_error or f"engine {node.info.get('ServerVersion')}"
        logging.info("exec server %s on http://%s:%d, %s", node.name, host, port, engine)
        if flags.port_file:
            _write_atomically(Path(flags.port_file), str(port))
        await _until_stopped(stop, os.getppid() if flags.exit_with_parent else None)
        await site.stop()  # no new connections; commands under way may still end
        await answers.drained(settings.drain_seconds)
    finally:
        await answers.aclose()
        await runner.cleanup()
        await node.stop()
        db.close()


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
        return os.environ.get("SWE_SERVER_TOKEN", "").strip()
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"token file {path}: {error.strerror}") from None
    if not token:
        raise UsageError(f"token file {path} is empty")
    return token


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)

"""`swe-rl exec-server`: flags, and the life of the process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path

from swe_rl.errors import UsageError
from swe_rl.sandbox.container.limits import LEAST, Limits
from swe_rl.sandbox.exec_server.serving import exec_server
from swe_rl.sandbox.exec_server.settings import ExecSettings
from swe_rl.sandbox.server import process

DESCRIPTION = """HTTP server in front of this machine's container engine (Docker, or Podman through its compatible socket).
Containers are hardened: no network, no capabilities, bounded memory, cpus, processes and disk. Without a token it
listens on loopback only."""
EPILOG = """The token comes from the variable SWE_SERVER_TOKEN (or --token-file), never from a flag: command lines can be read by
every user of the machine. The engine is that of DOCKER_HOST, else /var/run/docker.sock."""
SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")


def make_parser() -> argparse.ArgumentParser:
    default = ExecSettings("")
    bounds = Limits()
    parser = process.make_parser("exec-server", DESCRIPTION, EPILOG)
    process.add_server_flags(parser, port=5000, database="exec.sqlite3", keeps="answers by key")
    add = parser.add_argument
    add("--docker-host", default="", metavar="URL", help="the engine, unix:///path or tcp://host:port [DOCKER_HOST]")
    add("--memory-mb", type=int, default=bounds.memory_mb, metavar="N", help="memory of a container [%(default)s]")
    add("--cpus", type=float, default=bounds.cpus, metavar="N", help="processors of a container [%(default)s]")
    add("--pids", type=int, default=bounds.pids, metavar="N", help="processes of a container [%(default)s]")
    add("--disk-mb", type=int, default=bounds.disk_mb, metavar="N", help="written layer of a container [%(default)s]")
    add("--shm-mb", type=int, default=bounds.shm_mb, metavar="N", help="/dev/shm of a container [%(default)s]")
    add("--allow-network", action="store_true", help="requests may ask for a network; without this none can")
    add("--capability", action="append", default=[], metavar="NAME", help="give this capability back; may be repeated")
    add("--parallel", type=int, default=default.parallel, metavar="N", help="containers made at a time [%(default)s]")
    add("--script-supervisor", action="store_true", help="do not compile the supervisor: its slower script serves")
    add("--no-pull", action="store_true", help="do not pull images that are missing")
    add("--pull-timeout", type=float, default=default.pull_timeout, metavar="S", help="seconds of a pull [%(default)s]")
    add("--registry-mirror", action="append", default=[], metavar="PREFIX", help="tried before docker.io; repeatable")
    add("--registry-config", default="", metavar="FILE", help="docker config.json with registry credentials")
    add("--pin", action="append", default=[], metavar="IMAGE", help="never evict this image; may be repeated")
    add("--disk-high", type=float, default=default.disk_high, metavar="F", help="fullness that evicts [%(default)s]")
    add("--disk-low", type=float, default=default.disk_low, metavar="F", help="fullness that is enough [%(default)s]")
    add(
        "--max-age",
        type=float,
        default=default.max_age,
        metavar="S",
        help="remove unleased containers then [%(default)s]",
    )
    add("--watch-interval", type=float, default=default.watch_interval, metavar="S", help=argparse.SUPPRESS)
    return parser


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Raises UsageError for settings that cannot work."""
    flags = make_parser().parse_args(argv)
    parent = process.parent_of(flags)
    process.set_up_logging("exec", access=flags.access_log)
    settings = settings_of(flags, process.token_of(flags.token_file))
    host = process.listen_host(flags.host, settings.token, "exec")
    Path(settings.database).parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(settings, flags, host, parent))
    return 0


def settings_of(flags: argparse.Namespace, token: str) -> ExecSettings:
    """Checked settings. Raises UsageError naming the flag."""
    for name in ("parallel", "pull_timeout", "max_age", "watch_interval"):
        if not getattr(flags, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(flags, name)}: must be above 0")
    for name, least in LEAST.items():
        if not getattr(flags, name) >= least:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(flags, name)}: must be at least {least}")
    if not 0 < flags.disk_low <= flags.disk_high <= 1:
        raise UsageError("--disk-low and --disk-high: fractions with 0 < low <= high <= 1")
    return ExecSettings(
        database=flags.database,
        docker_host=docker_host(flags.docker_host),
        token=token,
        limits=Limits(flags.memory_mb, flags.cpus, flags.pids, flags.disk_mb, flags.shm_mb, flags.allow_network),
        capabilities=tuple(flags.capability),
        parallel=flags.parallel,
        compiled=not flags.script_supervisor,
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


async def serve(settings: ExecSettings, flags: argparse.Namespace, host: str, parent: int | None) -> None:
    """Start node and HTTP server, wait for a signal (or the parent's end), stop in order."""
    stop = process.stop_signals()
    async with exec_server(settings, host, flags.port) as server:
        node = server.node
        engine = node.engine_error or f"engine {node.info.get('ServerVersion')}"
        logging.info("exec server %s on http://%s:%d, %s", node.name, host, server.port, engine)
        process.write_port_file(flags.port_file, server.port)
        await process.until_stopped(stop, parent)
        await server.drain()

"""What an operator may set on an exec server, in one place with units."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_rl.sandbox.container.engine import PARALLEL
from swe_rl.sandbox.container.limits import Limits


@dataclass(frozen=True)
class ExecSettings:
    """Times are in seconds, sizes in MiB, fractions from 0 to 1."""

    database: str  # SQLite file of answers by key and of last uses of images
    docker_host: str = "unix:///var/run/docker.sock"
    token: str = ""  # bearer token that callers must show; "" = loopback only
    limits: Limits = field(default_factory=Limits)  # of every container; a request may ask for less
    capabilities: tuple[str, ...] = ()  # given back to containers after all were dropped
    parallel: int = PARALLEL  # containers made, started or removed at a time
    compiled: bool = True  # use the compiled supervisor where there is a C compiler, else its script
    pull: bool = True  # pull an image that is missing when a container is created
    pull_timeout: float = 3600.0
    mirrors: tuple[str, ...] = ()  # prefixes tried before docker.io
    registry_config: str = ""  # docker config.json with credentials
    pinned: tuple[str, ...] = ()  # images that are never evicted
    disk_high: float = 0.85  # evict images when the engine's disk is fuller than this ...
    disk_low: float = 0.75  # ... until it is emptier than this
    max_age: float = 86400.0  # since it first saw them, then containers without a lease are removed
    watch_interval: float = 20.0  # between two looks at disk, ages and the engine
    drain_seconds: float = 10.0  # that commands under way may still take after SIGTERM

"""Hardening of containers: what every container may use at most. A request may ask for less, never for more."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from swe_rl.sandbox.container.errors import LimitRefused

SUPERVISOR_FOLDER = "/run/swe-rl"
SUPERVISOR_PROGRAM = f"{SUPERVISOR_FOLDER}/supervisor"
MIB = 1024 * 1024
# Less is no limit at all to the engine (cpus), is refused by it (memory), or leaves the supervisor no room (pids).
LEAST = {"memory_mb": 6, "cpus": 0.01, "pids": 32, "disk_mb": 1, "shm_mb": 1}


@dataclass(frozen=True)
class Limits:
    """Upper bounds of one container. Sizes are in MiB."""

    memory_mb: int = 4096
    cpus: float = 2.0
    pids: int = 512
    disk_mb: int = 10240  # writable layer: a quota where the storage driver has one, else watched
    shm_mb: int = 256
    network: bool = False

    def narrowed(self, asked: dict[str, Any]) -> Limits:
        """These limits with what a request asks for. Raises LimitRefused for more than is allowed or a wrong value."""
        values: dict[str, Any] = {}
        for name, value in asked.items():
            if name not in {field.name for field in dataclasses.fields(self)}:
                known = ", ".join(field.name for field in dataclasses.fields(self))
                raise LimitRefused(f"limits.{name} is unknown; known: {known}")
            bound = getattr(self, name)
            if isinstance(bound, bool):
                if not isinstance(value, bool) or value > bound:
                    raise LimitRefused(f"limits.{name}={value!r}: this server allows {bound} (see --allow-network)")
            elif not _number(value) or not LEAST[name] <= value <= bound:
                raise LimitRefused(f"limits.{name}={value!r}: must be a number from {LEAST[name]} to {bound}")
            values[name] = value if isinstance(bound, bool) else type(bound)(value)
        return dataclasses.replace(self, **values)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def host_config(
    limits: Limits, *, disk_quota: bool, capabilities: tuple[str, ...] = (), program: str = ""
) -> dict[str, Any]:
    """The engine's HostConfig. No `Init`: PID 1 is our supervisor, which adopts and reaps orphans as an init does.

    program: the file of this machine that is the supervisor; "" where a script is.
    """
    config: dict[str, Any] = {
        "NetworkMode": "default" if limits.network else "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(capabilities),
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": limits.pids,
        "Memory": limits.memory_mb * MIB,
        "MemorySwap": limits.memory_mb * MIB,  # the same as Memory: no swap
        "NanoCpus": int(limits.cpus * 1e9),
        "ShmSize": limits.shm_mb * MIB,
        "Tmpfs": {SUPERVISOR_FOLDER: "rw,noexec,nosuid,nodev,size=64m,mode=1777"},
        "LogConfig": {"Type": "none"},
    }
    if program:
        config["Mounts"] = [{"Type": "bind", "Source": program, "Target": SUPERVISOR_PROGRAM, "ReadOnly": True}]
    if disk_quota:
        config["StorageOpt"] = {"size": f"{limits.disk_mb}m"}
    return config

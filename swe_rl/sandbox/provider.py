"""Which sandboxes a run uses: one place that turns `--sandbox` into a provider."""

from __future__ import annotations

import asyncio
import logging

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.errors import ConfigError, InfraError
from swe_rl.sandbox import bubblewrap
from swe_rl.sandbox.hardening import HardenedProvider
from swe_rl.sandbox.local_tools import ensure_tools_env
from swe_rl.sandbox.protocol import SandboxProvider

log = logging.getLogger(__name__)

CHOICES = ("docker", "podman", "bubblewrap", "process")  # the order of `auto`, strongest isolation first


async def open_provider(config: SandboxSettings) -> SandboxProvider:
    """The provider that `config.sandbox` names; `auto` takes the pool where one is set, else the first that works here.

    Raises ConfigError where the named one cannot be used on this machine; the message says why.
    """
    provider, notes = (
        await _first_usable(config) if config.sandbox == "auto" else (await _open(config.sandbox, config), [])
    )
    warning = getattr(provider, "warning", "")
    return HardenedProvider(provider, notes=[*notes, *([warning] if warning else [])])


async def _first_usable(config: SandboxSettings) -> tuple[SandboxProvider, list[str]]:
    """The provider, and why each stronger one was passed over."""
    if config.swe_env_server_url or config.swe_exec_server_urls:
        return await _open("pool", config), []
    reasons: list[str] = []
    for name in CHOICES:
        try:
            provider = await _open(name, config)
        except (ConfigError, InfraError) as error:
            reasons.append(f"{name} passed over: {error}")
            continue
        for reason in reasons:
            log.info("sandbox %s", reason)
        return provider, reasons
    raise ConfigError("sandbox: none can be used here. " + "; ".join(reasons))


async def _open(name: str, config: SandboxSettings) -> SandboxProvider:
    if name == "pool":
        from swe_rl.sandbox.pool import open_pool_provider

        return await open_pool_provider(config)
    if name in ("docker", "podman"):
        from swe_rl.sandbox.local_plane import open_local_plane

        return await open_local_plane(config, name)
    if name == "bubblewrap":
        if reason := bubblewrap.why_unusable():
            raise ConfigError(f"sandbox=bubblewrap cannot be used here: {reason}")
        return bubblewrap.BubblewrapProvider(config, await asyncio.to_thread(ensure_tools_env))
    from swe_rl.sandbox.process import ProcessProvider

    return ProcessProvider(config, await asyncio.to_thread(ensure_tools_env))

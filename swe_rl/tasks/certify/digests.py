"""The digest of the image a task was certified with, asked of what holds the images: exec servers or a local engine."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.tasks.images import with_registry

log = logging.getLogger(__name__)

_SECONDS = 20.0


def digest_in(rows: list[dict[str, Any]], image: str) -> str:
    """`repository@sha256:...` of `image` in the `details` of `/images`; its id (`sha256:...`) where it was never pulled."""
    name = image if ":" in image.rsplit("/", 1)[-1] or "@" in image else f"{image}:latest"
    name = name.removeprefix("docker.io/")
    for row in rows:
        if name in {short.removeprefix("docker.io/") for short in (*row.get("tags", ()), *row.get("digests", ()))}:
            repository = name.split("@")[0] if "@" in name else name.rpartition(":")[0]
            digests = [d for d in row.get("digests", ()) if d.split("@")[0].removeprefix("docker.io/") == repository]
            return str((digests or row.get("digests") or [row.get("id", "")])[0])
    return ""


async def image_digest(config: SandboxSettings, provider_name: str, image: str) -> str:
    """The digest of `image`, or "" where nothing knows it (local sandboxes have no images)."""
    if not image or provider_name not in ("pool", "docker", "podman"):
        return ""
    image = with_registry(image, config.swe_docker_registry)
    try:
        if provider_name == "pool":
            return await _from_exec_servers(config, image)
        return await _from_engine(provider_name, image)
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError, KeyError) as error:
        log.warning("digest of %s not found: %s", image, error)
        return ""


async def _from_exec_servers(config: SandboxSettings, image: str) -> str:
    headers = {"Authorization": f"Bearer {config.swe_server_token}"} if config.swe_server_token else {}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        for url in config.swe_exec_server_urls or await _nodes(session, config.swe_env_server_url):
            async with session.get(f"{url.rstrip('/')}/images") as response:
                response.raise_for_status()
                found = digest_in((await response.json())["details"], image)
            if found:
                return found
    return ""


async def _nodes(session: aiohttp.ClientSession, pool: str) -> list[str]:
    """The exec servers that a pool server knows."""
    async with session.get(f"{pool.rstrip('/')}/status") as response:
        response.raise_for_status()
        return [str(node["url"]) for node in (await response.json())["nodes"]]


async def _from_engine(name: str, image: str) -> str:
    from swe_rl.sandbox.local_plane import find_engine

    url = await find_engine(name)
    if url is None:
        return ""
    connector = aiohttp.UnixConnector(path=url.removeprefix("unix://")) if url.startswith("unix://") else None
    base = "http://engine" if connector else url.replace("tcp://", "http://")
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.get(f"{base}/images/json") as response,
    ):
        response.raise_for_status()
        images = await response.json()
    rows = [{"tags": i.get("RepoTags") or [], "digests": i.get("RepoDigests") or [], "id": i["Id"]} for i in images]
    return digest_in(rows, image)

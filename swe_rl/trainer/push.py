"""New weights to the engines, over the client that rollouts use too."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from swe_rl.engine.client import EngineClient


def push_tensors(
    weights: dict[str, torch.Tensor],
    engine_urls: Sequence[str],
    version: int,
    timeout: float,
    *,
    tensor_parallel: int = 1,
) -> None:
    """Send the weights of `version` to every engine, in buckets of bounded size. Raises EngineError naming the engine.

    tensor_parallel: processes of one engine, each of which reads its own copy.
    """
    asyncio.run(_push(engine_urls, timeout, version, weights=weights, tensor_parallel=tensor_parallel))


def push_folder(folder: Path, engine_urls: Sequence[str], version: int, timeout: float) -> None:
    """Tell every engine to load the Hugging Face folder, which all of them must see."""
    asyncio.run(_push(engine_urls, timeout, version, folder=folder))


def remove_leftovers(root: Path) -> None:
    """Remove the weights that pushes of a killed run left in its folder `root`, whole or half-written."""
    for path in root.glob("*weights_*"):
        if re.fullmatch(r"(\.partial-)?weights_\d{6,}", path.name):
            shutil.rmtree(path, ignore_errors=True)


async def _push(
    engine_urls: Sequence[str],
    timeout: float,
    version: int,
    *,
    weights: dict[str, torch.Tensor] | None = None,
    folder: Path | None = None,
    tensor_parallel: int = 1,
) -> None:
    client = EngineClient(
        list(engine_urls), request_timeout=timeout, control_timeout=timeout, tensor_parallel=tensor_parallel
    )
    try:
        if folder is not None:
            await client.update_weights_from_disk(str(folder), version)
        else:
            await client.update_weights_from_tensor((weights or {}).items(), version)
    finally:
        await client.aclose()

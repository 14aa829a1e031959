"""Wait for a condition within a bound; which sandboxes are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return when `condition()` is true; AssertionError after `seconds`."""
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not come true")


def boxes(tmp_path: Path) -> list[str]:
    """Names of the local sandboxes that exist below the tests' root."""
    return [path.name for path in (tmp_path / "sandboxes" / "boxes").glob("*-*") if "-etc-" not in path.name]

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


def boxes(root: Path) -> list[Path]:
    """Folders of the local sandboxes that exist below `sandbox_root` (the files of /etc that they share are there too)."""
    return [path for path in (root / "boxes").glob("*-*") if "-etc-" not in path.name]

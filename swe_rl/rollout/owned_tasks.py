"""Owning asyncio tasks: whatever ends a group of them, none is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and wait until every one of them has cleaned up; their outcomes are dropped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_owned(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first exception, or cancellation of the caller, ends all the others before it is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancel_all(task for task in tasks if not task.done())

"""Owning asyncio tasks: whatever ends a group of them, none is left running, and none is disturbed while it cleans up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and wait until every one of them has cleaned up; their outcomes are dropped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_owned(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first exception, or cancellation of the caller, ends all the others before it is raised.

    Each is cancelled once. (`asyncio.gather` returns at the first child that ends; cancelling the rest in a `finally`
    would then cancel them a second time, in the middle of closing their sandboxes.)
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await cancel_all(task for task in tasks if not task.done())
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]


async def within(
    seconds: float, coroutine: Coroutine[Any, Any, T], release: Callable[[T], Awaitable[object]] | None = None
) -> T:
    """What `coroutine` obtains (a sandbox, a container, a connection) in at most `seconds`; TimeoutError after that.

    Where the time is over or the caller is cancelled it is cancelled once, and what it brought all the same is given to
    `release` (None: it holds nothing). (`asyncio.wait_for` before Python 3.12 loses the result or the cancellation when
    both come in one moment.)
    """
    task = asyncio.ensure_future(coroutine)
    try:
        if (await asyncio.wait({task}, timeout=max(0.0, seconds)))[0]:
            return task.result()
        raise asyncio.TimeoutError
    except BaseException:
        task.cancel()
        await uninterrupted(_released(task, release))
        raise


async def _released(task: asyncio.Task[T], release: Callable[[T], Awaitable[object]] | None) -> None:
    await asyncio.wait({task})
    if release is not None and not task.cancelled() and task.exception() is None:
        await release(task.result())


async def uninterrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Finish `coroutine` (which must bound itself) even where the caller is cancelled meanwhile, then pass that on."""
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # raised below
    if cancelled is not None:
        raise cancelled
    return task.result()

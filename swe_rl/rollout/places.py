"""How many attempts are at work at once, whoever calls `generate`: no more than the settings allow and the sandboxes can hold.

Whoever waits here waits before the clock of its attempt starts; one that waited for a sandbox instead would lose its time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar

_whole: ContextVar[bool] = ContextVar("whole_attempt", default=False)


def in_whole_attempt() -> bool:
    """Whether the caller runs inside `Places.attempt`: it holds a place, and it keeps the attempt's record itself."""
    return _whole.get()


class Places:
    """Places for attempts, in the order in which they came.

    at_once: attempts (`swe_max_concurrent`); the attribute says how many it came to. capacity: sandboxes that the provider can
    hold; None where that is not known.
    """

    def __init__(self, at_once: int, capacity: int | None = None) -> None:
        sandboxes = capacity or 2 * at_once
        gradings = max(1, sandboxes // 3 if capacity else at_once)
        self.at_once = min(at_once, sandboxes)
        self._attempts = asyncio.Semaphore(self.at_once)
        self._gradings = asyncio.Semaphore(min(at_once, gradings))
        self._agents = asyncio.Semaphore(min(at_once, max(1, sandboxes - gradings)))

    @contextlib.asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """For an attempt up to its verdict. One sandbox is enough: the agent's is closed before the grader's is opened."""
        async with self._attempts:
            token = _whole.set(True)
            try:
                yield
            finally:
                _whole.reset(token)

    def agent(self) -> contextlib.AbstractAsyncContextManager[object]:
        """For the agent alone, where another trainer asks for the verdict when it likes."""
        return contextlib.nullcontext() if in_whole_attempt() else self._agents

    def grading(self) -> contextlib.AbstractAsyncContextManager[object]:
        """For a grading alone. It has places of its own: its attempt's clock runs, so it must not wait for whole agents."""
        return contextlib.nullcontext() if in_whole_attempt() else self._gradings

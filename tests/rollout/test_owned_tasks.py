"""No task outlives its owner, and cleaning up is not disturbed."""

from __future__ import annotations

import asyncio

import pytest

from swe_rl.rollout.owned_tasks import gather_owned, uninterrupted


class Attempt:
    """Runs for `seconds`, then needs a while to clean up."""

    def __init__(self, seconds: float = 60.0, error: Exception | None = None) -> None:
        self.seconds, self.error, self.state = seconds, error, "new"

    async def run(self):
        self.state = "running"
        try:
            await asyncio.sleep(self.seconds)
            if self.error:
                raise self.error
            return self.seconds
        finally:
            self.state = "cleaning"
            await asyncio.sleep(0.01 * (1 + self.seconds % 7))
            self.state = "clean"


async def test_results_in_order():
    assert await gather_owned(Attempt(seconds).run() for seconds in (0.02, 0.0, 0.01)) == [0.02, 0.0, 0.01]
    assert await gather_owned([]) == []


async def test_an_exception_ends_the_others_after_they_cleaned_up():
    attempts = [Attempt(60), Attempt(0.01, KeyError("x")), Attempt(61), Attempt(62)]
    with pytest.raises(KeyError):
        await gather_owned(attempt.run() for attempt in attempts)
    assert [attempt.state for attempt in attempts] == ["clean"] * 4


async def test_cancellation_lets_each_one_clean_up():
    attempts = [Attempt(60 + i) for i in range(5)]
    job = asyncio.ensure_future(gather_owned(attempt.run() for attempt in attempts))
    await asyncio.sleep(0.01)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert [attempt.state for attempt in attempts] == ["clean"] * 5


async def test_uninterrupted():
    done = []

    async def close():
        await asyncio.sleep(0.05)
        done.append(True)

    job = asyncio.ensure_future(uninterrupted(close()))
    for _ in range(3):
        await asyncio.sleep(0.005)
        job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert done == [True]
    with pytest.raises(ZeroDivisionError):
        await uninterrupted(divide())


async def divide():
    return 1 / 0

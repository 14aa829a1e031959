"""No task outlives its owner, and cleaning up is not disturbed."""

from __future__ import annotations

import asyncio

import pytest

from swe_rl.owned_tasks import gather_owned, uninterrupted, within


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


class Shop:
    """Hands out one thing after a while; knows whether it came back."""

    def __init__(self) -> None:
        self.returned: list[str] = []

    async def thing(self, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "thing"

    async def stubborn(self) -> str:
        """Brings the thing although it was cancelled, as `asyncio.wait_for` does where both come in one moment."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "thing"

    async def take_back(self, thing: str) -> None:
        await asyncio.sleep(0.01)
        self.returned.append(thing)


async def test_within_brings_the_thing_or_its_error():
    shop = Shop()
    assert await within(5.0, shop.thing(), shop.take_back) == "thing"
    with pytest.raises(KeyError):
        await within(5.0, Attempt(0.0, KeyError("x")).run(), shop.take_back)
    assert shop.returned == []


async def test_what_comes_after_the_time_is_released():
    shop = Shop()
    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, shop.stubborn(), shop.take_back)
    assert shop.returned == ["thing"]
    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, shop.thing(60), shop.take_back)  # it never came
    assert shop.returned == ["thing"]


@pytest.mark.parametrize("steps", range(1, 9))
async def test_cancelled_in_whatever_moment_nothing_is_lost_and_the_cancellation_stands(steps):
    """From its first step to the moment in which it is done: a caller that is told of its end holds nothing."""
    shop = Shop()
    job = asyncio.ensure_future(within(5.0, shop.thing(), shop.take_back))
    for _ in range(steps):
        await asyncio.sleep(0)
    job.cancel()
    try:
        assert await job == "thing" and shop.returned == []  # it was there already
    except asyncio.CancelledError:
        assert shop.returned in ([], ["thing"])
    job = asyncio.ensure_future(within(5.0, shop.stubborn(), shop.take_back))
    await asyncio.sleep(0.01)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert shop.returned[-1] == "thing"

"""All that a command printed is in its answer: whatever its size and bytes, and whoever else holds the output."""

from __future__ import annotations

import asyncio

import pytest

from tests.exec_server.conftest import Box

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", params=["compiled", "script"])
def supervisor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


LINES = "".join(f"line {number}\n" for number in range(1, 101))


async def test_a_daemon_holds_back_nothing_of_a_long_output(box: Box) -> None:
    daemon = "setsid -f sleep 1008; for line in {1..100}; do echo line $line; done"
    answer = await asyncio.wait_for(box.run(daemon, timeout=100), 30)
    assert answer["output"] == LINES
    assert (await box.run("echo next"))["output"] == "next\n"


async def test_a_daemon_that_prints_without_end_does_not_hold_the_answer(box: Box) -> None:
    start = "setsid -f bash -c 'echo $$ > pid; exec yes'; until [ -s pid ]; do sleep 0.05; done"
    printed = "$(sed -n 's/^wchar: //p' /proc/$(<pid)/io)"
    flooded = f"until (({printed} > 2000000)); do sleep 0.05; done"  # more than an answer holds
    answer = await asyncio.wait_for(box.run(f"{start}; {flooded}", timeout=100), 120)
    assert answer["returncode"] == 0 and answer["truncated"]
    assert (await box.run("echo next"))["output"] == "next\n"


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 5000])
async def test_every_size_comes_whole(box: Box, size: int) -> None:
    assert (await box.run(f"printf '%{size}s' ''" if size else ":"))["output"] == " " * size
    zeros = await box.run(f"printf ab; head -c {size} /dev/zero; printf c")
    assert zeros["output"] == "ab" + "\0" * size + "c"


async def test_what_the_command_takes_away_comes_back(box: Box) -> None:
    await box.run("rm -rf /run/swe-rl/*")
    answer = await box.run("for line in {1..100}; do echo line $line; done")
    assert answer["output"] == LINES

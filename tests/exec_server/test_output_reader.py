"""The script takes in output with a process of its own: whatever becomes of that, what a command printed is in its answer."""

from __future__ import annotations

import pytest

from tests.exec_server.conftest import Box
from tests.exec_server.test_output import LINES

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def supervisor() -> str:
    return "script"


# Sets `reader` to the process that takes in the output of a command once it has printed a little.
PRINT_AND_FIND_READER = """
for line in {1..100}; do echo "line $line"; done
while [[ ! ${reader-} ]]; do
    for folder in /proc/[0-9]*; do
        read -r name <$folder/comm && [[ $name == cat ]] && reader=${folder#/proc/}
    done
done 2>/dev/null
"""


async def test_a_reader_without_processor_time_loses_nothing(box: Box) -> None:
    freeze = "kill -STOP $reader; setsid -f bash -c 'sleep 1.5; kill -CONT $1' - $reader >/dev/null 2>&1; sleep 0.5; "
    answer = await box.run(PRINT_AND_FIND_READER + freeze + "echo end")
    assert (answer["returncode"], answer["output"]) == (0, LINES + "end\n")


async def test_a_reader_that_the_command_kills_is_replaced(box: Box) -> None:
    # What it reads before it is gone dies with it: so it is killed when it has written, and is gone before more comes.
    kill = """
        until grep -q 'line 100' /run/swe-rl/head; do sleep 0.05; done
        kill -KILL $reader; while kill -0 $reader; do sleep 0.05; done 2>/dev/null; echo end
    """
    answer = await box.run(PRINT_AND_FIND_READER + kill)
    assert (answer["returncode"], answer["output"]) == (0, LINES + "end\n")

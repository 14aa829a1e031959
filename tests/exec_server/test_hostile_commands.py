"""Exec always returns: each hostile command against a real engine. Afterwards the container works as before."""

from __future__ import annotations

import asyncio

import pytest

from swe_rl.sandbox.container.limits import SUPERVISOR_PROGRAM
from tests.exec_server.conftest import Box

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", params=["compiled", "script"])
def supervisor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def works(box: Box) -> bool:
    answer = await box.run("echo still; pwd")
    return answer["output"] == "still\n/testbed\n" and answer["returncode"] == 0


async def test_the_supervisor_is_the_one_meant(box: Box, supervisor: str) -> None:
    first = (await box.run("tr '\\0' '\\n' </proc/1/cmdline | head -1"))["output"]
    assert first == ("bash\n" if supervisor == "script" else f"{SUPERVISOR_PROGRAM}\n"), "is there a C compiler?"


async def test_start_up_files_that_end_at_the_first_failure(box: Box) -> None:
    await box.run("echo 'set -e' >> ~/.bash_profile")
    answer = await box.run("echo out; false; echo not reached")
    assert (answer["returncode"], answer["output"]) == (1, "out\n"), "the image's shells do so too"
    assert await works(box)


async def test_start_up_files_changed_in_the_moment_of_their_copy(box: Box) -> None:
    """A file's time has the grain of the clock's ticks: one as old as the copy may have been changed after it."""
    copy = "/run/swe-rl/login"
    await box.run(f"echo 'export LATE=yes' >> ~/.bash_profile; touch -r {copy} ~/.bash_profile")
    assert (await box.run("echo $LATE"))["output"] == "yes\n"
    times = [(await box.run(f"stat -c %y {copy}"))["output"] for _ in range(2)]
    assert times[0] == times[1], "and it is not taken again for every command"


async def test_stdin_is_closed(box: Box) -> None:
    answer = await box.run("cat; read x || echo eof")
    assert (answer["returncode"], answer["output"]) == (0, "eof\n")


async def test_deadline_kills_the_whole_session(box: Box) -> None:
    answer = await box.run("echo before; (set -m; sleep 1001 & sleep 1002 & wait)", timeout=1)
    assert (answer["returncode"], answer["timed_out"], answer["output"]) == (124, True, "before\n")
    await box.ended()
    assert await works(box)


async def test_deadline_reaches_what_left_the_session(box: Box) -> None:
    await box.run("setsid sleep 1003 & sleep 1004", timeout=1)
    await box.ended()


async def test_background_children_do_not_hold_the_answer(box: Box) -> None:
    answer = await asyncio.wait_for(box.run("sleep 1005 & echo started", timeout=100), 30)
    assert (answer["returncode"], answer["output"], answer["timed_out"]) == (0, "started\n", False)
    await box.ended()


async def test_daemon_that_keeps_the_output_open_does_not_hold_the_answer(box: Box) -> None:
    start = "setsid -f bash -c 'echo in; touch said; sleep 1006'; until [ -e said ]; do sleep 0.05; done; echo out"
    answer = await asyncio.wait_for(box.run(start, timeout=100), 30)
    assert sorted(answer["output"].split()) == ["in", "out"]
    assert len(await box.processes()) >= 1, "a daemon in a session of its own may go on"
    assert await works(box)


BOMBED = (124, 254)  # the deadline's, or bash's own once it has tried in vain to fork


async def test_fork_bomb(box: Box) -> None:
    answer = await box.run("bomb() { bomb | bomb & }; bomb; sleep 60", timeout=2)
    assert answer["returncode"] in BOMBED
    assert await works(box)
    await box.ended()


async def test_fork_bomb_of_sessions(box: Box) -> None:
    bomb = 'f() { setsid -f bash -c "$(declare -f f); f" & f; }; f'
    answer = await box.run(bomb, timeout=2)
    assert answer["returncode"] in BOMBED
    assert await works(box)


async def test_processes_left_by_finished_commands_do_not_starve_the_next(box: Box) -> None:
    for _ in range(4):
        await box.run("for i in {1..25}; do setsid -f sleep 1007; done")
    assert await works(box)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_ten_gigabytes_of_output(box: Box) -> None:
    answer = await box.run("echo first; head -c 10G /dev/zero; echo; echo last", timeout=900)
    assert (answer["returncode"], answer["truncated"]) == (0, True)
    assert len(answer["output"]) < 1_100_000
    assert answer["output"].startswith("first\n") and answer["output"].endswith("\nlast\n")
    dropped = int(answer["output"].split("[... ")[1].split()[0])
    assert dropped == answer["dropped_bytes"]
    assert 9.9e9 < dropped < 10 * 2**30
    assert await works(box)


async def test_endless_output_is_cut_at_the_deadline(box: Box) -> None:
    answer = await box.run("yes", timeout=2, output_limit=1000)
    assert (answer["returncode"], answer["truncated"]) == (124, True)
    assert len(answer["output"]) < 1200 and answer["output"].startswith("y\n") and answer["output"].endswith("y\n")


@pytest.mark.parametrize("size", [999_999, 1_000_000])
async def test_output_up_to_the_limit_is_whole(box: Box, size: int) -> None:
    answer = await box.run(f"head -c {size} /dev/zero | tr '\\0' x")
    assert (answer["output"], answer["truncated"]) == ("x" * size, False)


async def test_output_just_over_the_limit_says_the_cut(box: Box) -> None:
    answer = await box.run("head -c 1000100 /dev/zero | tr '\\0' x")
    assert answer["truncated"] and "bytes of output left out" in answer["output"]
    assert len(answer["output"]) < 1_000_100 + 100
    assert answer["output"].count("x") + answer["dropped_bytes"] == 1_000_100


async def test_kill_everything(box: Box) -> None:
    answer = await box.run("kill -9 -1; touch survived", timeout=20)
    assert answer["returncode"] == 0
    assert (await box.run("test -e survived"))["returncode"] == 0


async def test_killing_the_supervisor(box: Box) -> None:
    answer = await box.run("kill -9 $PPID; for n in {1..64}; do kill -$n 1; done 2>/dev/null; echo tried")
    assert answer["output"] == "tried\n"
    assert await works(box)


async def test_killing_itself(box: Box) -> None:
    assert (await box.run("echo a; kill -9 $$; echo b"))["returncode"] == 137
    assert await works(box)


async def test_closing_its_output(box: Box) -> None:
    answer = await box.run("echo seen; exec >/dev/null 2>&1; echo lost")
    assert (answer["returncode"], answer["output"]) == (0, "seen\n")


async def test_output_that_looks_like_an_answer(box: Box) -> None:
    forged = "done 0 0 0 0 5 0 5\\nready x\\n"
    answer = await box.run(f"printf '{forged}'; exit 7")
    assert (answer["returncode"], answer["output"]) == (7, "done 0 0 0 0 5 0 5\nready x\n")


async def test_invalid_utf8_and_every_byte(box: Box) -> None:
    answer = await box.run("printf 'a\\xff\\xfe\\0b\\x01\\x7f\\xc3'")
    assert answer["output"] == "a��\0b\x01\x7f�"
    every = await box.run("python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)'")
    assert every["output"] == (bytes(range(256)) * 300).decode("utf-8", "replace")


async def test_two_megabyte_command(box: Box) -> None:
    text = "é" * 1_000_000
    answer = await box.run(f"cat <<'END' | wc -c\n{text}\nEND")
    assert answer["output"].strip() == "2000001"


async def test_short_commands_keep_their_bytes(box: Box) -> None:
    command = "printf '%s' 'tab\there \\ back  two  ünïcode ' | od -An -c | tr -d ' \\n'"
    assert "\\t" in (await box.run(command))["output"]

"""The red-team suite: every attempt of `attacks.py` gets the verdict it must get, on both kinds of tasks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swe_rl.config import Config
from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.grading.cache import VerdictCache
from swe_rl.grading.grader import grade_patch
from swe_rl.sandbox.container import native
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.provider import open_provider
from swe_rl.types import Verdict
from tests.grading.attacks import ATTACKS, Attack
from tests.grading.lab import EVAL_SCRIPT, Lab

# These and every fourth of the others are in the fast suite, on the two kinds of tasks in turn; a grading takes half a second.
ALWAYS = {
    "fix", "fix without the last newline", "fix with CRLF line ends", "forged session, then os._exit(0)", "path outside",
    "TestReport says passed", "test file rewritten and put back", "conftest with hooks", "only tests, strict", "empty",
    "the grader's shell leaves with 0", "flood behind the grader's end", "skip and forged passes, runner",
}  # fmt: skip


def kind_of(number: int, attack: Attack) -> str:
    """On which kind of task the attack is tried where one kind must do."""
    return ("junit", "script")[number % 2] if attack.task == "both" else attack.task


def _fast(number: int, attack: Attack, kind: str) -> bool:
    quick = attack.name in ALWAYS or (number % 4 == 0 and attack.tests_seconds is None)
    return quick and kind == kind_of(number, attack)


CASES = [
    pytest.param(attack, kind, id=f"{kind}: {attack.name}", marks=[] if _fast(n, attack, kind) else pytest.mark.slow)
    for n, attack in enumerate(ATTACKS)
    for kind in ("junit", "script", "runner")
    if attack.task == kind or (attack.task == "both" and kind != "runner")
]


def test_the_suite_is_large_and_has_no_double():
    assert len(ATTACKS) >= 40
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.name for attack in ATTACKS} > ALWAYS


async def attempt(attack: Attack, kind: str, lab: Lab, provider: SandboxProvider) -> str:
    """Grade one attack; returns what was wrong with the verdict, or nothing."""
    task = {"junit": lab.task, "script": lab.script_task, "runner": lab.runner_task}[kind]
    result = await grade_patch(
        task,
        attack.patch(lab),
        provider,
        GradingSettings(**attack.settings),
        Deadline(60.0 + (attack.tests_seconds or 0.0)),
        cache=VerdictCache(),
        tests_seconds=attack.tests_seconds,
    )
    if result.verdict is attack.verdict and "FOUND" not in result.output.split():
        return ""
    return f"{kind}: {attack.name}: {result.verdict} for {attack.verdict}: {result.detail}\n{result.output[-3000:]}"


@pytest.mark.parametrize(("attack", "kind"), CASES)
async def test_verdict(attack: Attack, kind: str, lab, bubblewrap):
    assert await attempt(attack, kind, lab, bubblewrap) == ""


async def test_an_exit_code_of_zero_needs_a_test_that_passed(grade, lab):
    script = EVAL_SCRIPT.replace(" tests/test_shout.py", "")
    task = replace(lab.script_task, log_parser="exit_code", fail_to_pass=[], pass_to_pass=[], eval_script=script)
    assert (await grade(task, lab.task.patch.encode())).verdict is Verdict.RESOLVED
    skips = "import pytest\ntotal = largest = halve = lambda x: pytest.skip('x')\n"
    skipped = await grade(task, lab.files({"calc.py": skips}))
    assert (skipped.verdict, skipped.returncode) == (Verdict.UNRESOLVED, 0), skipped.output


@pytest.mark.docker
@pytest.mark.timeout(900)
async def test_the_same_verdicts_in_containers(lab, engine, monkeypatch):
    """Every attack once through pool and exec server of a real Docker Engine, a few at a time.

    The graders are the same code as in the tests above; what differs is the box. So the two kinds of tasks take turns.
    """
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    provider = await open_provider(Config(sandbox="docker"))
    places = asyncio.Semaphore(4)

    async def one(number: int, attack: Attack) -> str:
        async with places:
            return await attempt(attack, kind_of(number, attack), lab, provider)

    # Where no compiler is, a script is PID 1, and root in a container can trace it.
    tried = [
        pair for pair in enumerate(ATTACKS) if native.build() or pair[1].name != "the sandbox's first process leaves"
    ]
    try:
        wrong = [text for text in await asyncio.gather(*(one(*pair) for pair in tried)) if text]
    finally:
        await provider.aclose()
    assert not wrong, "\n\n".join(wrong)

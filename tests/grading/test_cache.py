"""Equal patches share a grading, only where that is certain to be right."""

from __future__ import annotations

import asyncio
import io
import tarfile
from dataclasses import replace

import pytest

from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError, SandboxUnavailable
from swe_rl.grading.cache import CERTAIN, VerdictCache, cache_key
from swe_rl.grading.grader import grade_patch
from swe_rl.grading.verdict import GradeResult
from swe_rl.types import ExecResult, Verdict
from tests.grading.lab import FIXED


def grading(verdict, calls, seconds=0.02):
    async def grade():
        calls.append(verdict)
        await asyncio.sleep(seconds)
        return GradeResult(verdict, {"n": len(calls)}, seconds={"total": 1.0})

    return grade


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_only_certain_verdicts_are_remembered(verdict):
    cache, calls = VerdictCache(), []
    first = await cache.get("k", grading(verdict, calls), Deadline(5))
    second = await cache.get("k", grading(verdict, calls), Deadline(5))
    assert len(calls) == (1 if verdict in CERTAIN else 2)
    if verdict in CERTAIN:
        assert (
            second.verdict is first.verdict
            and second.detail["cached"] == "remembered"
            and second.seconds == {"total": 0.0}
        )
    assert {Verdict.INFRA_ERROR, Verdict.TEST_TIMEOUT}.isdisjoint(CERTAIN)


async def test_equal_gradings_at_one_time_are_one():
    cache, calls = VerdictCache(), []
    results = await asyncio.gather(*(cache.get("k", grading(Verdict.RESOLVED, calls), Deadline(5)) for _ in range(8)))
    assert len(calls) == 1 and {result.verdict for result in results} == {Verdict.RESOLVED}
    assert cache.metrics() == {"graded": 1, "remembered": 0, "shared": 7, "cache_share": 7 / 8}


async def test_tests_that_ran_out_of_time_are_believed_by_those_that_waited():
    """Equal patches of a group that hang must not end as test_timeout for the first and infra_error for the others."""
    cache, calls = VerdictCache(), []
    gradings = (cache.get("k", grading(Verdict.TEST_TIMEOUT, calls, 0.2), Deadline(5)) for _ in range(3))
    results = await asyncio.gather(*gradings)
    assert len(calls) == 1 and {result.verdict for result in results} == {Verdict.TEST_TIMEOUT}


async def test_an_uncertain_shared_grading_is_done_again():
    cache, calls = VerdictCache(), []
    results = await asyncio.gather(
        *(cache.get("k", grading(Verdict.INFRA_ERROR, calls), Deadline(5)) for _ in range(3))
    )
    assert len(calls) == 3 and all("cached" not in result.detail for result in results)


async def test_a_cancelled_attempt_does_not_end_anothers_grading():
    cache, calls = VerdictCache(), []
    began, release = asyncio.Event(), asyncio.Event()

    async def held():
        began.set()
        await release.wait()
        return await grading(Verdict.RESOLVED, calls)()

    first = asyncio.ensure_future(cache.get("k", held, Deadline(60)))
    await began.wait()
    second = asyncio.ensure_future(cache.get("k", grading(Verdict.RESOLVED, calls), Deadline(60)))
    await asyncio.sleep(0)  # it waits for the first one's grading now
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    assert (await second).verdict is Verdict.RESOLVED and len(calls) == 1


async def test_a_late_grading_is_not_waited_for():
    cache, calls = VerdictCache(), []
    slow = asyncio.ensure_future(cache.get("k", grading(Verdict.RESOLVED, calls, 300.0), Deadline(600)))
    await asyncio.sleep(0)
    assert (await cache.get("k", grading(Verdict.UNRESOLVED, calls), Deadline(0.1))).verdict is Verdict.UNRESOLVED
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    assert cache._running == {} and cache._waiting == {}


async def test_capacity_is_bounded():
    cache, calls = VerdictCache(capacity=2), []
    for key in "abcab":
        await cache.get(key, grading(Verdict.RESOLVED, calls, 0), Deadline(5))
    assert len(calls) == 5


def test_the_key_holds_all_that_a_verdict_depends_on(lab):
    task = lab.task
    others = [
        replace(task, test_patch=task.test_patch + "\n"), replace(task, fail_to_pass=task.fail_to_pass[1:]),
        replace(task, eval_script="x"), replace(task, image="y"), replace(task, base_commit="z"), replace(task, env={}),
    ]  # fmt: skip
    keys = [cache_key(t, b"p", "bubblewrap") for t in (task, *others)]
    keys += [cache_key(task, b"q", "bubblewrap"), cache_key(task, b"p", "docker")]
    assert len(set(keys)) == len(keys)


class Broken:
    """A provider whose sandboxes cannot be had, or are lost on first use."""

    name = "broken"

    def __init__(self, error):
        self.error, self.opened, self.closed = error, 0, 0

    async def open(self, task, *, deadline, purpose):
        assert purpose == "grade"
        self.opened += 1
        if isinstance(self.error, SandboxUnavailable):
            raise self.error
        return self

    workdir = "/testbed"

    async def upload(self, path, data, *, mode=0o644):
        raise self.error

    async def exec(self, command, *, timeout):
        raise self.error

    async def close(self):
        self.closed += 1


@pytest.mark.parametrize("error", [SandboxUnavailable("pool full"), SandboxError("node down")])
async def test_our_own_faults_are_infra_errors_tried_twice_and_not_remembered(error, lab):
    provider, cache = Broken(error), VerdictCache()
    patch = lab.files({"calc.py": FIXED})
    for round_ in (1, 2):
        result = await grade_patch(lab.task, patch, provider, GradingSettings(), Deadline(30), cache=cache)
        assert result.verdict is Verdict.INFRA_ERROR
        assert result.detail["kind"] == type(error).__name__ and result.detail["reason"] == str(error)
        assert provider.opened == 2 * round_
    assert provider.closed == (0 if isinstance(error, SandboxUnavailable) else 4)


async def test_an_expired_deadline_is_no_verdict_about_the_patch(lab):
    result = await grade_patch(
        lab.task,
        lab.files({"calc.py": FIXED}),
        Broken(SandboxError("x")),
        GradingSettings(),
        Deadline(0),
        cache=VerdictCache(),
    )
    assert result.verdict is Verdict.INFRA_ERROR and result.detail["kind"] == "DeadlineExceeded"


async def test_flaky_and_uncertified_tasks_are_graded_every_time(lab):
    provider, cache = Broken(SandboxError("x")), VerdictCache()
    for flaky in (True, None):
        task = replace(lab.task, flaky=flaky)
        await grade_patch(task, lab.files({"calc.py": FIXED}), provider, GradingSettings(), Deadline(9), cache=cache)
    assert cache.metrics()["graded"] == 0


async def test_what_policy_left_out_is_each_attempts_own(lab):
    """A and B leave the same patch to grade; A came with weakened tests, B alone: in whatever order, at once or later."""
    cache, provider = VerdictCache(), Lossy(None, "\nN done 1\n\nN same\n")
    fix, both = (
        lab.files({"calc.py": FIXED}),
        lab.files({"calc.py": FIXED, "tests/test_shout.py": "def test(): pass\n"}),
    )

    async def graded(patch):
        return await grade_patch(lab.task, patch, provider, GradingSettings(), Deadline(30), cache=cache)

    first = await graded(both)
    assert first.detail["test_files_left_out"] == ["tests/test_shout.py"] and "cached" not in first.detail
    first.detail["mine"] = True  # whatever a caller does to its result is nobody else's
    for alone in (await graded(fix), (await asyncio.gather(graded(both), graded(fix)))[1]):
        assert {"test_files_left_out", "mine"}.isdisjoint(alone.detail)
        assert alone.detail["files"] == ["calc.py"] and alone.detail["cached"] == "remembered"
    assert (await graded(both)).detail["test_files_left_out"] == ["tests/test_shout.py"]
    assert cache.metrics()["graded"] == 1


async def test_a_shared_grading_has_nothing_of_anothers_patch(lab):
    fix, both = (
        lab.files({"calc.py": FIXED}),
        lab.files({"calc.py": FIXED, "tests/test_shout.py": "def test(): pass\n"}),
    )
    cache, provider = VerdictCache(), Lossy(None, "\nN done 1\n\nN same\n", delay=0.2)
    grades = (grade_patch(lab.task, p, provider, GradingSettings(), Deadline(30), cache=cache) for p in (both, fix))
    weak, alone = await asyncio.gather(*grades)
    assert cache.metrics()["shared"] == 1 and alone.detail["cached"] == "shared"
    assert "test_files_left_out" in weak.detail and "test_files_left_out" not in alone.detail


class Slow(Broken):
    """Opens late, and its command runs out of time while the tests run."""

    def __init__(self, delay):
        super().__init__(None)
        self.delay = delay

    async def open(self, task, *, deadline, purpose):
        self.opened += 1
        await asyncio.sleep(self.delay)
        return self

    async def upload(self, path, data, *, mode=0o644):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            secrets = tar.extractfile("secrets").read().decode().split()
        self.secrets = dict(word.split("=") for word in secrets)

    async def exec(self, command, *, timeout, **_):
        self.timeout = timeout
        assert not any(secret in command for secret in self.secrets.values() if len(secret) > 3)
        nonce = self.secrets["N"]
        return ExecResult(124, f"\n{nonce} applied git-apply\n\n{nonce} tests 2\nrunning", timed_out=True)


@pytest.mark.parametrize(
    ("delay", "deadline", "tests_seconds", "verdict"),
    [
        (0.0, 2.0, None, Verdict.TEST_TIMEOUT),
        (1.4, 2.0, None, Verdict.INFRA_ERROR),
        (1.0, 30.0, 20.0, Verdict.TEST_TIMEOUT),  # the queue took time that the tests did not need
        (1.0, 20.0, 20.0, Verdict.INFRA_ERROR),  # it took a twentieth of the tests' own
        (0.0, 5.0, 20.0, Verdict.INFRA_ERROR),  # a second grading, for which a quarter was left
    ],
)
async def test_a_late_sandbox_is_not_a_slow_test(delay, deadline, tests_seconds, verdict, lab):
    patch, provider = lab.files({"calc.py": FIXED}), Slow(delay)
    limit = Deadline(deadline)
    result = await grade_patch(
        lab.task, patch, provider, GradingSettings(), limit, cache=VerdictCache(), tests_seconds=tests_seconds
    )
    assert result.verdict is verdict
    assert provider.timeout <= (tests_seconds or deadline)


class Lossy(Slow):
    """Its command ends, but what it printed last does not arrive."""

    def __init__(self, returncode, end, delay=0.0):
        super().__init__(delay)
        self.returncode, self.end = returncode, end

    async def exec(self, command, *, timeout, **_):
        nonce = self.secrets["N"]
        code = int(self.secrets["END"]) if self.returncode is None else self.returncode
        return ExecResult(code, f"\n{nonce} applied git-apply\n\n{nonce} tests 2\n" + self.end.replace("N", nonce))


@pytest.mark.parametrize("end", ["", "\nN done 0\n", "\nN done "])
@pytest.mark.parametrize("returncode", [None, 0, 1, 137])
async def test_lost_output_is_our_fault_an_ended_shell_the_patchs(returncode, end, lab):
    """The shell's own end has an exit code of its own (None here): only with it is a missing end the machinery's loss."""
    patch, provider = lab.files({"calc.py": FIXED}), Lossy(returncode, end)
    result = await grade_patch(lab.task, patch, provider, GradingSettings(), Deadline(30), cache=VerdictCache())
    assert result.verdict is (Verdict.INFRA_ERROR if returncode is None else Verdict.UNRESOLVED)
    assert provider.opened == (2 if returncode is None else 1)


@pytest.mark.parametrize("word", ["infra the disk is full", "rejected no", "tampered x"])
async def test_what_is_said_after_the_tests_began_stops_nothing(word, lab):
    """Code that learnt the grader's word cannot buy a retry with it."""
    provider = Lossy(None, f"\nN {word}\n\nN done 1\n\nN same\n")
    patch = lab.files({"calc.py": FIXED})
    result = await grade_patch(lab.task, patch, provider, GradingSettings(), Deadline(30), cache=VerdictCache())
    assert result.verdict is Verdict.UNRESOLVED

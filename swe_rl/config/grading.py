"""Settings: how a patch becomes a verdict."""

from __future__ import annotations

from typing import ClassVar, Literal

from swe_rl.config.setting import Area, setting


class GradingSettings(Area):
    area: ClassVar[str] = "grading"

    verdict_cache: bool = setting(True, "equal patches of a task certified as not flaky share one grading")
    swe_strict_no_test_patch: bool = setting(
        False, "a patch that edits tests is `tampered` (else the edits are stripped)"
    )
    swe_strict_no_config_patch: bool = setting(
        False, "a patch that edits test configuration (conftest.py, pytest.ini, tox.ini, setup.cfg ...) is `tampered`"
    )
    swe_test_patch_policy_scope: Literal["eval_tests_only", "all_tests"] = setting(
        "eval_tests_only", "which test files the two policies mean: those the grader runs, or every test file"
    )
    swe_max_patch_bytes: int = setting(8_000_000, "larger patches are rejected", ge=1)
    reward_not_submitted: float = setting(
        1.0,
        "reward of a resolved attempt that ran into a limit instead of submitting; below 1 it pays to submit",
        ge=0,
        le=1,
    )

"""What an agent's patch may touch. Edits of tests and of test configuration never reach the grader's run.

Two settings make such edits a verdict (`tampered`); otherwise they are stripped. Files that the task's own gold patch touches
are always allowed.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from swe_rl.config.grading import GradingSettings
from swe_rl.grading.graders_files import gold_files, graders_files, is_test_file, runner_files
from swe_rl.grading.import_shadows import is_shadow
from swe_rl.grading.patch_files import GITLINK, FilePatch, PatchFormatError, split_patch, unsafe_paths
from swe_rl.types import Task, Verdict

CONFIG_NAMES = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "noxfile.py", "setup.cfg",
    "pyproject.toml", ".coveragerc", "sitecustomize.py", "usercustomize.py", "*.pth", "jest.config.*", ".mocharc*",
    ".gitattributes",
)  # fmt: skip
# Eval scripts install the repository before its tests: what is run there could exchange pytest itself. Top level only.
BUILD_PROGRAMS = ("setup.py",)
JUNK = re.compile(r"(^|/)(__pycache__|[^/]*\.egg-info|[^/]*\.dist-info|\.pytest_cache)(/|$)|\.py[cod]$")


@dataclass
class PolicyResult:
    """`patch`: what is graded. `verdict`: set where the patch is refused. Files by why they were left out or refused."""

    patch: bytes = b""
    verdict: Verdict | None = None
    reason: str = ""
    test_files: list[str] = field(default_factory=list)
    config_files: list[str] = field(default_factory=list)
    junk_files: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # what remains

    def detail(self) -> dict[str, object]:
        """For verdict details: only what is not empty."""
        items = {
            "reason": self.reason,
            "files": self.files,
            "test_files_left_out": self.test_files,
            "config_files_left_out": self.config_files,
            "junk_left_out": self.junk_files,
        }
        return {name: value for name, value in items.items() if value}


def apply_policy(task: Task, patch: bytes, settings: GradingSettings) -> PolicyResult:
    """Strip or refuse. Never raises for anything a patch may hold."""
    if not patch.strip():
        return PolicyResult(verdict=Verdict.NO_PATCH, reason="the patch is empty")
    if len(patch) > settings.swe_max_patch_bytes:
        return PolicyResult(
            verdict=Verdict.PATCH_REJECTED,
            reason=f"{len(patch)} bytes: more than swe_max_patch_bytes={settings.swe_max_patch_bytes}",
        )
    try:
        sections = split_patch(patch)
    except PatchFormatError as error:
        return PolicyResult(verdict=Verdict.PATCH_REJECTED, reason=str(error))
    if problems := unsafe_paths(sections):
        return PolicyResult(verdict=Verdict.PATCH_REJECTED, reason="; ".join(problems[:5]))
    return _strip(task, patch, sections, settings)


def _strip(task: Task, patch: bytes, sections: list[FilePatch], settings: GradingSettings) -> PolicyResult:
    result = PolicyResult()
    allowed = gold_files(task)
    graders = graders_files(task)
    # The test runner's own folder comes first where it is run by its path (`./tests/runtests.py`).
    roots = {"", *map(posixpath.dirname, runner_files(task)), *task.env.get("PYTHONPATH", "").split(":")}
    everywhere = settings.swe_test_patch_policy_scope == "all_tests"
    kept: list[FilePatch] = []
    for section in sections:
        paths = [path for path in section.paths if path not in allowed]
        if GITLINK in (section.old_mode, section.new_mode) or any(JUNK.search(path) for path in paths):
            result.junk_files += section.paths
        elif any(is_test_file(graders, path, everywhere=everywhere) for path in paths):
            result.test_files += section.paths
        elif any(is_config_file(path) or (path == section.created and is_shadow(path, roots)) for path in paths):
            result.config_files += section.paths
        else:
            kept.append(section)
            result.files += section.paths
    if result.test_files and settings.swe_strict_no_test_patch:
        result.verdict, result.reason = Verdict.TAMPERED, f"the patch edits tests: {', '.join(result.test_files[:5])}"
    elif result.config_files and settings.swe_strict_no_config_patch:
        result.verdict = Verdict.TAMPERED
        result.reason = f"the patch edits test configuration: {', '.join(result.config_files[:5])}"
    elif not kept:
        result.verdict, result.reason = Verdict.NO_PATCH, "nothing is left of the patch without tests and configuration"
    # Untouched bytes where nothing is stripped: what was between sections may matter to `git apply`.
    result.patch = patch if len(kept) == len(sections) else b"".join(section.data for section in kept)
    return result


def is_config_file(path: str) -> bool:
    """Whether the file steers the test runner, the interpreter's start, or is run by a build before the tests."""
    return path in BUILD_PROGRAMS or any(fnmatchcase(posixpath.basename(path), pattern) for pattern in CONFIG_NAMES)

"""The small repository, bubblewrap sandboxes, and grading that remembers nothing."""

from __future__ import annotations

import pytest

from swe_rl.config import Config
from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.grading.cache import VerdictCache
from swe_rl.grading.grader import grade_patch
from swe_rl.sandbox.bubblewrap import why_unusable
from swe_rl.sandbox.provider import open_provider
from tests.grading.lab import build_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    return build_lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture
async def bubblewrap(tmp_path):
    if reason := why_unusable():
        pytest.skip(reason)
    opened = await open_provider(Config(sandbox="bubblewrap", sandbox_root=str(tmp_path / "boxes")))
    yield opened
    await opened.aclose()


@pytest.fixture
def grade(bubblewrap):
    """Grades a patch without remembering anything."""

    async def run(task, patch, *, seconds=60.0, **settings):
        return await grade_patch(
            task, patch, bubblewrap, GradingSettings(**settings), Deadline(seconds), cache=VerdictCache()
        )

    return run

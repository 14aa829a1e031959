"""Providers that the grading tests run against: bubblewrap here, a Docker Engine where one is asked for (marker docker)."""

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


@pytest.fixture(params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
async def provider(request, tmp_path):
    """A provider of the kind that the parameter names."""
    if request.param == "bubblewrap":
        if reason := why_unusable():
            pytest.skip(reason)
        opened = await open_provider(Config(sandbox="bubblewrap", sandbox_root=str(tmp_path / "boxes")))
    else:
        opened = await request.getfixturevalue("docker_provider_factory")(tmp_path)
    yield opened
    await opened.aclose()


@pytest.fixture
async def bubblewrap(tmp_path):
    if reason := why_unusable():
        pytest.skip(reason)
    opened = await open_provider(Config(sandbox="bubblewrap", sandbox_root=str(tmp_path / "boxes")))
    yield opened
    await opened.aclose()


@pytest.fixture
def grade(provider):
    """Grades a patch without remembering anything."""

    async def run(task, patch, *, seconds=60.0, **settings):
        return await grade_patch(
            task, patch, provider, GradingSettings(**settings), Deadline(seconds), cache=VerdictCache()
        )

    return run

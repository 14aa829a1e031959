"""A runtime with real local sandboxes and real grading; the policy is scripted."""

from __future__ import annotations

import pytest

from swe_rl.grading.cache import shared_cache
from swe_rl.rollout.runtime import Runtime, set_runtime
from swe_rl.sandbox.provider import open_provider
from tests.agent.build_tokenizers import build_tokenizer
from tests.agent.repository import build_task, local_config


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def task(tmp_path):
    return build_task(tmp_path)


@pytest.fixture
async def make_runtime(tmp_path):
    """make_runtime(engine, **settings): the process's runtime; everything is closed afterwards."""
    made = []

    async def make(engine, **settings):
        config = local_config(tmp_path, **settings)
        runtime = Runtime(config, engine, engine.tokenizer, await open_provider(config))
        made.append(runtime)
        set_runtime(runtime)
        return runtime

    yield make
    set_runtime(None)
    shared_cache.__init__()
    for runtime in made:
        await runtime.aclose()

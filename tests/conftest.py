"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; child processes inherit it

import pytest
from hypothesis import HealthCheck, settings

from tests.docker_engine import engine, engines  # noqa: F401  (fixtures for every folder, one set a session)

# The same examples on every machine, however slow it is.
settings.register_profile("ours", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of real inputs handed to the project; tests that need it say so when it is absent."""
    if not CASES.is_dir():
        pytest.skip(f"real cases are not here ({CASES})")
    return CASES

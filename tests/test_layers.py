"""Who may import whom: rollouts and training run in processes, and environments, of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "swe_rl"


def imported(file: Path) -> Iterator[str]:
    """The modules that a file names in import statements, wherever they stand."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("layer", ["rollout", "agent", "grading", "sandbox", "tasks", "engine", "generate_with_swe.py"])
def test_only_the_driver_knows_the_trainer(layer: str) -> None:
    place = ROOT / layer
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert files
    assert [f"{file}: {name}" for file in files for name in imported(file) if name.startswith("swe_rl.trainer")] == []

"""What the benches decide and where they write: a goal that was not measured is not met, and no figures are lost."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("learning")


def summary(before: float, after: float, *, n: int = 504, seconds: float = 300.0, steps: int = 12) -> dict[str, Any]:
    rates = [{"resolve_rate": rate, "ci95": [rate - 0.05, rate + 0.05], "n": n} for rate in (before, after)]
    return {"before": rates[0], "after": rates[1], "seconds_training": seconds, "optimizer_steps": steps}


@pytest.mark.parametrize(
    ("name", "found", "words"),
    [
        ("seed1", summary(0.27, 0.5), ""),
        ("seed1", summary(0.27, 0.5, seconds=901), "more than 900 s"),
        ("seed1", summary(0.27, 0.5, n=399), "fewer than 400"),
        ("seed1", summary(0.05, 0.5), "out of range"),
        ("seed1", summary(0.35, 0.5), "less than 1.5"),
        ("seed1", summary(0.10, 0.16), "overlap"),
        ("shuffled", summary(0.27, 0.06), ""),
        ("shuffled", summary(0.27, 0.40), "improved"),
        ("shuffled", summary(0.27, 0.06, steps=11), "fewer steps"),
        ("docker", summary(0.27, 0.52), ""),
        ("docker", summary(0.27, 0.30), "not the rate"),
        ("async", summary(0.27, 0.5, seconds=299), ""),
        ("async", summary(0.27, 0.5, seconds=301), "no faster"),
        ("async", summary(0.27, 0.5, seconds=250, steps=8), "fewer steps"),
    ],
)
def test_what_a_learning_run_fails_to_show(learning: ModuleType, name: str, found: dict[str, Any], words: str) -> None:
    missed = learning.misses(name, found, summary(0.27, 0.5))
    assert words in "; ".join(missed) and bool(missed) == bool(words)


@pytest.mark.parametrize("name", ["shuffled", "sglang", "docker", "async"])
def test_nothing_is_met_without_the_run_to_compare_with(learning: ModuleType, name: str) -> None:
    assert learning.misses(name, summary(0.27, 0.2), None)


def test_figures_have_a_place_before_they_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    json_file = importlib.import_module("json_file").json_file
    assert json_file(str(tmp_path / "new" / "deep" / "x.json")).parent.is_dir()
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file" / "x.json", tmp_path):
        with pytest.raises(argparse.ArgumentTypeError):
            json_file(str(wrong))


@pytest.mark.parametrize(
    "bench", sorted(f.stem for f in BENCH.glob("*.py") if 'add_argument("--json"' in f.read_text())
)
def test_every_bench_makes_the_folder_of_its_figures(tmp_path: Path, bench: str) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, str(BENCH / f"{bench}.py"), "--json", str(tmp_path / "file" / "x.json")]
    done = subprocess.run(command, cwd=BENCH.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--json: cannot make the folder" in done.stderr

"""Two training processes (gloo) make the update of one, and checkpoints move between one and two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.rank_program import RUNS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.trainer.rank_program", str(tiny_model), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: torch.load(folder / f"{name}.pt") for name in RUNS}


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-5)


def test_two_processes_make_the_update_of_one(runs):
    for one, two in zip(runs["one"]["metrics"], runs["two"]["metrics"], strict=True):
        for name in ("train/loss", "train/grad_norm", "train/kl", "train/entropy", "train/mean_abs_logprob_diff"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5), name
        assert two["train/trained_tokens"] == one["train/trained_tokens"]
    assert_close(runs["one"]["weights"], runs["two"]["weights"])


@pytest.mark.parametrize(
    ("resumed", "straight"), [("one_from_two", "two"), ("two_from_one", "one"), ("two_from_two", "two")]
)
def test_a_checkpoint_continues_on_one_and_on_two(runs, resumed, straight):
    after, expected = runs[resumed]["next_metrics"], runs[straight]["next_metrics"]
    assert after["train/optimizer_steps"] == expected["train/optimizer_steps"] == 6
    assert after["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-3)
    assert_close(runs[resumed]["next_weights"], runs[straight]["next_weights"])
    if resumed == "two_from_two":  # the same number of processes: the same bits
        for name in ("train/loss", "train/grad_norm"):
            assert after[name] == expected[name]
        for name, tensor in runs[straight]["next_weights"].items():
            assert torch.equal(runs[resumed]["next_weights"][name], tensor), name


def test_a_rank_without_a_sequence_takes_part(runs):
    assert runs["two"]["lonely"]["train/trained_tokens"] > 0
    assert runs["two"]["lonely"]["train/skipped"] == 0

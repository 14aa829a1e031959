"""The newcomer's command, as it stands in the README: real tasks, real tests, a learning run of minutes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]


# On a slow or busy machine attempts take longer than the quickstart gives them; they must not end as infra_error.
PATIENT = ("--swe-rollout-timeout", "600")


def shell(script: str, *flags: str, out: Path) -> str:
    env = {**os.environ, "EXPORT_ROOT": str(out)}
    done = subprocess.run(
        ["bash", script, *flags],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=1500,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quickstart")
    shell("scripts/quickstart.sh", "--quick", "--eval-greedy", *PATIENT, "--sandbox", "bubblewrap", out=out)
    return (out / "quickstart" / "latest").resolve()


def test_it_ends_with_the_promised_evidence(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["optimizer_steps"] >= 1 and summary["attempts"] >= 48
    assert summary["verdicts"].get("resolved", 0) > 0, "the warm policy solves some tasks"
    assert summary["verdicts"].get("infra_error", 0) == 0
    for name in ("before", "after"):
        assert summary[name]["n"] >= 48 and 0 <= summary[name]["ci95"][0] <= summary[name]["ci95"][1] <= 1
    audit = summary["audit"]
    assert audit["sampled_fraction"] == 1.0 and audit["dropped_tokens"] == 0
    assert audit["mean_abs_logprob_diff"] < 1e-3
    assert (run / "plots" / "overview.png").stat().st_size > 10_000


def test_resolved_attempts_hold_a_patch_that_git_reads(run: Path) -> None:
    resolved = [
        m.parent for m in run.glob("attempts/*/meta.json") if json.loads(m.read_text())["verdict"] == "resolved"
    ]
    assert resolved
    for attempt in resolved:
        stat = subprocess.run(
            ["git", "apply", "--numstat", attempt / "patch.diff"], capture_output=True, text=True, check=True
        )
        assert stat.stdout.strip()


@pytest.mark.slow
def test_a_policy_that_the_last_step_destroyed_is_not_what_a_run_leaves(tmp_path: Path) -> None:
    """One step at a rate that no policy survives: only the evaluation after it can tell."""
    flags = ("--num-rollout", "1", "--lr", "1", "--lr-warmup-iters", "0", "--eval-attempts", "126")
    said = shell("scripts/quickstart.sh", "--quick", *flags, *PATIENT, "--sandbox", "bubblewrap", out=tmp_path)
    assert "guard: held-out accuracy is" in said and "back to the weights after step 0" in said
    run = (tmp_path / "quickstart" / "latest").resolve()
    summary = json.loads((run / "summary.json").read_text())
    collapsed = json.loads((run / "evaluations" / "after-collapsed.json").read_text())
    (rollback,) = summary["rollbacks"]
    assert (rollback["reason"], rollback["back_to"], rollback["undone_optimizer_steps"]) == ("held-out accuracy", 0, 1)
    assert collapsed["ci95"][1] < summary["before"]["resolve_rate"] / 2 <= summary["after"]["resolve_rate"]
    assert (run / "attempts" / "eval-after-restored").is_dir() and (run / "attempts" / "eval-after").is_dir()
    before, after = (load_file(f / "model.safetensors") for f in (ROOT / "data" / "quickstart" / "policy", run / "hf"))
    assert all(torch.equal(after[name].float(), before[name].float()) for name in after)


def test_the_export_evaluates_to_the_same_greedy_rate(run: Path, tmp_path: Path) -> None:
    after = json.loads((run / "summary.json").read_text())["after"]["greedy"]
    flags = ("--eval-temperature", "0", "--eval-attempts", str(after["n"]), "--run-dir", str(tmp_path / "eval"))
    shell("eval/eval_quickstart.sh", str(run / "hf"), *flags, *PATIENT, "--sandbox", "bubblewrap", out=tmp_path)
    evaluated = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert evaluated["n"] == after["n"]
    assert evaluated["resolve_rate"] == pytest.approx(
        after["resolve_rate"], abs=1.01 / after["n"]
    )  # one tie may fall otherwise
    predictions = [json.loads(line) for line in (tmp_path / "eval" / "preds.jsonl").read_text().splitlines()]
    assert len(predictions) == after["n"] and set(predictions[0]) == {
        "instance_id",
        "model_name_or_path",
        "model_patch",
    }

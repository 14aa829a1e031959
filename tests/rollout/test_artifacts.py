"""Attempts on disk: complete, byte-exact, never half-written, readable as mini-swe-agent's."""

from __future__ import annotations

import json

import pytest

from swe_rl.rollout.artifacts import attempt_name, write_attempt
from swe_rl.types import FinishReason, Segment, Task, Trajectory, Turn, Verdict

PATCH = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-\xff\r\n+b\n\\ No newline at end of file"


def trajectory():
    turn = Turn([1, 2], [3, 4], [-0.1, -0.2], [7, 7], FinishReason.STOP)
    return Trajectory(
        task=Task("a__b-1", "It fails"),
        segments=[Segment([1, 2, 3, 4], 2, [1, 1], [-0.1, -0.2], [7, 7])],
        turns=[turn],
        messages=[{"role": "user", "content": "It fails \ud800"}, {"role": "assistant", "content": "ok"}],
        steps=[{"step": 0, "action": "ls", "segment": 0}],
        exit_status="submitted",
        patch=PATCH,
    )


def test_contents(tmp_path, cases):
    directory = tmp_path / "a" / "x"
    write_attempt(directory, trajectory(), {"weight_versions": [7]})
    assert (directory / "patch.diff").read_bytes() == PATCH
    assert json.loads((directory / "meta.json").read_text()) == {"weight_versions": [7]}
    document = json.loads((directory / "traj.json").read_text())
    assert document["info"]["exit_status"] == "Submitted" and document["info"]["verdict"] is None
    real = json.loads(next((cases / "trajectories").glob("*.traj.json")).read_text())
    assert set(real) <= set(document) and document["trajectory_format"] == real["trajectory_format"]
    assert {"exit_status", "submission", "model_stats"} <= set(document["info"])
    assert set(real["info"]["model_stats"]) == set(document["info"]["model_stats"])
    tokens = json.loads((directory / "turns.json").read_text())
    turn, segment = tokens["turns"][0], tokens["segments"][0]
    assert segment["tokens"][: turn["prompt_length"]] == [1, 2] and turn["output_ids"] == [3, 4]


def test_rewriting_after_the_grading(tmp_path):
    attempt = trajectory()
    write_attempt(tmp_path / "x", attempt, {})
    attempt.verdict = Verdict.RESOLVED
    write_attempt(tmp_path / "x", attempt, {})
    assert json.loads((tmp_path / "x" / "traj.json").read_text())["info"]["reward"] == 1.0
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == [
        "meta.json",
        "patch.diff",
        "traj.json",
        "turns.json",
    ]


def test_an_infra_error_has_no_reward(tmp_path):
    attempt = trajectory()
    attempt.verdict = Verdict.INFRA_ERROR
    write_attempt(tmp_path / "x", attempt, {})
    assert json.loads((tmp_path / "x" / "traj.json").read_text())["info"]["reward"] is None


def test_nothing_is_left_half_written(tmp_path, monkeypatch):
    from pathlib import Path

    real = Path.write_bytes

    def full_disk(self, data):
        if self.name == "meta.json":
            raise OSError(28, "No space left on device")
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_attempt(tmp_path / "x", trajectory(), {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("instance_id", ["a__b-1", "../../etc/passwd", "a/b c\n", "", "." * 9, "x" * 400])
def test_names_are_one_safe_path_component(tmp_path, instance_id):
    name = attempt_name(instance_id, 3, 1, 12345)
    assert "/" not in name and not name.startswith(".") and len(name.encode()) < 255
    assert name.endswith("__g3__i1__12345")
    (tmp_path / name).mkdir()


def test_submitting_can_be_worth_more(tmp_path):
    attempt = trajectory()
    attempt.verdict, attempt.reward_not_submitted = Verdict.RESOLVED, 0.25
    assert attempt.reward == 1.0
    attempt.exit_status = "step_limit"
    write_attempt(tmp_path / "x", attempt, {})
    assert json.loads((tmp_path / "x" / "traj.json").read_text())["info"]["reward"] == 0.25
    attempt.verdict = Verdict.UNRESOLVED
    assert attempt.reward == 0.0

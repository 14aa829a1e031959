"""The `swe-rl` command itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swe_rl import cli


@pytest.mark.parametrize("words", [["data"], ["data", "--help"], ["data", "help"]])
def test_a_group_of_commands_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: swe-rl data COMMAND") and "data certify" in said and "swe-rl train" not in said
    assert cli.main(["data", "nonsense"]) == 2


@pytest.mark.parametrize(
    "command",
    [
        ["regrade", "run"],
        ["replay", "run/traj.json"],
        ["data", "certify", "tasks.jsonl", "--fresh"],
        ["data", "synth", "--from", "source", "--out", "made"],
    ],
)
def test_a_dry_run_prints_settings_and_does_nothing(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    attempt = tmp_path / "run" / "attempts" / "a"
    attempt.mkdir(parents=True)
    (attempt / "patch.diff").write_text("")
    (attempt / "meta.json").write_text('{"instance_id": "a", "verdict": "no_patch"}')
    (tmp_path / "run" / "config.yaml").write_text("swe_eval_timeout: 61.0\n")
    (tmp_path / "run" / "regrade.jsonl").write_text("kept")
    (tmp_path / "tasks.certified.jsonl.journal").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--lr", "1e-3", "--dry-run"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and "lr: 0.001  # flag --lr" in said
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "run" / "regrade.jsonl").read_text() == "kept"
    if command[0] == "regrade":  # with what is taken from the run
        assert "swe_eval_timeout: 61.0  # run/config.yaml" in said


def test_waiting_threads_do_not_spin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Set before a command is imported, for torch reads it when it is loaded; a value of the user's stays."""
    for before, after in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if before:
            monkeypatch.setenv("OMP_WAIT_POLICY", before)
        with pytest.raises(SystemExit):
            cli.main(["data", "inspect", "--help"])
        assert os.environ["OMP_WAIT_POLICY"] == after

"""Metrics survive crashes, resumes and NaN; plots are real pictures drawn from them; W&B offline works."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import matplotlib.image
import pytest

from swe_rl.config import Config
from swe_rl.errors import UsageError
from swe_rl.observe.metrics import MetricsLog, drop_after, read_metrics
from swe_rl.observe.plots import draw_plots


def test_records_and_a_cut_last_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", Config(), run_name="r")
    log.log("train", 1, {"loss": float("nan"), "lr": 0.1})
    log.log("train", 2, {"loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [r["step"] for r in records] == [1, 2]
    assert records[0]["loss"] == "nan"


def test_a_disk_that_fills_up_cuts_no_line(tmp_path: Path) -> None:
    """A file size limit fails the write in the middle of a record, as a disk that fills up does."""
    log = MetricsLog(tmp_path / "metrics.jsonl", Config(), run_name="r")
    log.log("train", 1, {"loss": 1.0})
    size = log.path.stat().st_size
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            log.log("train", 2, {"loss": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert log.path.stat().st_size == size
    log.log("train", 2, {"loss": 2.0})
    assert [r["step"] for r in read_metrics(log.path)] == [1, 2]


def test_resume_forgets_what_will_be_made_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", Config(), run_name="r")
    for step in range(5):
        log.log("train", step, {"loss": step})
    drop_after(tmp_path / "metrics.jsonl", 2)
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]


def test_plots_show_the_curve(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", Config(), run_name="r")
    for step in range(30):
        log.log("rollout", step, {"reward_mean": step / 30, "resolve_rate": step / 30, "resolve_rate/L1": 1.0})
    log.log("eval", 0, {"resolve_rate": 0.1, "ci95": [0.05, 0.2]})
    log.log("eval", 30, {"resolve_rate": 0.5, "ci95": [0.4, 0.6]})
    names = {p.name for p in draw_plots(tmp_path / "metrics.jsonl", tmp_path / "plots")}
    assert names == {"reward.png", "resolve_rate.png", "levels.png", "overview.png"}
    picture = matplotlib.image.imread(tmp_path / "plots" / "reward.png")
    assert picture.shape[0] > 300 and picture[..., :3].std() > 0.01


def test_wandb_offline_writes_a_run(tmp_path: Path) -> None:
    log = MetricsLog(
        tmp_path / "metrics.jsonl",
        Config(use_wandb=True, wandb_mode="offline", swe_server_token="hunter2"),
        run_name="r1",
    )
    log.log("train", 1, {"loss": 1.0})
    log.close()
    files = list((tmp_path / "wandb").rglob("*.wandb"))
    assert files and b"hunter2" not in files[0].read_bytes()


def test_wandb_without_a_key_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UsageError, match="--wandb-mode offline"):
        MetricsLog(tmp_path / "metrics.jsonl", Config(use_wandb=True), run_name="r")


def test_json_lines_are_strict(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", Config(), run_name="r")
    log.log("train", 1, {"x": float("inf")})
    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda name: pytest.fail(name))

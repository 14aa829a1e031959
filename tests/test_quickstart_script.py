"""What `scripts/quickstart.sh` and `eval/eval_quickstart.sh` hand to `swe-rl`; set-up, tasks and trainer stand aside."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from swe_rl.config.check import check_sizes
from swe_rl.config.load import load_config

ROOT = Path(__file__).parents[1]
SCRIPTS = ("scripts/quickstart.sh", "eval/eval_quickstart.sh")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script in a folder whose other parts only say what they were given."""
    for name, text in {
        "scripts/setup.sh": "true",
        "data/quickstart/build.sh": "true",
        ".venv/bin/swe-rl": 'echo "$EXPORT_ROOT: $*"',
        "bin/nvidia-smi": 'for i in $(seq 0 $((GPUS - 1))); do echo "GPU $i: some card (UUID: GPU-$i)"; done',
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/usr/bin/env bash\n{text}\n")
        file.chmod(0o755)
    for script in SCRIPTS:
        (tmp_path / script).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / script, tmp_path / script)
    return tmp_path


def run(checkout: Path, *words: str, gpus: int, script: str = SCRIPTS[0], export_root: str = "") -> str:
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "GPUS": str(gpus), "EXPORT_ROOT": export_root}
    command = ["bash", script, *words]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_the_tiny_policy_stays_on_the_cpu(checkout: Path) -> None:
    plain = "export/quickstart: train --config scripts/quickstart.yaml"
    assert run(checkout, gpus=8) == plain
    assert run(checkout, "--seed", "2", gpus=0) == f"{plain} --seed 2"
    assert run(checkout, "--quick", gpus=0).startswith(f"{plain} --num-rollout 3 ")
    assert run(checkout, "--hf-checkpoint", "m", gpus=1) == f"{plain} --hf-checkpoint m"


@pytest.mark.parametrize("words", ["--hf-checkpoint m", "--hf-checkpoint=m", ""])
def test_a_real_model_gets_the_gpus(checkout: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    if not words:
        monkeypatch.setenv("HF_CKPT", "m")
    made = run(checkout, *words.split(), "--actor-num-gpus-per-node", "2", gpus=5)
    assert (
        made.split()
        == (
            "export/quickstart: train --config scripts/quickstart.yaml --config scripts/quickstart_model.yaml --engine sglang "
            f"--dtype bfloat16 --num-gpus-per-node 5 --actor-num-gpus-per-node 2 --rollout-num-gpus 3 {words} "
            "--actor-num-gpus-per-node 2"
        ).split()
    )


def test_the_settings_of_a_quickstart() -> None:
    tiny = load_config([f"--config={ROOT}/scripts/quickstart.yaml"], environ={}).config
    real = load_config([f"--config={ROOT}/scripts/quickstart{part}.yaml" for part in ("", "_model")], environ={}).config
    assert tiny.save_interval == 1, "an interruption costs one step"
    assert (tiny.swe_agent_config, real.swe_agent_config) == ("quickstart", "swebench")
    check_sizes(tiny)
    check_sizes(real)


def test_the_evaluation_looks_where_the_quickstart_exports(checkout: Path) -> None:
    for root, words in (("", ""), ("elsewhere", "--eval-greedy")):
        out = root or "export"
        made = run(checkout, *words.split(), gpus=0, script=SCRIPTS[1], export_root=root)
        settings = f"--config scripts/quickstart.yaml --hf-checkpoint {out}/quickstart/latest/hf {words}".strip()
        assert made == f"{out}/eval: eval {settings}"
        assert run(checkout, gpus=0, export_root=root).startswith(f"{out}/quickstart: train ")

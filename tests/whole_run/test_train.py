"""The whole loop as a user starts it: real Ray, engine, sandboxes, trainer; killed, interrupted, continued, fed nonsense."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swe_rl.config import Config
from swe_rl.engine.client import EngineClient
from swe_rl.engine.launch import embedded_command
from swe_rl.engine.process import EngineProcess
from swe_rl.observe.metrics import read_metrics
from swe_rl.policy.model import new_policy, tiny_config
from tests.agent.repository import local_sandbox_name
from tests.processes import cmdline
from tests.whole_run.conftest import Lab

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def below(folder: Path) -> list[psutil.Process]:
    """Processes that have to do with a run: its folder or a private folder of a supervisor is in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TEST_RUN_FOLDER") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until_gone(folder: Path, seconds: float = 30.0) -> list[str]:
    end = time.monotonic() + seconds
    while (left := below(folder)) and time.monotonic() < end:
        time.sleep(0.2)
    return [f"{p.pid} {' '.join(cmdline(p))[:120]}" for p in left]


def sandboxes_left(out: Path) -> list[str]:
    """What is left of the local sandboxes of the runs that `start` began: nothing, but the folder they were in."""
    boxes = out / "sandboxes" / "boxes"
    assert boxes.is_dir(), "these runs had no local sandboxes"
    return [path.name for path in boxes.iterdir()]


def start(lab: Lab, out: Path, *flags: str) -> subprocess.Popen[str]:
    env = {**lab.env, "TEST_RUN_FOLDER": str(out)}
    places = ("--export-root", str(out), "--sandbox-root", str(out / "sandboxes"), "--sandbox", local_sandbox_name())
    command = lab.command(*places, *flags)
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_step(out: Path, step: int, process: subprocess.Popen[str], seconds: float = 240.0) -> Path:
    """The run's folder once it has trained `step` steps."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run = (out / "latest").resolve()
        if any(r["kind"] == "train" and r["step"] >= step for r in read_metrics(run / "metrics.jsonl")):
            return run
        if process.poll() is not None:
            raise AssertionError(f"the run ended early:\n{process.stdout.read() if process.stdout else ''}")
        time.sleep(0.2)
    raise AssertionError(f"no step {step} within {seconds} s")


@pytest.fixture(scope="module")
def finished(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    process = start(lab, out)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert wait_until_gone(out) == []
    assert sandboxes_left(out) == []
    assert f"rejected {lab.folder / 'train.jsonl'}:5: " in output
    assert f"sandboxes: {local_sandbox_name()}" in output
    return (out / "latest").resolve()


def test_summary_and_audit(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["seed"] == 1 and summary["optimizer_steps"] == 3 and summary["attempts"] == 24
    assert sum(summary["verdicts"].values()) == 24 and summary["seconds_training"] > 0
    assert summary["sandbox"] == local_sandbox_name()
    for name in ("before", "after"):
        low, high = summary[name]["ci95"]
        assert summary[name]["n"] == 4 and low <= summary[name]["resolve_rate"] <= high
        assert set(summary[name]["levels"]) == {"L1", "L2"}
    audit = summary["audit"]
    assert audit["sampled_fraction"] == 1.0 and audit["dropped_tokens"] == 0
    assert audit["trained_tokens"] > 0 and audit["segments"] >= 24 and audit["forks"] == {}
    assert audit["mean_abs_logprob_diff"] < 1e-3


def test_every_attempt_is_on_disk(finished: Path) -> None:
    attempts = [p for p in (finished / "attempts").iterdir() if not p.name.startswith("eval-")]
    assert len(attempts) == 24
    for attempt in attempts:
        assert {"traj.json", "patch.diff", "meta.json"} <= {p.name for p in attempt.iterdir()}
        assert json.loads((attempt / "meta.json").read_text())["verdict"]
    assert len(list((finished / "attempts" / "eval-before").iterdir())) == 4


def test_weight_versions_move_with_the_steps(finished: Path) -> None:
    versions = {
        version
        for meta in (finished / "attempts").glob("calc-*/meta.json")
        for version in json.loads(meta.read_text())["weight_versions"]
    }
    assert versions == {0, 1, 2}


def test_export_loads_and_has_moved(finished: Path, lab: Lab) -> None:
    model = AutoModelForCausalLM.from_pretrained(finished / "hf", local_files_only=True)
    first = AutoModelForCausalLM.from_pretrained(lab.folder / "policy", local_files_only=True)
    assert any((a != b).any() for a, b in zip(model.parameters(), first.parameters(), strict=True))
    AutoTokenizer.from_pretrained(finished / "hf", local_files_only=True)


def test_curves_are_drawn(finished: Path) -> None:
    assert {"reward.png", "entropy.png", "resolve_rate.png", "kl.png", "logprob_diff.png", "overview.png"} <= {
        p.name for p in (finished / "plots").iterdir()
    }


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--async",)])
def test_driver_killed_then_continued(lab: Lab, tmp_path: Path, flags: tuple[str, ...]) -> None:
    process = start(lab, tmp_path, *flags)
    run = wait_for_step(tmp_path, 2, process)
    driver = psutil.Process(process.pid).children()[0]
    driver.kill()
    assert process.wait(timeout=60) != 0
    assert wait_until_gone(tmp_path) == []
    again = start(lab, tmp_path, *flags)
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0, output
    assert (tmp_path / "latest").resolve() == run and "continuing" in output
    assert sandboxes_left(tmp_path) == []  # those of the killed start too
    summary = json.loads((run / "summary.json").read_text())
    assert summary["optimizer_steps"] == 3 and summary["attempts"] == 24
    records = read_metrics(run / "metrics.jsonl")
    assert [r["step"] for r in records if r["kind"] == "train"] == [1, 2, 3]
    # The groups that were trained: two a step, in the order of their numbers, none twice.
    state = json.loads((run / "checkpoints" / "step_000003" / "state.json").read_text())
    assert state["data"]["groups"] == 6
    metas = [json.loads(meta.read_text()) for meta in (run / "attempts").glob("calc-*/meta.json")]
    assert {meta["group"] for meta in metas} == set(range(6))
    rollouts = [r for r in records if r["kind"] == "rollout"]
    assert [r["step"] for r in rollouts] == [1, 2, 3]
    for r in rollouts:
        behind = 1 if flags else 0
        assert r["step"] - 1 - behind <= r["weight_version_min"] <= r["weight_version_max"] <= r["step"] - 1


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
def test_interrupt_leaves_nothing(lab: Lab, tmp_path: Path, whole_group: bool) -> None:
    """SIGINT to the supervisor alone (`kill -INT`) and to everybody (Ctrl-C on a terminal)."""
    process = start(lab, tmp_path, "--num-rollout", "50")
    wait_for_step(tmp_path, 1, process)
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert wait_until_gone(tmp_path) == []
    assert sandboxes_left(tmp_path) == []


@pytest.mark.slow
def test_supervisor_and_driver_killed_at_once(lab: Lab, tmp_path: Path) -> None:
    process = start(lab, tmp_path)
    wait_for_step(tmp_path, 1, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    again = start(lab, tmp_path)
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0, output
    assert wait_until_gone(tmp_path) == []


def test_engines_that_ran_before_get_the_policys_weights(lab: Lab, tmp_path: Path) -> None:
    """They may hold what another run left: here another model's weights, as version 7."""
    model = str(lab.folder / "policy")
    engine = EngineProcess(embedded_command(Config(), model, seed=1), log_path=tmp_path / "engine.log", env=lab.env)
    engine.start()
    try:
        url = engine.wait_healthy(60)
        policy = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)

        async def spoil() -> None:
            client = EngineClient([url], request_timeout=60)
            other = {name: torch.randn_like(value) for name, value in policy.state_dict().items()}
            await client.update_weights_from_tensor(other.items(), 7)
            await client.aclose()

        asyncio.run(spoil())
        process = start(lab, tmp_path / "out", "--engine-urls", url)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    finally:
        engine.stop()
    run = (tmp_path / "out" / "latest").resolve()
    assert json.loads((run / "summary.json").read_text())["audit"]["mean_abs_logprob_diff"] < 1e-3
    rollouts = [r for r in read_metrics(run / "metrics.jsonl") if r["kind"] == "rollout"]
    assert [r["weight_version_max"] for r in rollouts] == [0, 1, 2]


def test_a_dead_engine_ends_the_run_with_its_last_words(lab: Lab, tmp_path: Path) -> None:
    process = start(lab, tmp_path, "--num-rollout", "50")
    wait_for_step(tmp_path, 1, process)
    engines = [p for p in below(tmp_path) if {"engine", "--model-path"} <= set(cmdline(p))]
    assert len(engines) == 1
    engines[0].kill()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1 and "died" in output and "Traceback" not in output, output
    assert wait_until_gone(tmp_path) == []


@pytest.mark.slow
def test_a_dead_rollout_manager_ends_the_run_and_is_named(lab: Lab, tmp_path: Path) -> None:
    process = start(lab, tmp_path, "--num-rollout", "50")
    wait_for_step(tmp_path, 1, process)
    managers = [
        p for p in psutil.Process(process.pid).children(recursive=True) if "RolloutManager" in " ".join(cmdline(p))
    ]
    assert len(managers) == 1
    managers[0].kill()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1 and "the rollout manager's process died" in output, output
    assert "Traceback" not in output
    assert wait_until_gone(tmp_path) == []


@pytest.mark.slow
def test_one_step_ahead(lab: Lab, tmp_path: Path) -> None:
    process = start(lab, tmp_path, "--async")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    run = (tmp_path / "latest").resolve()
    rollouts = [r for r in read_metrics(run / "metrics.jsonl") if r["kind"] == "rollout"]
    assert [r["weight_version_max"] for r in rollouts] == [0, 0, 1]
    assert json.loads((run / "summary.json").read_text())["audit"]["sampled_fraction"] == 1.0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt-data", "/no/such.jsonl"], "--prompt-data: no file /no/such.jsonl"),
        (["--hf-checkpoint", "/no/such"], "--hf-checkpoint: no folder /no/such"),
        (["--rollout-max-response-len", "9999"], "leaves no room for a prompt"),
        (["--no-such-flag", "1"], "unknown flag --no-such-flag"),
        (["--lr", "fast"], "--lr: 'fast' (from flag --lr) is not allowed"),
        (["--actor-num-nodes", "4"], "--actor-num-nodes 4 is more than --num-nodes 1"),
        (["--rollout-max-context-len", "99999"], "positions of the model"),
        (["--load", "/no/such"], "--load: /no/such is no checkpoint of swe-rl"),
        (["--dry-run", "--rollout-max-response-len", "9999"], "leaves no room for a prompt"),
        (["--custom-rm-path", "no.such"], "--custom-rm-path: importing 'no' failed"),
        (["--swe-agent-config", "missing.yaml"], "cannot read 'missing.yaml'"),
        (["--use-wandb", "--wandb-mode", "online"], "set WANDB_API_KEY"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(lab: Lab, tmp_path: Path, flags: list[str], words: str) -> None:
    done = lab.run("--export-root", str(tmp_path), *flags)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["--prompt-data", "--eval-prompt-data"])
def test_rows_that_cannot_be_used_end_a_run_before_it_begins(lab: Lab, tmp_path: Path, setting: str) -> None:
    file, out = tmp_path / "broken.jsonl", tmp_path / "out"
    file.write_text('{"no": "task"}\nno json\n')
    done = lab.run("--export-root", str(out), setting, str(file))
    assert done.returncode == 1
    assert "none of its 2 rows can be used" in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()


@pytest.mark.slow
def test_a_checkpoint_of_another_model_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    run, out, other = tmp_path / "run", tmp_path / "out", tmp_path / "other"
    tokenizer = AutoTokenizer.from_pretrained(lab.folder / "policy")
    new_policy(tiny_config(tokenizer, hidden=256, layers=3, mlp=96), seed=1).save_pretrained(other)
    tokenizer.save_pretrained(other)
    done = lab.run("--run-dir", str(run), "--num-rollout", "1")
    assert done.returncode == 0, done.stderr
    (checkpoint,) = (run / "checkpoints").glob("step_*")
    done = lab.run("--export-root", str(out), "--load", str(checkpoint), "--hf-checkpoint", str(other))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert list(out.iterdir()) == []

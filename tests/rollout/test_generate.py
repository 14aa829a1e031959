"""`generate` and `reward_func`: real bash, git and pytest in real sandboxes; how attempts end and what they leave."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json

import pytest

from swe_rl.errors import ConfigError, DataError, EngineError, SandboxError, SandboxUnavailable
from swe_rl.generate_with_swe import generate, post_process_rewards, reward_func, task_of
from swe_rl.rollout.foreign_args import config_from_args
from swe_rl.run_folder import config_hash
from swe_rl.types import Sample, SampleStatus
from tests.agent.repository import FIX_COMMAND, SUBMIT_COMMAND
from tests.agent.scripted import ScriptedEngine, bash
from tests.rollout.waiting import boxes, until

SOLVE = [bash("cat solution.py"), bash(FIX_COMMAND), bash(SUBMIT_COMMAND)]


def new_sample(task, **values):
    metadata = {"instance": dataclasses.asdict(task), "data_source": "test"}
    return Sample(**{"group_index": 4, "index": 2, "prompt": task.problem_statement, "metadata": metadata, **values})


async def test_resolved(make_runtime, tokenizer, task, tmp_path):
    engine = ScriptedEngine(tokenizer, SOLVE)
    runtime = await make_runtime(engine)
    sample = await generate(runtime.config, new_sample(task), {"temperature": 1.0, "max_new_tokens": 256})
    assert sample.status is SampleStatus.COMPLETED and sample.rollout_id == 2 and sample.reward is None
    sample.validate()
    assert sum(sample.loss_mask) == sum(len(result.output_ids) for result in engine.results)
    assert await reward_func(runtime.config, sample) == 1.0
    assert sample.metadata["verdict"] == "resolved" and not sample.remove_sample
    (directory,) = (tmp_path / "attempts").iterdir()
    assert directory.name.startswith("demo__clamp-1__g4__i2__")
    trajectory = json.loads((directory / "traj.json").read_text())
    assert trajectory["info"]["verdict"] == "resolved" and trajectory["info"]["reward"] == 1.0
    assert {"allocate", "agent", "collect", "grade", "close", "model", "command"} <= set(trajectory["info"]["timings"])
    assert b"+    return max(low, min(value, high))" in (directory / "patch.diff").read_bytes()
    meta = json.loads((directory / "meta.json").read_text())
    assert meta["weight_versions"] == [0, 1, 2] and meta["sampling_params"]["max_new_tokens"] == 256
    assert meta["tokens"]["sampled"] == meta["tokens"]["trained"] == sum(sample.loss_mask)
    assert meta["config_hash"] == config_hash(runtime.config.model_copy(update={"engine_urls": ["http://a:1"]}))
    assert meta["config_hash"] != config_hash(runtime.config.model_copy(update={"lr": 0.5}))
    assert boxes(tmp_path / "sandboxes") == []


@pytest.mark.parametrize(
    ("answers", "verdict", "exit_status", "status"),
    [
        ([bash(SUBMIT_COMMAND)], "no_patch", "submitted", SampleStatus.COMPLETED),
        ([bash("echo '# x' >> solution.py"), bash(SUBMIT_COMMAND)], "unresolved", "submitted", SampleStatus.COMPLETED),
        ([bash(FIX_COMMAND), *[bash("ls")] * 9], "resolved", "step_limit", SampleStatus.TRUNCATED),
        ([bash(FIX_COMMAND), bash("seq 1 5000")], "resolved", "context_limit", SampleStatus.TRUNCATED),
        (
            [bash(FIX_COMMAND + "; git commit -qam done"), bash(SUBMIT_COMMAND)],
            "resolved",
            "submitted",
            SampleStatus.COMPLETED,
        ),
    ],
)
async def test_other_ends(make_runtime, tokenizer, task, answers, verdict, exit_status, status):
    """Also where steps or context run out, the patch so far is taken and graded; submitting may be worth more."""
    settings = {"swe_agent_config": "quickstart", "rollout_max_context_len": 2000, "step_limit": 4}
    settings["reward_not_submitted"] = 0.5
    runtime = await make_runtime(ScriptedEngine(tokenizer, answers), **settings)
    sample = await generate(runtime.config, new_sample(task), {})
    assert (sample.metadata["exit_status"], sample.status) == (exit_status, status)
    share = 1.0 if exit_status == "submitted" else 0.5
    assert await reward_func(runtime.config, sample) == share * (verdict == "resolved")
    assert sample.metadata["verdict"] == verdict


async def test_several_segments_share_one_grading(make_runtime, tokenizer, task, monkeypatch):
    answers = [bash(FIX_COMMAND), *[bash(f"seq {i} {i + 40}") for i in range(6)], bash(SUBMIT_COMMAND)]
    settings = {"swe_agent_config": "quickstart", "rollout_max_context_len": 1300, "step_limit": 9}
    runtime = await make_runtime(ScriptedEngine(tokenizer, answers), **settings)
    opened = []
    real = runtime.provider.open

    async def counted(*args, **kwargs):
        opened.append(kwargs["purpose"])
        return await real(*args, **kwargs)

    monkeypatch.setattr(runtime.provider, "open", counted)
    samples = await generate(runtime.config, new_sample(task, rollout_id=11), {})
    assert len(samples) > 1 and {sample.rollout_id for sample in samples} == {11}
    assert [sample.metadata["fork_cause"] for sample in samples][:2] == ["", "context_dropped"]
    assert await asyncio.gather(*(reward_func(runtime.config, one) for one in samples)) == [1.0] * len(samples)
    assert await reward_func(runtime.config, samples) == [1.0] * len(samples)  # slime's batch form
    assert opened == ["agent", "grade"]


async def test_nothing_but_the_outcome_is_kept_once_it_is_known(make_runtime, tokenizer, task, tmp_path):
    """Another trainer never says when an attempt may be forgotten."""
    runtime = await make_runtime(ScriptedEngine(tokenizer, SOLVE))
    sample = await generate(runtime.config, new_sample(task), {})
    trajectory = runtime.recall(sample.metadata["attempt_id"]).trajectory
    assert [turn.prompt_ids for turn in trajectory.turns] == [[], [], []]
    assert await reward_func(runtime.config, sample) == 1.0
    assert (trajectory.turns, trajectory.segments, trajectory.messages, trajectory.steps) == ([], [], [], [])
    assert await reward_func(runtime.config, sample) == 1.0
    (directory,) = (tmp_path / "attempts").iterdir()
    turns = json.loads((directory / "turns.json").read_text())["turns"]
    lengths = [turn["prompt_length"] for turn in turns]
    assert len(lengths) == 3 and 0 < lengths[0] < lengths[1] < lengths[2]


async def test_dynamic_history_gives_one_sample_a_step(make_runtime, tokenizer, task):
    engine = ScriptedEngine(tokenizer, SOLVE)
    runtime = await make_runtime(engine, dynamic_history=True)
    samples = await generate(runtime.config, new_sample(task), {})
    assert len(samples) == 3
    for sample, prompt, result in zip(samples, engine.prompts, engine.results, strict=True):
        assert sample.tokens == prompt + result.output_ids and sample.response_length == len(result.output_ids)
        assert sample.loss_mask == [1] * len(result.output_ids) and sample.rollout_log_probs == result.log_probs


async def test_infra_errors_start_afresh(make_runtime, tokenizer, task, tmp_path):
    engine = ScriptedEngine(tokenizer, [bash("touch left_behind"), EngineError("gone"), bash("ls"), *SOLVE])
    runtime = await make_runtime(engine)
    sample = await generate(runtime.config, new_sample(task), {})
    assert sample.status is SampleStatus.COMPLETED and await reward_func(runtime.config, sample) == 1.0
    (directory,) = (tmp_path / "attempts").iterdir()
    meta = json.loads((directory / "meta.json").read_text())
    assert [failure["error"] for failure in meta["failures"]] == ["EngineError: gone"]
    assert "Traceback" in meta["failures"][0]["traceback"]
    listing = json.loads((directory / "traj.json").read_text())["steps"][0]["output"]
    assert "left_behind" not in listing  # a fresh sandbox, and the failed start's tokens are not trained
    assert sum(sample.loss_mask) == sum(len(result.output_ids) for result in engine.results[1:])


async def test_infra_errors_that_stay_leave_the_group(make_runtime, tokenizer, task, tmp_path, monkeypatch):
    engine = ScriptedEngine(tokenizer, [bash("ls"), EngineError("gone")])
    runtime = await make_runtime(engine, swe_infra_retries=1)
    sample = await generate(runtime.config, new_sample(task), {})
    assert sample.status is SampleStatus.FAILED and sample.remove_sample
    assert await reward_func(runtime.config, sample) == 0.0 and sample.metadata["verdict"] == "infra_error"
    assert len(engine.prompts) == 4  # two starts, two calls each
    assert boxes(tmp_path / "sandboxes") == []

    async def none_left(*args, **kwargs):
        raise SandboxUnavailable("pool full")

    monkeypatch.setattr(runtime.provider, "open", none_left)
    sample = await generate(runtime.config, new_sample(task), {})
    assert sample.remove_sample and sample.response_length == 0
    sample.validate()


async def test_a_lost_grading_is_graded_afresh(make_runtime, tokenizer, task, monkeypatch):
    runtime = await make_runtime(ScriptedEngine(tokenizer, SOLVE))
    sample = await generate(runtime.config, new_sample(task), {})
    real, failures = runtime.provider.open, [SandboxError("node lost")] * 3

    async def flaky(*args, **kwargs):
        if failures:
            raise failures.pop()
        return await real(*args, **kwargs)

    monkeypatch.setattr(runtime.provider, "open", flaky)
    assert await reward_func(runtime.config, sample) == 1.0
    assert "node lost" in runtime.recall(sample.metadata["attempt_id"]).failures[0]["error"]


async def test_a_slow_agent_does_not_starve_its_grading(make_runtime, tokenizer, task):
    answers = [bash(FIX_COMMAND), bash("sleep 60")]
    settings = {"swe_rollout_timeout": 40.0, "swe_command_timeout": 50.0}
    runtime = await make_runtime(ScriptedEngine(tokenizer, answers), **settings)
    sample = await generate(runtime.config, new_sample(task), {})
    assert sample.metadata["exit_status"] == "deadline"
    assert await reward_func(runtime.config, sample) == 1.0


async def test_a_full_disk_is_said(make_runtime, tokenizer, task, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swe_rl.rollout.attempt.write_attempt", full)
    runtime = await make_runtime(ScriptedEngine(tokenizer, SOLVE))
    sample = await generate(runtime.config, new_sample(task), {})
    assert sample.remove_sample
    assert "No space left" in runtime.recall(sample.metadata["attempt_id"]).trajectory.verdict_detail["error"]


async def test_cancellation_closes_the_sandbox(make_runtime, tokenizer, task, tmp_path):
    runtime = await make_runtime(ScriptedEngine(tokenizer, [bash("sleep 60")]))
    job = asyncio.ensure_future(generate(runtime.config, new_sample(task), {}))
    await until(lambda: runtime.progress.snapshot()["stages"].get("agent"))
    await asyncio.sleep(0.3)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert boxes(tmp_path / "sandboxes") == [] and runtime.progress.snapshot()["stages"] == {}


async def test_samples_that_are_not_ours(make_runtime, tokenizer, task):
    runtime = await make_runtime(ScriptedEngine(tokenizer, SOLVE))
    with pytest.raises(DataError, match="not known here"):
        await reward_func(runtime.config, Sample(index=3))
    with pytest.raises(DataError, match="no task"):
        await generate(runtime.config, Sample(index=3, metadata={"instance": {"repo": "a/b"}}), {})


def test_the_task_of_a_sample(task, cases):
    assert task_of(Sample(metadata={"task": task})) is task
    ours = task_of(new_sample(task))
    assert (ours.instance_id, ours.eval_script, ours.archive) == (task.instance_id, task.eval_script, task.archive)
    row = json.loads((cases / "swebench_lite_80.jsonl").read_text().splitlines()[0])
    theirs = task_of(Sample(prompt=row["problem_statement"], metadata={"instance": row}))
    assert theirs.instance_id == row["instance_id"] and theirs.image
    assert task_of(Sample(prompt="fix", metadata=row)) == task_of(Sample(prompt="fix", metadata={"instance": row}))


def test_the_task_of_a_sample_whose_row_has_no_id():
    """slime's coding-agent form: attempts at one row, which are one group, are attempts at one task."""
    row = {"image": "i:1", "workdir": "/w", "eval_cmd": "pytest -q"}
    tasks = [task_of(Sample(group_index=3, index=i, prompt="fix", metadata={**row})) for i in (6, 7)]
    assert tasks[0] == tasks[1] and tasks[0].instance_id == "sample-g3"
    assert (tasks[0].image, tasks[0].workdir, tasks[0].problem_statement) == ("i:1", "/w", "fix")
    assert "pytest -q" in tasks[0].eval_script
    assert task_of(Sample(index=0, prompt="fix", metadata={**row, "repo": "a/b"})).instance_id == "sample-0"


def test_settings_of_a_foreign_trainer(monkeypatch):
    """An argparse Namespace of slime: what it has and we know is taken, what is None or about training is not."""
    monkeypatch.setenv("SWE_MAX_CONCURRENT", "7")
    args = argparse.Namespace(
        sglang_router_ip="10.0.0.1",
        sglang_router_port=3333,
        rollout_max_context_len=9000,
        rollout_max_response_len=1000,
        n_samples_per_prompt=8,
        hf_checkpoint="/models/x",
        advantage_estimator="reinforce_plus_plus",
        swe_command_timeout=None,
        save=None,
        lr="not ours",
        prompt_data=["a.jsonl"],
        eval_prompt_data=["aime", "/data/aime.jsonl"],
        custom_generate_function_path="swe_rl.generate_with_swe.generate",
        num_rollout=None,
        rollout_batch_size=0,
        unknown_thing=1,
    )
    config = config_from_args(args)
    assert config.engine_urls == ["http://10.0.0.1:3333"] and config.swe_max_concurrent == 7
    assert config.rollout_max_context_len == 9000 and config.hf_checkpoint == "/models/x"
    assert config.swe_command_timeout == 60.0 and config.lr == 1e-6
    assert config_from_args(config) is config
    with pytest.raises(ConfigError, match=r"swe-rollout-timeout.*args"):
        config_from_args(argparse.Namespace(swe_rollout_timeout=-1))


@pytest.mark.parametrize(
    ("std", "normalised"), [(False, [0.5, -0.5, -0.5, 0.0]), (True, [0.7071, -0.7071, -0.7071, 0.0])]
)
def test_an_infra_error_stays_out_of_slimes_group_mean(std, normalised):
    """One attempt resolved, one not (in two segments), one lost to the infrastructure, with reward 0."""
    values = {"group_index": 3, "tokens": [1, 2], "response_length": 1, "loss_mask": [1]}
    samples = [
        Sample(rollout_id=0, reward=1.0, **values),
        *(Sample(rollout_id=1, reward=0.0, **values) for _ in range(2)),
        Sample(rollout_id=2, reward=0.0, remove_sample=True, **values),
    ]
    raw, compared = post_process_rewards(argparse.Namespace(grpo_std_normalization=std), samples)
    assert raw == [1.0, 0.0, 0.0, 0.0] and compared == pytest.approx(normalised, abs=1e-4)
    for without in ({"rewards_normalization": False}, {"advantage_estimator": "ppo"}):
        assert post_process_rewards(argparse.Namespace(**without), samples) == (raw, raw)
    baseline = argparse.Namespace(advantage_estimator="reinforce_plus_plus_baseline")  # no division by the deviation
    assert post_process_rewards(baseline, samples)[1] == [0.5, -0.5, -0.5, 0.0]

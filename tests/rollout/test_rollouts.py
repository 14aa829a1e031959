"""Rollout steps: groups, dynamic sampling, failures, cancellation, the audit of what was returned, evaluation."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from pathlib import Path

import pytest

from swe_rl.config import Config
from swe_rl.errors import ConfigError, EngineError, InfraError, UsageError
from swe_rl.rollout.data_source import TaskSource
from swe_rl.rollout.functions import load_functions
from swe_rl.rollout.rollouts import Rollouts
from swe_rl.trainer.batch import training_batch
from tests.agent.repository import FIX_COMMAND, SUBMIT_COMMAND
from tests.agent.scripted import ScriptedEngine, bash
from tests.rollout.waiting import boxes, until

CUSTOM = "tests.rollout.custom_functions"
SMALL = {"rollout_batch_size": 2, "n_samples_per_prompt": 2, "swe_agent_config": "quickstart", "swe_infra_retries": 0}


class Policy(ScriptedEngine):
    """Solves attempt i of group g when `solves(g, i)`, fails with an EngineError when `fails(g, i)`, cheats unless
    `honest(g, i)`. Stateless in itself: attempts run concurrently, so the answer follows from the routing key and the
    number of turns before."""

    solves = staticmethod(lambda group, index: index == 0)
    fails = staticmethod(lambda group, index: False)
    honest = staticmethod(lambda group, index: True)
    delay = 0.0
    running = most = 0

    async def generate(self, input_ids, sampling_params, *, rid, routing_key="", deadline=None):
        _, group, index, _ = routing_key.rsplit("__", 3)
        place = int(group[1:]), int(index[1:])
        turn = int(rid.rpartition("-t")[2])
        if self.fails(*place):
            raise EngineError("connection refused")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.running -= 1
        first = FIX_COMMAND if self.solves(*place) else "true"
        first = first if self.honest(*place) else f"git log --all; {first}"
        text = bash(first if turn == 0 else SUBMIT_COMMAND)
        player = ScriptedEngine(self.tokenizer, [text])
        self.params.append(sampling_params)
        return await player.generate(input_ids, sampling_params, rid=rid)


@pytest.fixture
def make_rollouts(make_runtime, tokenizer, task):
    async def make(policy=None, tasks=4, **settings):
        policy = policy or Policy(tokenizer, [])
        runtime = await make_runtime(policy, **{**SMALL, **settings})
        copies = []
        for number in range(tasks):
            one = copy.deepcopy(task)
            one.instance_id, one.metadata = f"demo__clamp-{number}", {"level": number % 2}
            one.eval_script, one.log_parser = (
                "python -c 'import solution; assert solution.clamp(3, 0, 2) == 2'",
                "exit_code",
            )
            one.fail_to_pass, one.pass_to_pass = [], []  # quick; test_generate.py grades with pytest
            copies.append(one)
        source = TaskSource(copies, seed=1, shuffle=True)
        return Rollouts(runtime, load_functions(runtime.config), source), policy, copies

    return make


async def test_a_step(make_rollouts):
    rollouts, policy, _ = await make_rollouts()
    batch = await rollouts.rollout(0)
    assert len(batch.samples) == 4 and batch.step == 0
    assert [(s.group_index, s.index, s.rollout_id, s.reward) for s in batch.samples] == [
        (0, 0, 0, 1.0),
        (0, 1, 1, 0.0),
        (1, 0, 2, 1.0),
        (1, 1, 3, 0.0),
    ]
    for sample in batch.samples:
        sample.validate()
        assert "instance" not in sample.metadata and "task" not in sample.metadata
        assert sample.metadata["task_metadata"]["level"] in (0, 1)
    assert batch.metrics["resolve_rate"] == 0.5 and batch.metrics["sampled_fraction"] == 1.0
    levels = {str(sample.metadata["task_metadata"]["level"]) for sample in batch.samples}
    by_level = {name: rate for name, rate in batch.metrics.items() if name.startswith("resolve_rate/")}
    assert by_level == {f"resolve_rate/{level}": 0.5 for level in levels}
    assert batch.metrics["groups_kept"] == 2 and batch.metrics["turns_mean"] == 2
    assert batch.counts["verdicts"] == {"resolved": 2, "no_patch": 2}
    assert batch.counts["trained_tokens"] == batch.counts["sampled_tokens_trained"] > 0
    assert batch.counts["trained_tokens"] == sum(sum(s.loss_mask) for s in batch.samples)
    assert batch.counts["dropped_tokens"] == 0 and batch.counts["segments"] == 4
    logs = [p for s in batch.samples for p, mask in zip(s.rollout_log_probs, s.loss_mask, strict=True) if mask]
    assert batch.metrics["entropy"] == pytest.approx(-sum(logs) / len(logs))
    assert set(batch.counts["busy_seconds"]) >= {"agent", "grade", "rollout"}
    assert batch.metrics["seconds"] == batch.counts["busy_seconds"]["rollout"] > 0
    assert batch.counts["verdict_cache_hits"] == 0 and set(batch.counts["seconds_by_stage"]) >= {"agent", "grade"}
    seeds = [params["sampling_seed"] for params in policy.params]
    assert len(set(seeds)) == len(seeds)
    assert rollouts.runtime.progress.snapshot()["finished"] == 4
    assert rollouts.runtime.recall(batch.samples[0].metadata["attempt_id"]) is None  # nothing is kept in memory


async def test_groups_without_spread_are_replaced_up_to_the_bound(make_rollouts, tokenizer):
    policy = Policy(tokenizer, [])
    policy.solves = lambda group, index: group >= 2 and index == 0
    rollouts, _, _ = await make_rollouts(policy)
    batch = await rollouts.rollout(0)
    assert {sample.group_index for sample in batch.samples} == {2, 3}
    assert batch.metrics["groups"] == 4 and batch.counts["attempts"] == 8
    assert batch.data_state["groups"] == 4 and (await rollouts.rollout(1)).samples[0].group_index == 4
    policy.solves = lambda group, index: False
    batch = await rollouts.rollout(2)
    assert batch.samples == [] and batch.metrics["groups"] == 4 and batch.metrics["groups_kept"] == 0
    assert batch.metrics["entropy"] > 0  # of all that was sampled: a policy that trains nothing is watched too
    assert batch.metrics["sampled_fraction"] == 1.0


async def test_without_dynamic_sampling_every_group_is_kept(make_rollouts, tokenizer):
    policy = Policy(tokenizer, [])
    policy.solves = lambda group, index: True
    rollouts, _, _ = await make_rollouts(policy, dynamic_sampling=False)
    batch = await rollouts.rollout(0)
    assert len(batch.samples) == 4 and batch.metrics["groups"] == 2
    assert batch.counts["verdict_cache_hits"] == 2  # equal patches of a task share one grading


async def test_one_bad_attempt_leaves_its_group_and_never_ends_the_step(make_rollouts, tokenizer):
    policy = Policy(tokenizer, [])
    policy.fails = lambda group, index: (group, index) == (0, 2)
    rollouts, _, _ = await make_rollouts(policy, n_samples_per_prompt=3)
    batch = await rollouts.rollout(0)
    assert [(s.group_index, s.index) for s in batch.samples] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert batch.metrics["infra_errors"] == 1 and batch.counts["verdicts"]["infra_error"] == 1
    assert batch.metrics["reward_mean"] == 2 / 5  # over those that count


async def test_a_dead_engine_ends_the_step_with_its_reason(make_rollouts, tokenizer, tmp_path):
    policy = Policy(tokenizer, [])
    policy.fails = lambda group, index: True
    rollouts, _, _ = await make_rollouts(policy)
    with pytest.raises(InfraError, match="connection refused"):
        await rollouts.rollout(0)
    rollouts, _, _ = await make_rollouts(policy, n_samples_per_prompt=20, swe_max_concurrent=4, rollout_batch_size=4)
    with pytest.raises(InfraError, match=r"40 attempts in a row.*connection refused"):
        await rollouts.rollout(0)
    rollouts, _, _ = await make_rollouts(
        policy, tasks=2, n_samples_per_prompt=4, swe_max_concurrent=4, rollout_batch_size=8
    )
    with pytest.raises(InfraError, match=r"16 attempts in a row, at 2 tasks"):  # a small set fills no half of a batch
        await rollouts.rollout(0)
    # one that was being copied when its attempt was cancelled goes as soon as it is there
    await until(lambda: not boxes(tmp_path / "sandboxes"))


async def test_two_tasks_that_cannot_be_opened_do_not_end_the_step(make_rollouts, tokenizer):
    """All their attempts fail before the first one at another task has ended."""
    policy = Policy(tokenizer, [])
    policy.fails, policy.delay = lambda group, index: group < 2, 0.3
    rollouts, _, tasks = await make_rollouts(
        policy, tasks=5, n_samples_per_prompt=8, rollout_batch_size=5, dynamic_sampling=False
    )
    batch = await rollouts.rollout(0)
    assert {sample.group_index for sample in batch.samples} == {2, 3, 4} and batch.metrics["infra_errors"] == 16
    results = await rollouts.evaluate(tasks, attempts=8)
    assert sum(result.counts for result in results) == 24


async def test_the_concurrency_bound_holds_over_all_callers(make_rollouts, tokenizer):
    policy = Policy(tokenizer, [])
    policy.delay = 0.05
    rollouts, _, tasks = await make_rollouts(policy, swe_max_concurrent=3)
    await asyncio.gather(rollouts.rollout(0), rollouts.evaluate(tasks, attempts=2))
    assert policy.most <= 3


async def test_cancellation_ends_every_attempt(make_rollouts, tokenizer, tmp_path):
    policy = Policy(tokenizer, [])
    policy.delay = 30.0
    rollouts, _, _ = await make_rollouts(policy)
    job = asyncio.ensure_future(rollouts.rollout(0))
    await until(lambda: policy.running == 4)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert policy.running == 0 and not boxes(tmp_path / "sandboxes")
    assert rollouts.runtime.progress.snapshot()["stages"] == {}
    policy.delay = 0.0
    assert len((await rollouts.rollout(0)).samples) == 4  # it can go on afterwards


async def test_evaluation(make_rollouts, tmp_path):
    rollouts, policy, tasks = await make_rollouts()
    results = await rollouts.evaluate(tasks[:3], attempts=2, temperature=0.0, attempts_dir=str(tmp_path / "eval"))
    assert [(r.instance_id, r.index, r.verdict) for r in results] == [
        (f"demo__clamp-{task}", index, "no_patch" if index else "resolved")
        for task, index in itertools.product(range(3), range(2))
    ]
    assert all(params["temperature"] == 0.0 and params["top_p"] == 1.0 for params in policy.params)
    assert len(list((tmp_path / "eval").iterdir())) == 6 and all(r.attempt_dir and not r.samples for r in results)
    first = [params["sampling_seed"] for params in policy.params]
    policy.params.clear()
    await rollouts.evaluate(tasks[:3], attempts=2)
    assert sorted(first) == sorted(params["sampling_seed"] for params in policy.params)
    with pytest.raises(UsageError, match="at least 1"):
        await rollouts.evaluate(tasks, attempts=0)


async def test_controls_and_masks(make_rollouts):
    rollouts, _, _ = await make_rollouts(shuffle_rewards=True, mask_limit_hits="all", step_limit=1)
    batch = await rollouts.rollout(0)
    assert sorted(s.reward for s in batch.samples) == [0.0, 0.0, 1.0, 1.0]
    assert [s.metadata["true_reward"] for s in batch.samples] == [1.0, 0.0, 1.0, 0.0]
    assert batch.metrics["entropy"] > 0  # taken before the masks
    assert batch.metrics["masked_attempts"] == 4 and not any(any(s.loss_mask) for s in batch.samples)
    assert batch.counts["trained_tokens"] == batch.counts["segments"] == 0  # what is masked does not train
    assert batch.counts["dropped_tokens"] == batch.metrics["sampled_tokens"] > 0


async def test_shared_verdicts_hidden_history_and_cheats_are_in_the_metrics(make_rollouts, tokenizer):
    policy = Policy(tokenizer, [])
    policy.solves = lambda group, index: True
    policy.honest = lambda group, index: (group, index) != (1, 0)
    rollouts, _, _ = await make_rollouts(policy, dynamic_sampling=False)
    metrics = (await rollouts.rollout(0)).metrics
    assert metrics["verdict_cache/graded"] == 2 and metrics["verdict_cache/cache_share"] == 0.5
    assert sum(value for name, value in metrics.items() if name.startswith("history/")) > 0
    assert metrics["defence/harness_changed"] == metrics["defence/test_files_left_out"] == 0.0
    assert metrics["cheat/reads_git_history"] == metrics["cheat/any"] == 0.25 and metrics["cheat/fetches_url"] == 0.0


class TestCustomFunctions:
    """A user's functions run in our groups; what they do wrong is an infra_error with its reason, never a reward."""

    @pytest.fixture
    async def run(self, make_rollouts):
        async def run(generate="generate", reward="reward", **settings):
            paths = {"custom_generate_function_path": f"{CUSTOM}.{generate}", "custom_rm_path": f"{CUSTOM}.{reward}"}
            rollouts, _, _ = await make_rollouts(**paths, **settings)
            return await asyncio.wait_for(rollouts.rollout(0), 20)

        return run

    async def test_they_work(self, run):
        batch = await run()
        assert [sample.reward for sample in batch.samples] == [0.0, 1.0, 0.0, 1.0]
        assert batch.metrics["sampled_fraction"] == 0.0  # the engine never returned these tokens: the audit says so

    @pytest.mark.parametrize(
        ("functions", "reason"),
        [
            ({"generate": "broken"}, "KeyError: 'no such thing'"),
            ({"generate": "shifted"}, "loss_mask has 1 entries"),
            ({"reward": "nan_reward"}, "returned nan"),
            ({"reward": "no_reward"}, "returned None"),
        ],
    )
    async def test_wrong_results(self, run, functions, reason):
        with pytest.raises(InfraError) as caught:
            await run(**functions)
        assert reason in str(caught.value)

    @pytest.mark.parametrize(
        "how", ["nan", "positive", "mask", "vocabulary", "first", "missing", "rewards", "dictionary"]
    )
    async def test_what_cannot_be_trained_on_costs_its_attempt_and_not_the_run(self, run, how):
        batch = await run(generate="spoilt", n_samples_per_prompt=3, wandb_group=how)
        assert {sample.index for sample in batch.samples} == {1, 2} and batch.metrics["infra_errors"] == 2
        training_batch(batch.samples, Config(), vocab_size=1000)  # the trainer takes the rest

    async def test_removed_segments_are_left_out_and_their_attempt_counts(self, run):
        batch = await run(generate="half_removed")
        assert [sum(sample.loss_mask) for sample in batch.samples] == [2] * 4 and batch.metrics["infra_errors"] == 0
        assert training_batch(batch.samples, Config(), vocab_size=1000).metrics["train/segments"] == 4

    async def test_sometimes_wrong(self, run):
        batch = await run(generate="sometimes_broken", n_samples_per_prompt=3)
        assert {sample.index for sample in batch.samples} == {1, 2}


@pytest.mark.parametrize(
    ("reward", "value", "verdict"), [("half_of_ours", 0.5, "resolved"), ("a_third", 0.3, "unresolved")]
)
async def test_the_reward_that_trains_is_the_one_on_disk(make_rollouts, tmp_path, reward, value, verdict):
    rollouts, _, _ = await make_rollouts(custom_rm_path=f"{CUSTOM}.{reward}", dynamic_sampling=False)
    batch = await rollouts.rollout(0)
    (sample, *_) = [sample for sample in batch.samples if sample.index == 0]
    info = json.loads((Path(sample.metadata["attempt_dir"]) / "traj.json").read_text())["info"]
    assert (sample.reward, info["reward"], info["verdict"]) == (value, value, verdict)


async def test_wrong_settings_stop_the_step(make_rollouts):
    rollouts, _, _ = await make_rollouts(swe_agent_config="no_such_prompts")
    with pytest.raises(ConfigError, match="no_such_prompts"):
        await rollouts.rollout(0)


async def test_an_evaluation_in_which_nothing_counts_is_no_rate(make_rollouts, tokenizer):
    policy = Policy(tokenizer, [])
    policy.fails = lambda group, index: True
    rollouts, _, tasks = await make_rollouts(policy)
    with pytest.raises(InfraError, match=r"none of 3 attempts counts; .*connection refused"):
        await rollouts.evaluate(tasks[:3])


async def test_the_audit_counts_only_what_trains(make_rollouts, tokenizer):
    """Groups without spread train nothing: where none is resampled, and where shuffled rewards are alike."""
    policy = Policy(tokenizer, [])
    policy.solves = lambda group, index: True
    rollouts, _, _ = await make_rollouts(policy, dynamic_sampling=False)
    batch = await rollouts.rollout(0)
    assert len(batch.samples) == 4 and batch.metrics["groups_kept"] == 0
    assert batch.counts["trained_tokens"] == batch.counts["segments"] == 0
    policy.solves = lambda group, index: index == 0
    rollouts, _, _ = await make_rollouts(policy, shuffle_rewards=True)
    for step in range(4):
        batch = await rollouts.rollout(step)
        spread = {s.group_index for s in batch.samples} - {
            group
            for group in {s.group_index for s in batch.samples}
            if len({s.reward for s in batch.samples if s.group_index == group}) == 1
        }
        assert batch.metrics["groups_kept"] == len(spread)
        trained = sum(sum(s.loss_mask) for s in batch.samples if s.group_index in spread)
        assert batch.counts["trained_tokens"] == trained

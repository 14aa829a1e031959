"""Training on one rank: it learns, and it continues after a kill exactly where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swe_rl.config import Config
from swe_rl.trainer.batch import StepPlan, plan_steps, training_batch
from swe_rl.trainer.checkpoint_folder import commit
from tests.trainer.conftest import VOCAB, make_config, make_samples


def plan(config: Config, step: int, ranks: int = 1) -> StepPlan:
    return plan_steps(
        training_batch(make_samples(seed=step), config, VOCAB),
        steps=config.num_steps_per_rollout,
        aggregation=config.loss_aggregation,
        max_tokens=config.max_tokens_per_gpu,
        ranks=ranks,
        seed=(config.seed, step),
    )


@pytest.mark.parametrize("steps_per_rollout", [1, 2])
def test_resumed_run_equals_straight_run_bit_for_bit(tiny_model, tmp_path, start_worker, steps_per_rollout):
    config = make_config(
        tiny_model,
        num_steps_per_rollout=steps_per_rollout,
        kl_loss_coef=0.1,
        entropy_coef=0.01,
        lr_decay_style="cosine",
        lr_warmup_iters=2,
    )
    worker = start_worker(config)
    straight = [worker.train(plan(config, step)[0]) for step in range(4)]
    expected = worker.backend.full_weights()

    worker = start_worker(config)
    for step in range(2):
        worker.train(plan(config, step)[0])
    partial, final = tmp_path / "partial", tmp_path / "step_000002"
    steps = worker.save(str(partial))
    commit(partial, final, {"optimizer_steps": steps})

    torch.manual_seed(12345)
    worker = start_worker(config)
    assert worker.load(str(final), weights_only=False) == 2 * steps_per_rollout
    resumed = [worker.train(plan(config, step)[0]) for step in (2, 3)]
    for name, tensor in worker.backend.full_weights().items():
        assert torch.equal(tensor, expected[name]), name
    for before, after in zip(straight[2:], resumed, strict=True):
        for name in ("train/loss", "train/grad_norm", "train/lr", "train/kl", "train/optimizer_steps"):
            assert before[name] == after[name], name
    assert resumed[0]["train/loss"] != resumed[1]["train/loss"]


def test_weights_only_load_takes_the_model_and_no_optimizer(tiny_model, tmp_path: Path, start_worker):
    config = make_config(tiny_model)
    worker = start_worker(config)
    worker.train(plan(config, 0)[0])
    commit(tmp_path / "p", tmp_path / "c", {"optimizer_steps": worker.save(str(tmp_path / "p"))})
    expected = worker.backend.full_weights()

    worker = start_worker(config)
    assert worker.load(str(tmp_path / "c"), weights_only=True) == 0
    assert all(torch.equal(t, expected[n]) for n, t in worker.backend.full_weights().items())
    moments = {n: t for n, t in worker.backend.state_tensors().items() if n.startswith("optimizer.exp_avg.")}
    assert moments and all(float(t.full_tensor().abs().max()) == 0.0 for t in moments.values())

"""One training step through the real backend: exact under micro-batching, honest metrics, guarded against NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swe_rl.errors import UsageError
from swe_rl.trainer.batch import plan_steps, training_batch
from swe_rl.trainer.errors import TrainerError
from swe_rl.trainer.packing import TrainingSequence, make_micro_batch
from swe_rl.trainer.policy import load_policy
from tests.trainer.conftest import VOCAB, make_config, make_samples, save_tiny_model
from tests.trainer.test_worker_resume import plan


def with_engine_log_probs(model, samples, temperature=1.0):
    """What an engine with the same weights would have returned."""
    policy = load_policy(model)
    for s in samples:
        first = len(s.tokens) - s.response_length
        trained = np.arange(max(1, first), len(s.tokens))
        with torch.no_grad():
            values = policy(
                make_micro_batch([TrainingSequence(np.asarray(s.tokens), trained)]), temperature=temperature
            )
        s.rollout_log_probs = [0.0] * (s.response_length - len(trained)) + values[0].tolist()
    return samples


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean"])
def test_update_does_not_depend_on_the_micro_batches(tiny_model, start_worker, aggregation):
    results = []
    for max_tokens in (30, 90, 10_000):
        config = make_config(
            tiny_model,
            max_tokens_per_gpu=max_tokens,
            loss_aggregation=aggregation,
            kl_loss_coef=0.1,
            entropy_coef=0.01,
            log_prob_chunk_size=max_tokens,
        )
        worker = start_worker(config)
        metrics = worker.train(plan(config, 0)[0])
        results.append((metrics, worker.backend.state_tensors()))
    assert results[0][0]["train/micro_batches"] > results[1][0]["train/micro_batches"] > 1
    assert results[2][0]["train/micro_batches"] == 1
    for metrics, tensors in results[:2]:
        for name in ("train/loss", "train/grad_norm", "train/entropy", "train/mean_abs_logprob_diff"):
            assert metrics[name] == pytest.approx(results[2][0][name], rel=1e-4, abs=1e-6), name
        for name, tensor in tensors.items():
            if name.startswith("optimizer.exp_avg."):  # 0.1 times the clipped gradient of the first step
                other = results[2][1][name]
                torch.testing.assert_close(tensor.full_tensor(), other.full_tensor(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_prob_difference_to_an_equal_engine_is_zero(tiny_model, start_worker, temperature):
    config = make_config(tiny_model, rollout_temperature=temperature, num_steps_per_rollout=2)
    samples = with_engine_log_probs(tiny_model, make_samples(), temperature)
    batch = training_batch(samples, config, VOCAB)
    steps = plan_steps(batch, steps=2, aggregation="token_mean", max_tokens=64, ranks=1, seed=(0,))[0]
    metrics = start_worker(config).train(steps)
    assert metrics["train/mean_abs_logprob_diff"] < 1e-5  # of both mini-batches, before the first update
    assert metrics["train/tis_weight"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["train/tis_clipped_fraction"] == 0.0
    assert metrics["train/trained_tokens"] == batch.metrics["train/trained_tokens"]
    assert metrics["train/optimizer_steps"] == 2
    assert metrics["train/padding_share"] == 0.0


def test_the_rewarded_attempts_become_more_likely(tiny_model, start_worker):
    """Three updates on the same batch raise the log-probs of what was rewarded, against those of what was not."""
    config = make_config(tiny_model, lr=3e-3)
    samples = with_engine_log_probs(tiny_model, make_samples())
    batch = training_batch(samples, config, VOCAB)
    steps = plan_steps(batch, steps=1, aggregation="token_mean", max_tokens=500, ranks=1, seed=(0,))[0]
    worker = start_worker(config)
    micro = [make_micro_batch(row) for row in steps[0]]

    def score():
        values = worker.backend.log_probs(micro, reference=False)
        return sum(
            float((v * b.fields["advantage"] * b.fields["weight"]).sum()) for v, b in zip(values, micro, strict=True)
        )

    before = score()
    for _ in range(3):
        worker.train(steps)
    assert score() > before + 0.01


def test_kl_is_zero_before_the_first_update_and_grows(tiny_model, start_worker):
    config = make_config(tiny_model, kl_loss_coef=0.1)
    worker = start_worker(config)
    assert worker.train(plan(config, 0)[0])["train/kl"] == pytest.approx(0.0, abs=1e-6)
    assert worker.train(plan(config, 1)[0])["train/kl"] > 1e-3


def test_several_updates_clip_and_one_update_does_not(tiny_model, start_worker):
    metrics = {}
    for steps in (1, 4):
        config = make_config(tiny_model, num_steps_per_rollout=steps, lr=5e-2)
        metrics[steps] = start_worker(config).train(plan(config, 0)[0])
    assert metrics[1]["train/clip_fraction_low"] == metrics[1]["train/clip_fraction_high"] == 0.0
    assert metrics[4]["train/clip_fraction_low"] + metrics[4]["train/clip_fraction_high"] > 0.0
    assert metrics[1]["train/ppo_kl"] == 0.0 < metrics[4]["train/ppo_kl"]


def test_nothing_to_train_makes_no_step(tiny_model, start_worker):
    worker = start_worker(make_config(tiny_model))
    before = worker.backend.full_weights()
    metrics = worker.train([])
    assert metrics["train/optimizer_steps"] == 0
    assert all(torch.equal(t, before[n]) for n, t in worker.backend.full_weights().items())


def test_a_loss_that_is_not_finite_skips_the_step_and_three_stop_the_run(tiny_model, start_worker):
    config = make_config(tiny_model, max_nonfinite_steps=3)
    worker = start_worker(config)
    steps = plan(config, 0)[0]
    before = worker.backend.full_weights()
    good, bad = steps[0][0][0].fields["advantage"].copy(), steps[0][0][0].fields["advantage"] * float("nan")
    steps[0][0][0].fields["advantage"] = bad
    metrics = worker.train(steps)
    assert metrics["train/skipped"] == 1
    assert metrics["train/optimizer_steps"] == 0
    assert all(torch.equal(t, before[n]) for n, t in worker.backend.full_weights().items())
    steps[0][0][0].fields["advantage"] = good
    assert worker.train(steps)["train/skipped"] == 0  # a good step between them starts the count again
    steps[0][0][0].fields["advantage"] = bad
    worker.train(steps)
    worker.train(steps)
    with pytest.raises(TrainerError, match="3 optimizer steps in a row"):
        worker.train(steps)


def test_gradient_checkpointing_changes_nothing(tiny_model, start_worker):
    norms = []
    for checkpointing in (False, True):
        config = make_config(tiny_model, gradient_checkpointing=checkpointing)
        norms.append(start_worker(config).train(plan(config, 0)[0])["train/grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_bfloat16_computes_in_it_and_keeps_fp32_weights(tiny_model, start_worker):
    config = make_config(tiny_model, dtype="bfloat16", lr=1e-6)
    worker = start_worker(config)
    before = {n: t.full_tensor().clone() for n, t in worker.backend.state_tensors().items() if n.startswith("model.")}
    metrics = worker.train(plan(config, 0)[0])
    reference = start_worker(make_config(tiny_model)).train(plan(config, 0)[0])
    assert metrics["train/entropy"] == pytest.approx(reference["train/entropy"], rel=0.02)
    assert metrics["train/loss"] != reference["train/loss"]
    after = worker.backend.state_tensors()
    assert all(after[n].dtype == torch.float32 for n in before)
    assert any(not torch.equal(before[n], after[n].full_tensor()) for n in before)  # 1e-6 would vanish in bfloat16
    assert all(t.dtype == torch.bfloat16 for t in worker.backend.full_weights().values())


def test_a_folder_without_a_model_is_one_clear_line(tmp_path, tiny_model):
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_policy(tmp_path)
    folder = save_tiny_model(tmp_path / "m")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"final_logit_softcapping": 30.0,', 1))
    with pytest.raises(UsageError, match="final_logit_softcapping"):
        load_policy(folder)

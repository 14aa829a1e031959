"""Packing: every sequence exactly once, within bounds, equal work for all ranks, and no token sees another sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from swe_rl.errors import DataError
from swe_rl.trainer import packed_attention
from swe_rl.trainer import policy as policy_module
from swe_rl.trainer.packed_attention import PACKED_SDPA, packed_sdpa
from swe_rl.trainer.packing import MicroBatch, TrainingSequence, make_micro_batch, placeholder, plan_micro_batches
from swe_rl.trainer.policy import PackedPolicy, load_policy
from tests.trainer.conftest import VOCAB, make_config, make_samples

LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 400), st.integers(1, 5))
@settings(max_examples=200)
def test_plan_covers_every_sequence_once_within_the_bound(lengths, max_tokens, ranks):
    plan = plan_micro_batches(lengths, max_tokens, ranks)
    assert len(plan) == ranks
    assert len({len(rows) for rows in plan}) == 1  # the same number of micro-batches on every rank
    assert sorted(i for rows in plan for row in rows for i in row) == list(range(len(lengths)))
    for rows in plan:
        for row in rows:
            assert sum(lengths[i] for i in row) <= max_tokens or len(row) == 1
    assert plan == plan_micro_batches(lengths, max_tokens, ranks)


def test_plan_is_balanced_over_ranks():
    lengths = np.random.default_rng(0).lognormal(6, 0.6, 96).astype(int).tolist()
    plan = plan_micro_batches(lengths, 4096, 4)
    loads = [sum(lengths[i] for row in rows for i in row) for rows in plan]
    assert max(loads) < 1.05 * min(loads)
    needed = -(-sum(lengths) // (4 * 4096))
    assert len(plan[0]) <= needed + 1


def sequences(seed: int = 0) -> list[TrainingSequence]:
    rng = np.random.default_rng(seed)
    result = []
    for sample in make_samples(seed):
        n, m = len(sample.tokens), sample.response_length
        trained = np.flatnonzero(sample.loss_mask) + n - m
        fields = {"weight": (rng.random(len(trained)) / 100).astype(np.float32)}
        result.append(TrainingSequence(np.asarray(sample.tokens), trained, fields))
    return result


def test_micro_batch_holds_each_trained_token_once_and_nothing_else():
    chosen = sequences()[:5]
    batch = make_micro_batch(chosen)
    assert batch.tokens == sum(len(s.tokens) for s in chosen)  # no padding
    assert batch.targets.tolist() == [int(s.tokens[t]) for s in chosen for t in s.trained]
    starts = batch.cu_seqlens.tolist()
    assert batch.predict.tolist() == [
        start + t - 1 for s, start in zip(chosen, starts[:-1], strict=True) for t in s.trained
    ]
    assert len(set(batch.predict.tolist())) == len(batch.predict)
    assert [int(p) for p in batch.position_ids] == [i for s in chosen for i in range(len(s.tokens))]
    assert batch.fields["weight"].tolist() == [float(w) for s in chosen for w in s.fields["weight"]]


def test_first_token_cannot_be_trained():
    with pytest.raises(DataError, match="must have a token before it"):
        TrainingSequence(np.arange(4), np.array([0, 1]))
    with pytest.raises(DataError, match="weight"):
        TrainingSequence(np.arange(4), np.array([1, 2]), {"weight": np.ones(3, np.float32)})


def gradients(policy: PackedPolicy, batches: list[MicroBatch]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    policy.zero_grad()
    values = []
    for batch in batches:
        log_probs, entropy = policy(batch, temperature=0.8, chunk_size=16)
        (batch.fields["weight"] * (log_probs + 0.1 * entropy)).sum().backward()
        values.append(log_probs.detach())
    return values, {name: p.grad.clone() for name, p in policy.named_parameters()}


@pytest.mark.parametrize("model", ["tiny_model", "untied_model"])
def test_packed_equals_one_by_one_equals_padded(model, request):
    folder = request.getfixturevalue(model)
    policy, chosen = load_policy(folder), sequences()
    packed_values, packed = gradients(policy, [make_micro_batch(chosen)])
    single_values, single = gradients(policy, [make_micro_batch([s]) for s in chosen])
    torch.testing.assert_close(packed_values[0], torch.cat(single_values), rtol=0, atol=1e-5)

    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")  # the slow obvious way
    longest = max(len(s.tokens) for s in chosen)
    ids = torch.zeros(len(chosen), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, s in enumerate(chosen):
        ids[row, : len(s.tokens)] = torch.from_numpy(s.tokens)
        mask[row, : len(s.tokens)] = 1
    log_p = torch.log_softmax(plain(input_ids=ids, attention_mask=mask).logits / 0.8, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    loss = torch.tensor(0.0)
    for row, s in enumerate(chosen):
        before = torch.from_numpy(s.trained) - 1
        picked = log_p[row, before, torch.from_numpy(s.tokens)[s.trained]]
        loss = loss + (torch.from_numpy(s.fields["weight"]) * (picked + 0.1 * entropy[row, before])).sum()
    loss.backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(packed[f"model.{name}"], single[f"model.{name}"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(packed[f"model.{name}"], parameter.grad, rtol=1e-5, atol=1e-6)
        assert parameter.grad.abs().max() > 1e-3


def test_no_token_sees_its_neighbour_in_the_row(tiny_model):
    policy, (a, b, c, *_) = load_policy(tiny_model), sequences()
    other = TrainingSequence((b.tokens + 1) % VOCAB, b.trained, b.fields)
    with torch.no_grad():
        first = policy(make_micro_batch([a, b, c]))[0]
        second = policy(make_micro_batch([a, other, c]))[0]
    n, m = len(a.trained), len(b.trained)
    torch.testing.assert_close(first[:n], second[:n], rtol=0, atol=1e-6)
    torch.testing.assert_close(first[n + m :], second[n + m :], rtol=0, atol=1e-6)
    assert (first[n : n + m] - second[n : n + m]).abs().max() > 1e-2


def test_placeholder_trains_nothing(tiny_model):
    policy = load_policy(tiny_model)
    _, grads = gradients(policy, [make_micro_batch([placeholder(["weight"])])])
    assert all(float(g.abs().max()) == 0.0 for g in grads.values())


def test_sliding_window_equals_a_dense_mask():
    g = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 12, 8, generator=g)
    k, v = (torch.randn(1, 2, 12, 8, generator=g) for _ in range(2))
    starts = torch.tensor([0, 9, 12], dtype=torch.int32)
    out, _ = packed_sdpa(torch.nn.Module(), q, k, v, None, sliding_window=4, cu_seq_lens_q=starts)
    i = torch.arange(12)
    same = (i[:, None] >= 9) == (i[None, :] >= 9)
    mask = same & (i[:, None] >= i[None, :]) & (i[:, None] - i[None, :] < 4)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(out, dense.transpose(1, 2), rtol=0, atol=1e-6)


def test_padded_rows_are_refused():
    q = torch.zeros(2, 1, 3, 8)
    with pytest.raises(ValueError, match=PACKED_SDPA):
        packed_sdpa(torch.nn.Module(), q, q, q, None, cu_seq_lens_q=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=PACKED_SDPA):
        packed_sdpa(torch.nn.Module(), q[:1], q[:1], q[:1], None)


@pytest.mark.parametrize(
    ("device", "dtype", "name"),
    [
        ("cuda:0", torch.bfloat16, "flash_attention_2"),
        ("cuda:0", torch.float32, PACKED_SDPA),  # FlashAttention has no kernel for it: it raises at the first step
        ("cpu", torch.bfloat16, PACKED_SDPA),
    ],
)
def test_flash_attention_is_chosen_only_for_dtypes_it_has(device, dtype, name, monkeypatch):
    monkeypatch.setattr(packed_attention, "is_flash_attn_2_available", lambda: True)
    assert packed_attention.choose_attention(torch.device(device), dtype) == name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_is_chosen_by_what_layers_compute_in(dtype, tiny_model, monkeypatch, start_worker):
    """Weights stay in fp32 under bfloat16; what attention gets are activations."""
    asked = []

    def choose(device: torch.device, dtype: torch.dtype) -> str:
        asked.append(dtype)
        return PACKED_SDPA

    monkeypatch.setattr(policy_module, "choose_attention", choose)
    start_worker(make_config(tiny_model, dtype=dtype))
    assert asked == [getattr(torch, dtype)]

"""The Hugging Face export: transformers loads it, and it says what the trained policy says."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from swe_rl.trainer.packing import make_micro_batch
from tests.trainer.conftest import make_config
from tests.trainer.test_packing import sequences
from tests.trainer.test_worker_resume import plan


@pytest.mark.parametrize("model", ["tiny_model", "untied_model"])
def test_transformers_loads_the_export(model, request, tmp_path, start_worker):
    source = request.getfixturevalue(model)
    (source / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    config = make_config(source)
    worker = start_worker(config)
    worker.train(plan(config, 0)[0])
    folder = tmp_path / "hf"
    worker.export_hf(str(folder))
    worker.export_hf(str(folder))  # again: replaced, not mixed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]
    assert (folder / "tokenizer_config.json").read_bytes() == (source / "tokenizer_config.json").read_bytes()

    loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tied = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert tied == (model == "tiny_model")
    original = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager")
    sequence = sequences()[0]
    ids = torch.from_numpy(sequence.tokens)[None]
    picked = torch.from_numpy(sequence.tokens)[sequence.trained]
    before = torch.from_numpy(sequence.trained) - 1
    with torch.no_grad():
        exported = torch.log_softmax(loaded(ids).logits[0], -1)[before, picked]
        untrained = torch.log_softmax(original(ids).logits[0], -1)[before, picked]
    trained = worker.backend.log_probs([make_micro_batch([sequence])], reference=False)[0]
    torch.testing.assert_close(exported, trained, rtol=0, atol=1e-5)
    assert (untrained - trained).abs().max() > 1e-2


def test_full_weights_are_a_copy(tiny_model, start_worker):
    config = make_config(tiny_model)
    worker = start_worker(config)
    weights = worker.backend.full_weights()
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    worker.train(plan(config, 0)[0])
    assert all(torch.equal(weights[name], kept[name]) for name in kept)
    assert any(not torch.equal(t, kept[n]) for n, t in worker.backend.full_weights().items())

"""The hand-set circuit copies before any training, in the stock architecture, saved and loaded."""

import torch
from transformers import AutoModelForCausalLM

from swe_rl.policy.model import new_policy, tiny_config
from swe_rl.policy.tokenizer import train_tokenizer


def copied_share(model: torch.nn.Module, vocabulary: int) -> float:
    """How often the second occurrence of a random sequence is predicted by greedy choice."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, vocabulary, (4, 60), generator=generator)
    with torch.no_grad():
        predicted = model(torch.cat([ids, ids], 1)).logits.argmax(-1)
    return (predicted[:, 61:-1] == ids[:, 2:]).float().mean().item()


def test_untrained_policy_copies(tmp_path) -> None:
    tokenizer = train_tokenizer(["abc def ghi " * 10], vocab_size=400)
    config = tiny_config(tokenizer)
    config.vocab_size = 1024
    model = new_policy(config, seed=1).eval()
    assert copied_share(model, 1024) > 0.3
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert copied_share(loaded, 1024) == copied_share(model, 1024)
    assert sum(p.numel() for p in model.parameters()) < 15_000_000


def test_equal_seeds_equal_weights() -> None:
    tokenizer = train_tokenizer(["abc"], vocab_size=300)
    one, two = (new_policy(tiny_config(tokenizer), seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_without_the_circuit_nothing_is_copied() -> None:
    tokenizer = train_tokenizer(["abc"], vocab_size=300)
    config = tiny_config(tokenizer)
    config.vocab_size = 1024
    model = new_policy(config, seed=1).eval()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, :64] = 0.0
    assert copied_share(model, 1024) < 0.05

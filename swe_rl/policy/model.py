"""A tiny Qwen3 (stock architecture, so that SGLang serves it) whose first layer starts with a previous-token head.

Copying needs two heads in a row: one that tells each position its predecessor, one that matches it. Tiny models take most of
a short training run to find the first; setting it by hand leaves the second to the gradient (induction heads: Olsson et al.,
arXiv:2209.11895).
"""

from __future__ import annotations

import math

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CONSTANT_DIMENSION = 0  # every embedding holds the same value here: what a bias would be
ROTATED_PAIRS = 10  # fastest RoPE frequencies that the previous-token head uses


def tiny_config(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int = 256, layers: int = 4, mlp: int = 512, kv_heads: int = 2
) -> Qwen3Config:
    """A configuration of 2-3 million parameters at the defaults; head size 64."""
    return Qwen3Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
    )


def new_policy(config: Qwen3Config, *, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised model in float32; equal seeds give equal weights."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).float()
    set_previous_token_head(model)
    return model


@torch.no_grad()
def set_previous_token_head(model: Qwen3ForCausalLM) -> None:
    """Make query head 0 of layer 0 attend to position t-1 and write that token's embedding into the stream.

    Query and key come from the constant dimension alone, so both are fixed vectors; RoPE turns them by position, and the query
    is turned back by one step, so that their product is largest one position behind.
    """
    config = model.config
    size, half = config.head_dim, config.head_dim // 2
    attention = model.model.layers[0].self_attn
    embedding = model.model.embed_tokens.weight
    embedding[:, CONSTANT_DIMENSION] = 4 * embedding.std()
    pairs = torch.arange(ROTATED_PAIRS)
    frequency = 10000.0 ** (-2.0 * pairs / size)
    q_rows, k_rows = attention.q_proj.weight[:size], attention.k_proj.weight[:size]
    q_rows.zero_(), k_rows.zero_()
    k_rows[pairs, CONSTANT_DIMENSION] = 1.0
    q_rows[pairs, CONSTANT_DIMENSION] = torch.cos(frequency)  # the query of position t looks like a key of t-1
    q_rows[pairs + half, CONSTANT_DIMENSION] = -torch.sin(frequency)
    attention.q_norm.weight.fill_(2.5)
    attention.k_norm.weight.fill_(2.5)
    project = torch.randn(size, config.hidden_size) / math.sqrt(config.hidden_size)
    project[:, CONSTANT_DIMENSION] = 0.0
    attention.v_proj.weight[:size] = project
    attention.o_proj.weight[:, :size] = torch.randn(config.hidden_size, size) / math.sqrt(size) * embedding.std() * 2

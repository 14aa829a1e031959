"""A tiny Qwen3 (stock architecture, so that SGLang serves it) that starts with a hand-set copying circuit.

Copying needs two heads in a row (induction heads: Olsson et al., arXiv:2209.11895): one tells each position its predecessor's
token, the next finds the earlier position whose predecessor is the present token, and repeats what stands there. Models of a few
million parameters did not find it in four million tokens of demonstrations here; set by hand, it is there from the first step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HEAD = 64  # head size; also the width of the residual stream's last part, which holds the previous token
HALF = HEAD // 2  # RoPE turns dimension i together with i + HALF
CONSTANT = 0  # residual dimension with the same value in every embedding: what a bias would be
FAST_PAIRS = torch.arange(10)  # RoPE pairs that tell neighbours apart
SLOW_PAIRS = torch.arange(20, HALF)  # RoPE pairs that hardly turn over a few hundred positions
EMBEDDING_STD = 0.02


def tiny_config(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int = 192, layers: int = 4, mlp: int = 512, kv_heads: int = 1
) -> Qwen3Config:
    """A configuration of 1.8 million parameters at the defaults."""
    return Qwen3Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=kv_heads,
        head_dim=HEAD,
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
    set_copying_heads(model)
    return model


@torch.no_grad()
def set_copying_heads(model: Qwen3ForCausalLM) -> None:
    """Give head 0 of layer 0 the previous token's identity to write, and head 0 of layer 1 the continuation to repeat.

    The last `HEAD` residual dimensions are kept free of embeddings for the first head's writing. What else layers write starts
    small, so that it does not drown the circuit.
    """
    embedding = model.model.embed_tokens.weight
    free = slice(model.config.hidden_size - HEAD, model.config.hidden_size)
    embedding[:, free] = 0.0
    embedding[:, CONSTANT] = 4 * EMBEDDING_STD
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.05)
        layer.mlp.down_proj.weight.mul_(0.1)
    identity = _previous_token_head(model.model.layers[0].self_attn, free)
    _induction_head(model.model.layers[1].self_attn, identity, free)
    model.model.norm.weight.fill_(3.0)  # tied embeddings are small: logits need the scale


def _previous_token_head(attention: Any, free: slice) -> torch.Tensor:
    """Query and key are fixed vectors; RoPE turns them by position, and the query is turned back by one step, so that their
    product is largest one position behind. Returns the projection [HEAD, hidden] of a token that the head writes."""
    frequency = 10000.0 ** (-2.0 * FAST_PAIRS / HEAD)
    query, key = attention.q_proj.weight[:HEAD], attention.k_proj.weight[:HEAD]
    query.zero_()
    key.zero_()
    key[FAST_PAIRS, CONSTANT] = 1.0
    query[FAST_PAIRS, CONSTANT] = torch.cos(frequency)
    query[FAST_PAIRS + HALF, CONSTANT] = -torch.sin(frequency)
    attention.q_norm.weight.fill_(2.5)
    attention.k_norm.weight.fill_(2.5)
    hidden = attention.q_proj.weight.shape[1]
    identity = torch.randn(HEAD, hidden) / math.sqrt(hidden)
    identity[:, CONSTANT] = 0.0
    identity[:, free] = 0.0
    attention.v_proj.weight[:HEAD] = identity
    attention.o_proj.weight[:, :HEAD] = 0.0
    attention.o_proj.weight[free] = 0.0
    attention.o_proj.weight[free, :HEAD] = 2 * EMBEDDING_STD * torch.eye(HEAD)
    return identity


def _induction_head(attention: Any, identity: torch.Tensor, free: slice) -> None:
    """The query is the present token's identity, the key the previous token's; the value is the key position's own token."""
    slow = torch.cat([SLOW_PAIRS, SLOW_PAIRS + HALF])
    query, key = attention.q_proj.weight[:HEAD], attention.k_proj.weight[:HEAD]
    query.zero_()
    key.zero_()
    query[slow] = identity[slow]
    key[slow, free.start + slow] = 1.0
    attention.q_norm.weight.fill_(3.0)
    attention.k_norm.weight.fill_(3.0)
    tokens = slice(CONSTANT + 1, free.start)  # where embeddings live
    basis = torch.linalg.qr(torch.randn(free.start - 1, HEAD))[0]
    attention.v_proj.weight[:HEAD] = 0.0
    attention.v_proj.weight[:HEAD, tokens] = basis.T
    attention.o_proj.weight[:, :HEAD] = 0.0
    attention.o_proj.weight[tokens, :HEAD] = 3 * EMBEDDING_STD * basis

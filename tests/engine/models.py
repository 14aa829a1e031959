"""Tiny random checkpoints for engine tests: real transformers models, real tokenizer files, fixed seeds."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 512
EOS = 511
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
}


def qwen3(seed: int = 0, *, scale: float = 0.15) -> Qwen3ForCausalLM:
    """A random Qwen3 with tied embeddings. `scale` spreads the weights so that logits differ clearly between tokens."""
    torch.manual_seed(seed)
    config = Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True, initializer_range=scale)
    return Qwen3ForCausalLM(config).eval()


def llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False, initializer_range=0.15)).eval()


def save(model: torch.nn.Module, folder: Path) -> Path:
    """Write model and a byte-level tokenizer (256 bytes, then fillers, last id end-of-sequence)."""
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fillers = [f"<f{i}>" for i in range(VOCABULARY - len(letters) - 1)]
    vocabulary = {token: i for i, token in enumerate([*letters, *fillers, "<|end|>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(folder)
    return folder

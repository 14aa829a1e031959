"""The model behind the engine: loads a Hugging Face folder, runs packed batches, takes new weights in place."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from swe_rl.engine.embedded import attention
from swe_rl.engine.embedded.attention import PackedBatch
from swe_rl.engine.embedded.kv_rows import KVRows
from swe_rl.engine.wire import NamedTensors
from swe_rl.errors import DataError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAYER_KINDS = {"full_attention", "sliding_attention"}


class ModelRunner:
    """A causal LM in evaluation mode on the CPU. Only the scheduler's thread calls `forward` and `update`."""

    def __init__(self, path: str, dtype: str) -> None:
        self.path = path
        self.model = _load(path, DTYPES[dtype])
        self.config = self.model.config.get_text_config()
        kinds = set(getattr(self.config, "layer_types", None) or [])
        if not kinds <= LAYER_KINDS:
            raise DataError(
                f"{path}: layers of kind {sorted(kinds - LAYER_KINDS)}; the embedded engine has attention only"
            )
        self.vocabulary = int(self.config.vocab_size)
        self.context_length = int(getattr(self.config, "max_position_embeddings", 0) or 4096)
        self.eos_ids = _eos_ids(self.config, self.model.generation_config)

    def new_rows(self, max_tokens: int) -> KVRows:
        """Rows for this model of at most `max_tokens` cells together."""
        config = self.config
        heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        return KVRows(
            int(config.num_hidden_layers),
            heads,
            size,
            self.model.dtype,
            max_length=self.context_length,
            max_tokens=max_tokens,
        )

    @torch.inference_mode()
    def forward(self, tokens: Rows[int], positions: Rows[int], batch: PackedBatch, wanted: Rows[int]) -> torch.Tensor:
        """Run packed tokens [n] and return the logits [len(wanted), vocabulary] of the packed positions `wanted`."""
        return self.model(
            input_ids=torch.tensor([tokens]),
            position_ids=torch.tensor([positions]),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, dtype=torch.long),
            batch=batch,
        ).logits[0]

    @torch.inference_mode()
    def update(self, named: NamedTensors) -> None:
        """Copy tensors into the model. Every name and shape is checked first: a refused update changes nothing.

        Raises DataError naming the tensor.
        """
        own = self.model.state_dict()
        for name, tensor in named:
            if name not in own:
                raise DataError(f"weight update: the model has no tensor {name!r}")
            if own[name].shape != tensor.shape:
                raise DataError(
                    f"weight update: {name} is {list(tensor.shape)}, the model's is {list(own[name].shape)}"
                )
            if not tensor.is_floating_point():
                raise DataError(f"weight update: {name} is {tensor.dtype}, not a floating point tensor")
        for name, tensor in named:
            own[name].copy_(tensor)

    def read_weights(self, path: str) -> NamedTensors:
        """All weights of a Hugging Face folder with the same architecture. Raises DataError if any is missing or broken."""
        files = sorted(Path(path).glob("*.safetensors"))
        if not files:
            raise DataError(f"{path}: no *.safetensors file; save the model with save_pretrained()")
        try:
            named = [pair for file in files for pair in load_file(file).items()]
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: broken weights: {error}") from error
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        missing = self.model.state_dict().keys() - {name for name, _ in named} - tied
        if missing:
            raise DataError(f"{path}: {len(missing)} weights are missing, first {sorted(missing)[0]!r}")
        return named


def _load(path: str, dtype: torch.dtype) -> Any:
    if not (Path(path) / "config.json").is_file():
        raise DataError(f"{path}: not a Hugging Face model folder (no config.json)")
    try:
        config = AutoConfig.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, attn_implementation=attention.NAME, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be loaded as a causal LM: {error}") from error
    return model.eval().requires_grad_(False)


def _eos_ids(*configs: Any) -> frozenset[int]:
    """All end-of-sequence ids that the model's and the generation config name."""
    found: set[int] = set()
    for config in configs:
        value = getattr(config, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    return frozenset(found)

"""A transformers causal LM that takes packed micro-batches and answers with log-probs instead of logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from swe_rl.errors import UsageError
from swe_rl.trainer.log_probs import chunked_log_probs
from swe_rl.trainer.packed_attention import choose_attention
from swe_rl.trainer.packing import MicroBatch

# Config attributes of architectures whose head is not a plain linear map, with the value that means "off".
_HEAD_OPTIONS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


class PackedPolicy(nn.Module):
    """Wraps a causal LM: `policy(micro_batch)` gives (log_probs [M], entropy [M]) of the trained tokens, fp32."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def decoder(self) -> nn.Module:
        """The model without its language-model head."""
        return self.model.get_decoder()

    def forward(
        self, batch: MicroBatch, *, temperature: float = 1.0, chunk_size: int = 1024
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one packed row; see `chunked_log_probs` for what temperature and chunk size mean."""
        hidden = self.decoder(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            use_cache=False,
            cu_seq_lens_q=batch.cu_seqlens,
            cu_seq_lens_k=batch.cu_seqlens,
            max_length_q=batch.max_seqlen,
            max_length_k=batch.max_seqlen,
        ).last_hidden_state[0]
        head = self.model.get_output_embeddings().weight
        return chunked_log_probs(
            hidden.index_select(0, batch.predict), head, batch.targets, temperature=temperature, chunk_size=chunk_size
        )


def load_policy(
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compute_dtype: torch.dtype | None = None,
    gradient_checkpointing: bool = False,
) -> PackedPolicy:
    """Load a local Hugging Face folder for training, without dropout (the engine samples without it).

    dtype: of the weights. compute_dtype: of the layers' arithmetic, where mixed precision makes it another one.
    Raises UsageError where the folder is none, or the architecture computes logits in a way that the chunked head
    would not reproduce.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UsageError(f"hf_checkpoint '{folder}' is not a Hugging Face model folder: it has no config.json")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    _refuse_special_heads(config)
    for name in ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
        if getattr(config, name, None):
            setattr(config, name, 0.0)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=choose_attention(device, compute_dtype or dtype),
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"hf_checkpoint '{folder}' cannot be loaded: {error}") from error
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise UsageError(f"{config.model_type}: a language-model head with a bias is not supported")
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return PackedPolicy(model).to(device).train()


def _refuse_special_heads(config: Any) -> None:
    for name, off in _HEAD_OPTIONS.items():
        if getattr(config, name, off) not in (off, None):
            raise UsageError(f"{config.model_type}: '{name}' in config.json changes the logits; not supported yet")

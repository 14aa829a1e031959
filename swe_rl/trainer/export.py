"""A Hugging Face folder of the trained policy: config, safetensors, tokenizer. Engines, evaluation and users load it."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from swe_rl.trainer.backends.base import TrainBackend

# Files that belong to the tokenizer or to generation, copied byte for byte: saving a loaded tokenizer may change it.
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def export_hf(backend: TrainBackend, weights: dict[str, torch.Tensor], source: str | Path, folder: Path) -> None:
    """Write `folder` (beside it first, then renamed; one that is there is replaced). Rank 0 only.

    weights: from `TrainBackend.full_weights`. source: the folder whose tokenizer files are copied.
    """
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        backend.save_hf(partial, weights)
        for name in _COPIED:
            if (Path(source) / name).is_file():
                shutil.copyfile(Path(source) / name, partial / name)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise

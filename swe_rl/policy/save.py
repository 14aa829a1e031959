"""A new policy's Hugging Face folder, written so that a folder which holds weights is a finished one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def save_policy(model: Any, tokenizer: Any, out: Path) -> None:
    """Write model and tokenizer beside `out` first, then move each file into it, the weights last.

    Whoever finds weights in `out` can use it, also after an interruption; other files that are there stay.
    """
    out = out.absolute()
    beside = out.with_name(f".partial-{out.name}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        out.mkdir(exist_ok=True)
        for file in sorted(beside.iterdir(), key=lambda file: file.suffix == ".safetensors"):
            file.replace(out / file.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)

"""A policy's folder is there whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from swe_rl.policy.model import new_policy, tiny_config
from swe_rl.policy.save import save_policy
from swe_rl.policy.tokenizer import train_tokenizer


class FullDisk:
    """A tokenizer that cannot be written, after the weights were."""

    def save_pretrained(self, folder: Path) -> None:
        assert (folder / "model.safetensors").exists()
        raise OSError(28, "No space left on device")


class NoMove:
    """A tokenizer with a folder where one of the policy's files must go: moving the files fails on the way."""

    def __init__(self, tokenizer: Any, out: Path) -> None:
        self.tokenizer, self.out = tokenizer, out

    def save_pretrained(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
        (self.out / "tokenizer.json" / "x").mkdir(parents=True)


def test_a_folder_with_weights_is_finished(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["abc"], vocab_size=300)
    model = new_policy(tiny_config(tokenizer, layers=2), seed=1)
    with pytest.raises(OSError, match="No space"):
        save_policy(model, FullDisk(), tmp_path / "a" / "out")
    assert list((tmp_path / "a").iterdir()) == []
    with pytest.raises(OSError, match="directory"):
        save_policy(model, NoMove(tokenizer, tmp_path / "b"), tmp_path / "b")
    assert not (tmp_path / "b" / "model.safetensors").exists()
    out = tmp_path / "c"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    save_policy(model, tokenizer, out)
    assert (out / "mine.txt").read_text() == "kept"
    assert len(AutoTokenizer.from_pretrained(out)) == len(tokenizer)
    assert AutoModelForCausalLM.from_pretrained(out).config.vocab_size == model.config.vocab_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]

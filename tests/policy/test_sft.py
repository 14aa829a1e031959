"""SFT learns, stops for bad rows by name, and a run that was interrupted ends with the same weights as one that was not."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from swe_rl.errors import DataError, UsageError
from swe_rl.policy.model import new_policy, tiny_config
from swe_rl.policy.tokenizer import train_tokenizer
from swe_rl.trainer import sft
from swe_rl.trainer.sft_data import load_demonstrations


@pytest.fixture
def start(tmp_path):
    """A small untrained policy and demonstrations that always answer with the same three tokens."""
    tokenizer = train_tokenizer(["abc def"], vocab_size=300)
    model = new_policy(tiny_config(tokenizer, layers=2, mlp=64), seed=1)
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    data = tmp_path / "demos.jsonl"
    rows = [
        {"tokens": [*range(10, 20 + i % 5), 7, 8, 9], "prompt_length": 10 + i % 5, "loss_mask": [1, 1, 1]}
        for i in range(64)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path, data


def arguments(folder, data, out, *extra: str) -> list[str]:
    common = ["--hf-checkpoint", str(folder / "start"), "--data", str(data), "--out", str(folder / out)]
    return [
        *common,
        "--batch-tokens",
        "128",
        "--epochs",
        "2",
        "--warmup",
        "2",
        "--copy-steps",
        "2",
        "--copy-rows",
        "1",
        *extra,
    ]


def test_learns_and_exports(start) -> None:
    folder, data = start
    log = folder / "log.jsonl"
    assert sft.main(arguments(folder, data, "out", "--log", str(log))) == 0
    losses = [json.loads(line)["answer_loss"] for line in log.read_text().splitlines()][2:]
    assert losses[-1] < losses[0] / 2
    model = AutoModelForCausalLM.from_pretrained(folder / "out").eval()
    with torch.no_grad():
        assert model(torch.tensor([[*range(10, 20)]])).logits[0, -1].argmax() == 7


def test_interrupted_equals_uninterrupted(start) -> None:
    folder, data = start
    assert sft.main(arguments(folder, data, "whole")) == 0
    args = sft.build_parser().parse_args(arguments(folder, data, "parts", "--save-interval", "5"))
    run = sft.SftRun(args, load_demonstrations([str(data)], max_tokens=1024))
    for record in run.steps():
        if record["step"] == 7:  # two steps past the last saved state
            break
    run.close()
    assert sft.main(arguments(folder, data, "parts")) == 0
    whole, parts = (AutoModelForCausalLM.from_pretrained(folder / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_state_of_another_run_is_refused(start) -> None:
    folder, data = start
    assert sft.main(arguments(folder, data, "out")) == 0
    with pytest.raises(DataError, match="other data"):
        sft.main(arguments(folder, data, "out", "--seed", "9"))


def test_bad_rows_are_named(start) -> None:
    folder, data = start
    with data.open("a") as stream:
        stream.write(json.dumps({"tokens": [1, 2], "prompt_length": 1, "loss_mask": [1, 1]}) + "\n")
    with pytest.raises(DataError, match=r"demos\.jsonl:65"):
        sft.main(arguments(folder, data, "out"))
    with pytest.raises(UsageError, match=r"config\.json"):
        sft.main(["--hf-checkpoint", str(folder / "none"), "--data", str(data), "--out", str(folder / "x")])

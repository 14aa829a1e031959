"""SFT learns, stops for bad rows by name, and a run that was interrupted ends with the same weights as one that was not."""

import json
import shutil
from collections.abc import Iterator

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


@pytest.fixture
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# Where it runs, how fast and how often it is saved may change. With other threads sums are rounded in another way, and
# the optimizer divides small differences by small numbers: weights that training has moved by 0.01 differ by 1e-5.
@pytest.mark.parametrize(("flags", "tolerance"), [(["--save-interval", "9"], 0.0), (["--threads", "2"], 1e-3)])
def test_interrupted_equals_uninterrupted(start, restored_threads, flags: list[str], tolerance: float) -> None:
    folder, data = start
    assert sft.main(arguments(folder, data, "whole")) == 0
    args = sft.build_parser().parse_args(arguments(folder, data, "parts", "--save-interval", "5"))
    run = sft.SftRun(args, load_demonstrations([str(data)], max_tokens=1024, vocabulary=300))
    for record in run.steps():
        if record["step"] == 7:  # two steps past the last saved state
            break
    run.close()
    assert sft.main(arguments(folder, data, "parts", *flags)) == 0
    whole, parts = (AutoModelForCausalLM.from_pretrained(folder / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.allclose(whole[name], parts[name], rtol=0.0, atol=tolerance) for name in whole)


def state_only(folder, data, out: str) -> None:
    """A run that was interrupted after its second step, in which it was saved."""
    args = sft.build_parser().parse_args(arguments(folder, data, out, "--save-interval", "1"))
    run = sft.SftRun(args, load_demonstrations([str(data)], max_tokens=1024, vocabulary=300))
    for record in run.steps():
        if record["step"] == 2:
            break
    run.close()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--seed", "9"], r"--seed 1 \(now 9\)"),
        (["--lr", "1e-9", "--copy-rows", "0"], r"--copy-rows 1 \(now 0\), --lr 0.001 \(now 1e-09\)"),
        ([], r"--data \(its content\)"),
    ],
)
def test_state_of_another_run_is_refused(start, flags: list[str], named: str) -> None:
    folder, data = start
    state_only(folder, data, "out")
    if not flags:  # as many rows and steps, other tokens
        data.write_text(data.read_text().replace("7, 8, 9", "7, 9, 8"))
    with pytest.raises(DataError, match=f"made with other settings: {named};"):
        sft.main(arguments(folder, data, "out", *flags))
    assert not (folder / "out" / "sft.json").exists()


@pytest.mark.parametrize("whole", [True, False])
def test_a_save_that_was_killed_between_its_renames_loses_nothing(start, capsys, whole: bool) -> None:
    folder, data = start
    state_only(folder, data, "out")
    out = folder / "out"
    shutil.copytree(out / "state", out / ".partial-state")
    (out / "state").rename(out / ".replaced-state")
    if not whole:
        (out / ".partial-state" / "state.json").unlink()
    assert sft.main(arguments(folder, data, "out")) == 0
    assert "continuing at step 2 " in capsys.readouterr().out
    assert not list(out.glob(".*-state"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tokens": [1, 2], "prompt_length": 1, "loss_mask": [1, 1]}, "do not fit"),
        ({"tokens": [1], "prompt_length": -1, "loss_mask": [1, 1]}, "prompt_length -1.*do not fit"),
        ({"tokens": [1, 2], "prompt_length": 1.0, "loss_mask": [1]}, "do not fit"),
        ({"tokens": [1, 5000], "prompt_length": 1, "loss_mask": [1]}, "token 5000: ids .* from 0 to"),
        ({"tokens": [-1, 2], "prompt_length": 1, "loss_mask": [1]}, "token -1: "),
        ({"tokens": [1, 2**40], "prompt_length": 1, "loss_mask": [1]}, "token 1099511627776: "),
        ({"tokens": [1, 2.5], "prompt_length": 1, "loss_mask": [1]}, "token 2.5: "),
        ({"tokens": [1, 2], "prompt_length": 1, "loss_mask": ["0"]}, "other than 0 and 1"),
        ({"tokens": [1, 2], "prompt_length": 1, "loss_mask": [0]}, "no answer token"),
        ({"tokens": [1, 2], "prompt_length": 0, "loss_mask": [1, 0]}, "no answer token"),
        ({"tokens": 7, "prompt_length": 1, "loss_mask": [1]}, "not a demonstration row"),
        ([1, 2], "not a demonstration row"),
    ],
)
def test_bad_rows_are_named(start, row: object, reason: str) -> None:
    folder, data = start
    with data.open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=rf"demos\.jsonl:65: .*{reason}"):
        sft.main(arguments(folder, data, "out"))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--save-interval", "0"], "--save-interval 0: must be at least 1"),
        (["--row-tokens", "0"], "--row-tokens 0: must be at least 1"),
        (["--batch-tokens", "50"], "--batch-tokens 50: .* at least 96"),
        (["--batch-tokens", "0", "--copy-steps", "0"], "--batch-tokens 0: "),
        (["--lr", "nan"], "--lr nan: must be above 0"),
        (["--warmup", "-1"], "--warmup -1: "),
        (["--context-weight", "1"], "--context-weight 1.0: "),
        (["--hf-checkpoint", "/nowhere"], r"no config\.json"),
    ],
)
def test_bad_arguments_are_named(start, flags: list[str], reason: str) -> None:
    folder, data = start
    with pytest.raises(UsageError, match=reason):
        sft.main(arguments(folder, data, "out", *flags))


def test_a_folder_of_no_model_is_named(start) -> None:
    folder, data = start
    (folder / "start" / "config.json").write_text('{"vocab_size": 3}')
    with pytest.raises(UsageError, match=r"config\.json cannot be used"):
        sft.main(arguments(folder, data, "out"))

"""A policy that a wild learning rate destroys comes back bit for bit, with its optimizer, and trains on as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swe_rl.trainer.checkpoint_folder import checkpoint_folder, list_checkpoints
from swe_rl.trainer.group import TrainerGroup
from swe_rl.trainer.guard.recovery import Recovery
from swe_rl.trainer.guard.watch import Alarm
from tests.private_ray import private_ray
from tests.trainer.conftest import make_config, make_samples

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    with private_ray():
        yield


class Run:
    """What the driver does of a step, without attempts: the trainer's entropy stands for that of the sampled tokens."""

    def __init__(self, group: TrainerGroup, folder: Path) -> None:
        self.group, self.folder, self.step = group, folder, 0
        self.recovery = Recovery(group.config, group)

    def train(self) -> Alarm | None:
        self.step += 1
        metrics = self.group.train(self.step - 1, make_samples(seed=self.step))
        rollout = {"resolve_rate": 0.5, "groups": 3.0, "entropy": metrics["train/entropy"]}
        return self.recovery.judge(self.step, rollout, {}, sampled_after=self.step - 1)

    def save(self, *, restored: bool = False) -> None:
        path = checkpoint_folder(self.folder, self.step)
        state = {"step": self.step, "guard": self.recovery.state_dict()}
        self.group.save(path, state, spare=self.recovery.good.needed())
        self.recovery.saved(self.step, path, restored=restored)

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.group.export_hf(self.folder / name) / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def wreck(run: Run) -> Alarm:
    """Steps whose learning rate nobody would choose, until the guard speaks."""
    for _ in range(4):
        if alarm := run.train():
            return alarm
    raise AssertionError("the guard did not notice")


def test_back_to_the_checkpoint_that_was_seen_to_work(tiny_model, tmp_path):
    with TrainerGroup(make_config(tiny_model, lr=1e-4)) as group:
        sane = Run(group, tmp_path)
        for _ in range(2):
            assert sane.train() is None
        sane.save()
        good = sane.weights("good")
        assert sane.recovery.good.path is None  # nobody has seen these weights work
        assert sane.train() is None
        assert sane.recovery.good.path == checkpoint_folder(tmp_path, 2)

    with TrainerGroup(make_config(tiny_model, lr=3.0, save_keep=1)) as group:
        wild = Run(group, tmp_path)
        good_path = checkpoint_folder(tmp_path, 2)
        state = group.load(good_path)
        wild.step = state["step"]
        wild.recovery.resume(wild.step, good_path, state["guard"], own=True)
        wild.train()  # sampled by the good weights, so that they count as good; its update wrecks them
        wrecked = wild.weights("wrecked")
        wild.save()
        assert list_checkpoints(tmp_path) == [
            good_path,
            checkpoint_folder(tmp_path, 3),
        ]  # save_keep 1, and the good one
        alarm = wreck(wild)
        event = wild.recovery.restore(alarm)
        assert (alarm.reason, event["back_to"], event["undone_optimizer_steps"]) == ("entropy", 2, wild.step - 2)
        assert same(wild.weights("restored"), good) and group.optimizer_steps == 2
        wild.save(restored=True)
        assert list_checkpoints(tmp_path) == [good_path, checkpoint_folder(tmp_path, wild.step)]
        assert wild.recovery.good.path == checkpoint_folder(tmp_path, wild.step)
        group.train(2, make_samples(seed=3))  # the optimizer's state is back too: the same step has the same outcome
        assert same(wild.weights("again"), wrecked)


def test_back_to_the_start(tiny_model, tmp_path):
    with TrainerGroup(make_config(tiny_model, lr=3.0)) as group:
        run = Run(group, tmp_path / "c")
        start = run.weights("start")
        alarm = wreck(run)
        assert alarm.reason == "entropy" and not same(run.weights("wrecked"), start)
        event = run.recovery.restore(alarm)
        assert event["back_to"] == 0 and event["undone_optimizer_steps"] == 3 and group.optimizer_steps == 0
        assert same(run.weights("restored"), start)
        assert run.recovery.guard.steps == 0

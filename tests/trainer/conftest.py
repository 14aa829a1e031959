"""A tiny real policy, ragged samples, and a training process inside the test process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from swe_rl.config import Config
from swe_rl.trainer.worker import TrainWorker
from swe_rl.types import Sample

VOCAB = 101


def save_tiny_model(folder: Path, *, tied: bool = True, seed: int = 0, hidden: int = 32) -> Path:
    """A random Qwen3 of two layers as a Hugging Face folder."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("untied"), tied=False, seed=1)


def make_samples(seed: int = 0, groups: int = 3, attempts: int = 4, longest: int = 40) -> list[Sample]:
    """Ragged attempts with observations in between; every third attempt has two segments."""
    rng = np.random.default_rng(seed)
    samples: list[Sample] = []
    for group in range(groups):
        for attempt in range(attempts):
            for _ in range(2 if attempt % 3 == 2 else 1):
                length = int(rng.integers(6, longest))
                response = int(rng.integers(3, length))
                mask = (rng.random(response) < 0.6).astype(int)
                mask[-1] = 1
                samples.append(
                    Sample(
                        group_index=group,
                        index=len(samples),
                        rollout_id=group * attempts + attempt,
                        tokens=rng.integers(0, VOCAB, length).tolist(),
                        response_length=response,
                        reward=float(attempt % 2),
                        loss_mask=mask.tolist(),
                        rollout_log_probs=(-rng.random(response) * 4 * mask).tolist(),
                        status=Sample.Status.COMPLETED,
                    )
                )
    return samples


def make_config(model: Path, **changes: object) -> Config:
    values: dict[str, object] = {"hf_checkpoint": str(model), "lr": 1e-2, "num_rollout": 10, "max_tokens_per_gpu": 64}
    return Config(**(values | {"trainer_threads": 1, "process_group_timeout": 60.0} | changes))


@pytest.fixture
def start_worker() -> Iterator[Callable[[Config], TrainWorker]]:
    """Start a training process of world size 1 in this process; the one before is stopped first."""
    running: list[TrainWorker] = []

    def start(config: Config) -> TrainWorker:
        while running:
            running.pop().stop()
        worker = TrainWorker(config, 0, 1)
        worker.start(*worker.host_rendezvous())
        running.append(worker)
        return worker

    yield start
    while running:
        running.pop().stop()

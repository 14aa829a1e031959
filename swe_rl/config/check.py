"""Checks over several settings and the machine: impossible sizes stop the run before anything starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from swe_rl.config import Config
from swe_rl.errors import ConfigError


def check_sizes(config: Config, *, training: bool = True) -> None:
    """Raise ConfigError where settings contradict one another.

    training: whether the run trains. An evaluation starts no trainer: all GPUs may serve, and groups need no spread.
    """
    problems = []
    if config.rollout_max_response_len >= config.rollout_max_context_len:
        problems.append(
            f"--rollout-max-response-len {config.rollout_max_response_len} leaves no room for a prompt within "
            f"--rollout-max-context-len {config.rollout_max_context_len}; lower the first or raise the second"
        )
    if config.rollout_num_gpus % config.rollout_num_gpus_per_engine:
        problems.append(
            f"--rollout-num-gpus {config.rollout_num_gpus} is not a multiple of "
            f"--rollout-num-gpus-per-engine {config.rollout_num_gpus_per_engine}"
        )
    if config.num_nodes > 1:
        problems.append(
            f"--num-nodes {config.num_nodes} (NUM_NODES): engines and training processes are started on this machine only; runs "
            "over several machines do not work yet. Sandboxes can be on other machines (--swe-exec-server-urls)"
        )
    if training and config.actor_num_nodes > config.num_nodes:
        problems.append(f"--actor-num-nodes {config.actor_num_nodes} is more than --num-nodes {config.num_nodes}")
    if config.num_gpus_per_node:
        trainers = config.actor_num_nodes * config.actor_num_gpus_per_node if training else 0
        total = config.num_nodes * config.num_gpus_per_node
        if trainers + config.rollout_num_gpus > total:
            beside = f"--actor-num-nodes x --actor-num-gpus-per-node ({trainers}) and " if training else ""
            problems.append(
                f"{beside}--rollout-num-gpus ({config.rollout_num_gpus}) need more than the {total} GPUs of "
                "--num-nodes x --num-gpus-per-node"
            )
    if config.engine == "embedded" and config.rollout_num_gpus_per_engine > 1:
        problems.append(
            "--rollout-num-gpus-per-engine above 1 needs --engine sglang (the embedded engine is one process)"
        )
    if training and config.n_samples_per_prompt == 1 and config.dynamic_sampling:
        problems.append("--n-samples-per-prompt 1 has no spread to compare; use 2 or more, or --no-dynamic-sampling")
    if problems:
        raise ConfigError("\n".join(problems))


def check_context(config: Config) -> None:
    """Raise ConfigError where attempts may grow longer than the model or the engine's cache can hold.

    Without this only the long attempts would fail, and leave their groups unseen.
    """
    model = json.loads((Path(config.hf_checkpoint) / "config.json").read_text())
    model = model.get("text_config") or model
    limit = model.get("max_position_embeddings")
    factor = _rope_factor(model) if config.engine == "sglang" or config.engine_urls else 1.0
    wanted = config.rollout_max_context_len
    if isinstance(limit, int) and wanted > limit * factor:
        raise ConfigError(
            f"--rollout-max-context-len {wanted} is more than the {limit} positions of the model {config.hf_checkpoint} "
            "(max_position_embeddings); lower it"
        )
    if config.engine == "embedded" and wanted > config.engine_cache_tokens:
        raise ConfigError(
            f"--rollout-max-context-len {wanted} is more than --engine-cache-tokens {config.engine_cache_tokens}; "
            "lower the first or raise the second"
        )


def _rope_factor(model: dict[str, Any]) -> float:
    """By how much SGLang takes the context to be longer than `max_position_embeddings`: not at all where the scaling says what
    the original length was, for then `max_position_embeddings` is the scaled one (`get_context_length` of SGLang 0.5)."""
    scaling = model.get("rope_scaling") or model.get("rope_parameters") or {}
    if not isinstance(scaling, dict) or "original_max_position_embeddings" in scaling:
        return 1.0
    factor = scaling.get("factor", 1.0)
    if scaling.get("rope_type") == "llama3" or not isinstance(factor, (int, float)):
        return 1.0
    return max(1.0, float(factor))


def check_load(path: str) -> None:
    """Raise ConfigError unless `path` is a checkpoint folder of a run."""
    if path and not (Path(path) / "manifest.json").is_file():
        raise ConfigError(
            f"--load: {path} is no checkpoint of swe-rl (no manifest.json there); give a folder like "
            "<run>/checkpoints/step_000010"
        )


def check_checkpoint_folder(path: str, setting: str) -> None:
    """Raise ConfigError unless `path` is a Hugging Face model folder (config, tokenizer, weights)."""
    folder = Path(path)
    if not path:
        raise ConfigError(f"{setting} is not set: give a local Hugging Face folder")
    if not folder.is_dir():
        raise ConfigError(f"{setting}: no folder {path} (a model hub is not asked: give a local folder)")
    try:
        architectures = json.loads((folder / "config.json").read_text()).get("architectures")
    except FileNotFoundError:
        raise ConfigError(f"{setting}: {path} has no config.json; it is not a Hugging Face model folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        raise ConfigError(f"{setting}: {path}/config.json is not a JSON object") from None
    if not architectures:
        raise ConfigError(f"{setting}: {path}/config.json names no architecture")
    if not list(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{setting}: {path} has no *.safetensors weights (other formats are not loaded: they can run code)"
        )
    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        raise ConfigError(f"{setting}: {path} has no tokenizer")


def check_data_file(path: str, setting: str) -> None:
    """Raise ConfigError unless `path` is a readable file."""
    if not path:
        raise ConfigError(f"{setting} is not set: give a file of tasks (JSONL or Parquet)")
    if not Path(path).is_file():
        raise ConfigError(f"{setting}: no file {path}")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{setting}: {path} cannot be read")


def check_run(config: Config) -> None:
    """What can be known of the files that a training run needs, before it starts."""
    check_checkpoint_folder(config.hf_checkpoint, "--hf-checkpoint")
    check_context(config)
    check_load(config.load)
    if config.ref_load:
        check_checkpoint_folder(config.ref_load, "--ref-load")
    check_data_file(config.prompt_data, "--prompt-data")
    if config.eval_prompt_data:
        check_data_file(config.eval_prompt_data, "--eval-prompt-data")

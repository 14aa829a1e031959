"""The one config: precedence, names, errors that name setting, value, allowed values and source."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from swe_rl.config import Config
from swe_rl.config.check import (
    check_checkpoint_folder,
    check_context,
    check_data_file,
    check_load,
    check_sizes,
)
from swe_rl.config.load import (
    dump_yaml,
    load_config,
    make_parser,
    naming_sources,
    read_yaml,
    resolved_table,
    variables,
)
from swe_rl.errors import ConfigError


def load(argv: list[str], env: dict[str, str] | None = None, **kw):  # type: ignore[no-untyped-def]
    return load_config(argv, environ=env or {}, **kw)


def test_flags_win_over_environment_and_environment_over_files(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("lr: 1.0e-3\nseed: 3\nrollout:\n  rollout_batch_size: 5\n")
    env = {"SWE_RL_LR": "2e-3", "SWE_RL_SEED": "4"}
    loaded = load(["--config", str(file), "--lr", "3e-3"], env)
    assert (loaded.config.lr, loaded.config.seed, loaded.config.rollout_batch_size) == (3e-3, 4, 5)
    assert loaded.sources["lr"] == "flag --lr"
    assert loaded.sources["seed"] == "environment SWE_RL_SEED"
    assert loaded.sources["rollout_batch_size"] == str(file)


def test_names_that_users_know() -> None:
    env = {
        "SWE_EXEC_SERVER_URLS": "http://a:5000,http://b:5000",
        "SWE_MAX_CONCURRENT": "7",
        "HF_CKPT": "/m",
        "WANDB_API_KEY": "k",
        "SAVE_CKPT": "/s",
        "SWE_ENV_SERVER_PORT": "1234",
        "STEP_LIMIT": "9",
    }
    config = load(["--dynamic_history", "--eps-clip-high=0.3", "--async", "--no-dynamic-sampling"], env).config
    assert config.swe_exec_server_urls == ["http://a:5000", "http://b:5000"]
    assert (config.swe_max_concurrent, config.hf_checkpoint, config.wandb_key, config.save) == (7, "/m", "k", "/s")
    assert (config.swe_env_server_port, config.step_limit) == (1234, 9)
    assert config.dynamic_history and config.async_rollout and not config.dynamic_sampling
    assert config.eps_clip_high == 0.3


def test_defaults_of_the_field() -> None:
    config = Config()
    assert (config.eps_clip, config.eps_clip_high, config.swe_cm_head_ratio) == (0.2, 0.28, 0.3)
    assert (config.swe_max_concurrent, config.swe_max_containers_per_node, config.swe_rollout_timeout) == (
        128,
        15,
        1800,
    )
    assert (config.rollout_max_context_len, config.rollout_max_response_len, config.num_rollout) == (16384, 4096, 2000)
    assert config.wandb_project == "slime_swe"


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        (["--eps-clip", "abc"], {}, ["--eps-clip", "'abc'", "flag --eps-clip", "a finite number >= 0", "< 1"]),
        ([], {"SWE_RL_EPS_CLIP": "7"}, ["--eps-clip", "'7'", "environment SWE_RL_EPS_CLIP"]),
        (["--kl-loss-type", "k9"], {}, ["one of: k1, k2, k3, low_var_kl"]),
        (["--eps-clop", "1"], {}, ["unknown flag --eps-clop", "--eps-clip"]),
        (["stray"], {}, ["unexpected argument 'stray'"]),
        ([], {"SWE_RL_LRR": "1"}, ["unknown setting SWE_RL_LRR"]),
        ([], {"SWE_MAX_CONCURENT": "8"}, ["unknown setting SWE_MAX_CONCURENT", "did you mean SWE_MAX_CONCURRENT?"]),
        ([], {"WANDB_KEY": "a", "WANDB_API_KEY": "b"}, ["disagrees", "WANDB_KEY", "WANDB_API_KEY"]),
        (["--config", "/no/such.yaml"], {}, ["/no/such.yaml", "No such file"]),
        (["--lr"], {}, ["--lr", "expected one argument"]),
    ],
)
def test_errors_name_setting_value_allowed_and_source(argv: list[str], env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(argv, env)
    for word in words:
        assert word in str(caught.value)


def test_variables_of_others_are_left_alone() -> None:
    config = load([], {"SWE_AGENT_ROOT": "/x", "SWE_BENCH_CACHE": "/y", "WANDB_MODE": "disabled"}).config
    assert config.wandb_mode == "disabled"


def test_every_variable_that_our_code_reads_is_known() -> None:
    """One that is read beside the config and not listed would stop every run of those who set it."""
    root = Path(__file__).resolve().parents[2]
    files = [path for folder in ("swe_rl", "scripts", "data", "eval") for path in (root / folder).rglob("*.*")]
    texts = [path.read_text(errors="replace") for path in files if path.suffix in (".py", ".sh")]
    read = re.compile(r"""environ(?:\.get\(|\[|\.pop\()"(SWE_[A-Z_]+)"|\$\{?(SWE_[A-Z_]+)""")
    names = {first or second for text in texts for first, second in read.findall(text)}
    assert {"SWE_RL_TOOLS_ENV", "SWE_RL_PYTHON", "SWE_SERVER_TOKEN"} <= names
    in_sandboxes = {"SWE_RL_COMMAND", "SWE_RL_PROOF", "SWE_RL_PYTHONPATH"}  # shell variables of a command or a grading
    settings = {name for setting in Config.model_fields for name in variables(setting)}
    load([], dict.fromkeys(names - in_sandboxes - settings, "x"))


def test_all_wrong_settings_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(["--lr", "-1", "--seed", "x"])
    assert len(str(caught.value).splitlines()) == 2


def test_secrets_are_never_shown() -> None:
    loaded = load([], {"SWE_SERVER_TOKEN": "hunter2"})
    assert "hunter2" not in resolved_table(loaded) and "hunter2" not in dump_yaml(loaded.config)
    with pytest.raises(ConfigError) as caught:
        load([], {"WANDB_KEY": "hunter2", "WANDB_API_KEY": "b"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["- 1\n", "lr: [\n", "unknown_name: 1\n"])
def test_bad_yaml_is_one_clear_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_saved_config_repeats_the_run(tmp_path: Path) -> None:
    config = load(["--lr", "1e-4", "--swe-exec-server-urls", "http://a:5000"]).config
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(config))
    assert load(["--config", str(file)]).config == config


def test_help_is_grouped_and_names_every_setting() -> None:
    text = make_parser("swe-rl train", "").format_help()
    for heading in ("cluster:", "engine:", "rollout:", "algorithm:", "optimizer:"):
        assert heading in text
    for name in Config.model_fields:
        assert f"--{name.replace('_', '-')}" in text


def test_impossible_sizes() -> None:
    for bad in (
        Config(rollout_max_context_len=100, rollout_max_response_len=100),
        Config(num_gpus_per_node=8, actor_num_gpus_per_node=8, rollout_num_gpus=8),
        Config(n_samples_per_prompt=1),
        Config(rollout_num_gpus_per_engine=2, rollout_num_gpus=2),
        Config(actor_num_nodes=2),
        Config(num_nodes=2),
    ):
        with pytest.raises(ConfigError):
            check_sizes(bad)
    check_sizes(Config())


def test_an_evaluation_starts_no_trainer() -> None:
    one_gpu = Config(engine="sglang", num_gpus_per_node=1, rollout_num_gpus=1, n_samples_per_prompt=1)
    check_sizes(one_gpu, training=False)
    for problem in ("--actor-num-gpus-per-node", "no spread"):
        with pytest.raises(ConfigError, match=problem):
            check_sizes(one_gpu)
    with pytest.raises(ConfigError, match=r"^--rollout-num-gpus \(2\) need more than the 1 GPUs"):
        check_sizes(one_gpu.model_copy(update={"rollout_num_gpus": 2}), training=False)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ({"max_position_embeddings": 4096}, {"rollout_max_context_len": 8192}, "the 4096 positions of the model"),
        ({"text_config": {"max_position_embeddings": 100}}, {"rollout_max_context_len": 101}, "the 100 positions"),
        ({}, {"rollout_max_context_len": 9000, "engine_cache_tokens": 8192}, "--engine-cache-tokens 8192"),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"factor": 2.0}},
            {"rollout_max_context_len": 8193, "engine": "sglang"},
            "4096",
        ),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"factor": 2.0}},
            {"rollout_max_context_len": 8192},
            "4096",  # the embedded engine knows nothing of factors
        ),
        (
            {"max_position_embeddings": 9000, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}},
            {"rollout_max_context_len": 9001, "engine": "sglang"},
            "9000",
        ),
        (
            {
                "max_position_embeddings": 8000,
                "rope_parameters": {"factor": 4.0, "rope_type": "yarn", "original_max_position_embeddings": 2000},
            },
            {"rollout_max_context_len": 8001, "engine": "sglang"},
            "8000",
        ),
    ],
)
def test_attempts_may_not_outgrow_the_model(tmp_path: Path, model: dict, settings: dict, words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model))
    config = Config(hf_checkpoint=str(tmp_path), rollout_max_response_len=50, **settings)
    with pytest.raises(ConfigError, match=words):
        check_context(config)
    fits = config.model_copy(update={"rollout_max_context_len": settings["rollout_max_context_len"] // 2})
    check_context(fits.model_copy(update={"engine_cache_tokens": 8192}))


def test_what_load_names_must_be_a_checkpoint(tmp_path: Path) -> None:
    check_load("")
    with pytest.raises(ConfigError, match=r"--load: .* \(no manifest\.json"):
        check_load(str(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    check_load(str(tmp_path))


def test_debug_mode_is_a_short_run() -> None:
    loaded = load_config([], environ={"DEBUG_MODE": "1"})
    assert loaded.config.debug_mode and loaded.config.num_rollout == 40
    assert loaded.sources["num_rollout"] == "environment DEBUG_MODE"
    assert load_config(["--num-rollout", "7"], environ={"DEBUG_MODE": "1"}).config.num_rollout == 7


def test_checkpoint_and_data_paths(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        check_checkpoint_folder(str(tmp_path / "x"), "--hf-checkpoint")
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_checkpoint_folder(str(tmp_path), "--hf-checkpoint")
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    with pytest.raises(ConfigError, match="safetensors"):
        check_checkpoint_folder(str(tmp_path), "--hf-checkpoint")
    with pytest.raises(ConfigError, match="no file"):
        check_data_file(str(tmp_path / "none.jsonl"), "--prompt-data")


@pytest.mark.parametrize(
    "name", ["dynamic_sampling_max_factor", "train_timeout", "process_group_timeout", "lr", "swe_rollout_timeout"]
)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_numbers_are_finite(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"'{value}' .*a finite number"):
        load([f"--{name.replace('_', '-')}={value}"])


def test_later_checks_say_where_settings_came_from(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("rollout_max_response_len: 9999\n")
    loaded = load(["--config", str(file), "--rollout-max-context-len", "100"], {"PROMPT_DATA": "/no/such"})
    with pytest.raises(ConfigError) as caught, naming_sources(loaded):
        check_sizes(loaded.config)
    assert f"lower the first or raise the second (--rollout-max-response-len is from {file})" in str(caught.value)
    words = r"no file /no/such \(--prompt-data is from environment PROMPT_DATA\)$"
    with pytest.raises(ConfigError, match=words), naming_sources(loaded):
        check_data_file(loaded.config.prompt_data, "--prompt-data")
    with pytest.raises(ConfigError, match=r"[^)]$"), naming_sources(load(["--prompt-data", "/no/such"])):
        check_data_file("/no/such", "--prompt-data")

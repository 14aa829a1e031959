"""Settings: the servers that sample from the policy."""

from __future__ import annotations

from typing import ClassVar, Literal

from swe_rl.config.setting import Area, setting


class EngineSettings(Area):
    area: ClassVar[str] = "engine"

    engine: Literal["embedded", "sglang"] = setting("embedded", "policy server: embedded (CPU, transformers) or sglang")
    engine_urls: list[str] = setting(list, "engines that already run, comma-separated URLs; empty = start them")
    engine_threads: int = setting(0, "torch threads per CPU engine; 0 = 1", ge=0)
    engine_max_batch: int = setting(64, "sequences decoded together by an embedded engine", ge=1)
    engine_cache_tokens: int = setting(
        262144,
        "KV cache of an embedded engine: running sequences x the longest of them, and as many tokens of finished ones",
        ge=1024,
    )
    engine_start_timeout: float = setting(300.0, "seconds an engine may take to become healthy", gt=0)
    engine_request_timeout: float = setting(600.0, "seconds one generation may take", gt=0)
    engine_update: Literal["tensor", "disk"] = setting("tensor", "how new weights reach the engines")
    sglang_python: str = setting(
        "", "interpreter that has sglang; empty = this one, or .venv-sglang where it exists", env=("SGLANG_PYTHON",)
    )
    sglang_args: str = setting("", "further flags for sglang.launch_server, as one shell-quoted string")

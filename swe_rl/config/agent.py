"""Settings: the bash agent that drives a sandbox."""

from __future__ import annotations

from typing import ClassVar

from swe_rl.config.setting import Area, setting


class AgentSettings(Area):
    area: ClassVar[str] = "agent"

    swe_agent_config: str = setting(
        "",
        "YAML file with the agent's prompts, or the name of one of the package's: swebench (also when empty), quickstart",
    )
    step_limit: int = setting(20, "commands (turns) per attempt", env=("STEP_LIMIT", "SWE_STEP_LIMIT"), ge=1)
    swe_command_timeout: float = setting(60.0, "seconds of one command", gt=0)
    swe_observation_chars: int = setting(
        10000, "characters of an observation: head and tail kept, the cut is said", ge=200
    )
    swe_cm_head_ratio: float = setting(
        0.3, "share of the context budget kept at the start when turns are dropped", ge=0, le=1
    )
    dynamic_history: bool = setting(False, "one training sample per step instead of one per segment")

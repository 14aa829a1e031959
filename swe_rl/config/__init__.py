"""One typed configuration: YAML file < environment < flags (design rule 11).

`Config` is flat (`args.rollout_max_context_len`), as custom functions of the field expect; its areas are base classes.
"""

from __future__ import annotations

from swe_rl.config.agent import AgentSettings
from swe_rl.config.algorithm import AlgorithmSettings
from swe_rl.config.cluster import ClusterSettings
from swe_rl.config.engine import EngineSettings
from swe_rl.config.grading import GradingSettings
from swe_rl.config.guard import GuardSettings
from swe_rl.config.model import ModelSettings
from swe_rl.config.observe import ObserveSettings
from swe_rl.config.optimizer import OptimizerSettings
from swe_rl.config.rollout import RolloutSettings
from swe_rl.config.sandbox import SandboxSettings

AREAS = (
    ModelSettings,
    ClusterSettings,
    EngineSettings,
    RolloutSettings,
    AgentSettings,
    SandboxSettings,
    GradingSettings,
    AlgorithmSettings,
    OptimizerSettings,
    GuardSettings,
    ObserveSettings,
)


class Config(
    ModelSettings,
    ClusterSettings,
    EngineSettings,
    RolloutSettings,
    AgentSettings,
    SandboxSettings,
    GradingSettings,
    AlgorithmSettings,
    OptimizerSettings,
    GuardSettings,
    ObserveSettings,
):
    """Every setting of a run. Build it with `swe_rl.config.load.load_config`, or directly in tests: `Config(lr=1e-4)`."""


__all__ = ["AREAS", "Config"]

"""The agent's words: prompts in YAML (Jinja2), checked when they are loaded, never in the middle of a run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, ValidationError

from swe_rl.agent.observation import SUBMISSION_SENTINEL, TruncatedText, clean_text
from swe_rl.errors import ConfigError
from swe_rl.types import ExecResult, Task

PROMPTS = Path(__file__).parent / "prompts"
_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False, autoescape=False)


class AgentPrompts(BaseModel):
    """One prompt file. Every `*_template` is Jinja2; an undefined variable is an error, not an empty string."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system_template: str  # task, step_limit, sentinel
    instance_template: str  # task, step_limit, sentinel
    observation_template: str  # returncode, timed_out, timeout, head, tail, elided_chars, steps_left, step_limit
    format_error_template: str  # count, cut_short, steps_left, step_limit
    omission_template: str  # omitted: turns left out here; put where they were
    action_language: str = "bash"  # or mswea_bash_command, the form of newer mini-swe-agent releases
    command_env: dict[str, str] = {}

    def _render(self, template: str, **variables: Any) -> str:
        return clean_text(_ENVIRONMENT.from_string(template).render(**variables))

    def first_messages(self, task: Task, step_limit: int) -> list[dict[str, str]]:
        """The conversation before the first turn: system (left out when empty) and the task."""
        shared = {"task": task, "step_limit": step_limit, "sentinel": SUBMISSION_SENTINEL}
        system = self._render(self.system_template, **shared).strip()
        instance = self._render(self.instance_template, **shared)
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": instance}]

    def observation(
        self, result: ExecResult, text: TruncatedText, *, timeout: float, steps_left: int, step_limit: int
    ) -> str:
        """What the policy reads after a command; `timeout` is the bound in seconds that the command had."""
        return self._render(
            self.observation_template,
            returncode=result.returncode,
            timed_out=result.timed_out,
            timeout=timeout,
            head=text.head,
            tail=text.tail,
            elided_chars=text.elided_chars,
            steps_left=steps_left,
            step_limit=step_limit,
        )

    def format_error(self, count: int, *, cut_short: bool, steps_left: int, step_limit: int) -> str:
        """What the policy reads after an answer without exactly one command; `cut_short`: it hit the token limit."""
        return self._render(
            self.format_error_template, count=count, cut_short=cut_short, steps_left=steps_left, step_limit=step_limit
        )

    def omission(self, omitted: int) -> str:
        """The marker that stands in for `omitted` turns that were left out of the context."""
        return self._render(self.omission_template, omitted=omitted)


def _try_all(prompts: AgentPrompts) -> None:
    """Render everything once, so that a misspelt variable stops the run before it starts."""
    prompts.first_messages(Task(instance_id="check", problem_statement="check"), 2)
    for cut in (TruncatedText("x"), TruncatedText("x", "y", 3)):
        for result in (ExecResult(0, "x"), ExecResult(124, "x", timed_out=True)):
            for left in (0, 1, 100):
                prompts.observation(result, cut, timeout=1.0, steps_left=left, step_limit=100)
                prompts.format_error(0, cut_short=result.timed_out, steps_left=left, step_limit=100)
    prompts.omission(1)
    prompts.omission(2)


@functools.lru_cache(maxsize=16)
def load_prompts(name: str) -> AgentPrompts:
    """Read a prompt file: a path, a name below `swe_rl/agent/prompts` ("quickstart"), or "" for `swebench`.

    Raises ConfigError naming the file and the field where it is missing, misspelt or does not render.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else PROMPTS / f"{name or 'swebench'}.yaml"
    known = ", ".join(sorted(file.stem for file in PROMPTS.glob("*.yaml")))
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"swe_agent_config: cannot read '{path}' ({error.strerror}); give a .yaml file or one of: {known}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"swe_agent_config: '{path}' is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"swe_agent_config: '{path}' must hold a mapping of template names to templates")
    try:
        prompts = AgentPrompts(**raw)
        _try_all(prompts)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"swe_agent_config: '{path}': {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}; "
            f"known fields: {', '.join(AgentPrompts.model_fields)}"
        ) from error
    except TemplateError as error:
        raise ConfigError(f"swe_agent_config: '{path}': template does not render: {error}") from error
    return prompts

"""Prompt files are checked when they are loaded; a wrong one is one clear error."""

from __future__ import annotations

import pytest
import yaml

from swe_rl.agent.observation import TruncatedText
from swe_rl.agent.templates import PROMPTS, load_prompts
from swe_rl.errors import ConfigError
from swe_rl.types import ExecResult, Task


@pytest.mark.parametrize("name", ["", "swebench", "quickstart"])
def test_the_packages_prompts_load(name):
    prompts = load_prompts(name)
    text = prompts.first_messages(Task("a__b-1", "It fails: {{ 7 * 7 }} {% endraw %}"), 20)[-1]["content"]
    assert "It fails: {{ 7 * 7 }} {% endraw %}" in text  # issue texts are data, not templates


@pytest.mark.parametrize("left", [1, 2, 5, 6, 10, 11])
def test_a_format_error_reminds_of_the_steps_left_as_an_observation_does(left):
    prompts = load_prompts("swebench")
    steps = {"steps_left": left, "step_limit": 20}
    error = prompts.format_error(0, cut_short=False, **steps)
    observation = prompts.observation(ExecResult(0, "x"), TruncatedText("x"), timeout=1.0, **steps)
    reminders = [text.partition("<reminder>")[2] for text in (error, observation)]
    assert reminders[0] == reminders[1] and bool(reminders[0]) == (left in (1, 2, 5, 10))
    assert ("submit now" in reminders[0]) == (left == 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation_template": "{{ retruncode }}"}, "'retruncode' is undefined"),
        ({"observation_template": "{% if %}"}, "does not render"),
        ({"instance_template": "{{ ().__class__.__base__.__subclasses__() }}"}, "does not render"),
        ({"observation_templat": "x"}, "observation_templat: extra inputs"),
        ({"system_template": None}, "system_template"),
    ],
)
def test_wrong_prompt_files(tmp_path, change, message):
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load((PROMPTS / "quickstart.yaml").read_text()), **change}))
    with pytest.raises(ConfigError, match="swe_agent_config") as caught:
        load_prompts(str(path))
    assert message in str(caught.value) and "agent.yaml" in str(caught.value)


@pytest.mark.parametrize("content", ["- a", "a: [", None])
def test_unreadable_prompt_files(tmp_path, content):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"swe_agent_config: .*x\.yaml"):
        load_prompts(str(path))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="quickstart, swebench"):
        load_prompts("quikstart")

"""Prompt files are checked when they are loaded; a wrong one is one clear error."""

from __future__ import annotations

import pytest
import yaml

from swe_rl.agent.templates import PROMPTS, load_prompts
from swe_rl.errors import ConfigError
from swe_rl.types import Task


@pytest.mark.parametrize("name", ["", "swebench", "quickstart"])
def test_the_packages_prompts_load(name):
    prompts = load_prompts(name)
    text = prompts.first_messages(Task("a__b-1", "It fails: {{ 7 * 7 }} {% endraw %}"), 20)[-1]["content"]
    assert "It fails: {{ 7 * 7 }} {% endraw %}" in text  # issue texts are data, not templates


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

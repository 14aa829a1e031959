"""Actions are found as mini-swe-agent found them in real transcripts, and hostile answers cost linear time."""

from __future__ import annotations

import itertools
import json

import pytest

from swe_rl.agent.parse import FormatError, extract_actions, parse_action


def test_every_real_transcript(cases):
    """The next message tells what was executed: an observation (one action), or a format error that counts the actions."""
    executed = refused = 0
    for path in sorted((cases / "trajectories").glob("*.traj.json")):
        messages = json.loads(path.read_text())["messages"]
        for message, answer in itertools.pairwise(messages):
            if message["role"] != "assistant":
                continue
            if "Please always provide EXACTLY ONE action" in answer["content"]:
                with pytest.raises(FormatError) as caught:
                    parse_action(message["content"])
                assert f"found {caught.value.count} actions" in answer["content"]
                refused += 1
            else:
                action = parse_action(message["content"])
                assert f"```bash\n{action}\n```" in message["content"] or f"\n{action}" in message["content"]
                executed += 1
    assert executed > 400 and refused > 5


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("THOUGHT: x\n\n```bash\nls\n```", "ls"),
        ("```bash  \nls\n```\n", "ls"),
        ("```python\nx\n```\n```bash\nls -la\n\n```", "ls -la"),
        ("```bash\ncat <<'EOF' > a.md\n # `x` ``` y\nEOF\n```", "cat <<'EOF' > a.md\n # `x` ``` y\nEOF"),
        ("say ```bash``` and ```bash x``` then\n```bash\nls\n```", "ls"),
    ],
)
def test_one_action(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("ls", 0),
        ("```bash\nls", 0),
        ("```bash\n```", 0),
        ("```bash\nls\n```\n```bash\npwd\n```", 2),
        ("```sh\nls\n```", 0),
    ],
)
def test_format_errors_count_the_blocks(text, count):
    with pytest.raises(FormatError) as caught:
        parse_action(text)
    assert caught.value.count == count


def test_the_newer_form():
    text = "```bash\nnot this\n```\n```mswea_bash_command\nls\n```"
    assert parse_action(text, "mswea_bash_command") == "ls"


def test_repetition_as_policies_write_it_is_no_bomb():
    """A lazy regular expression needs about 10^10 steps for the second; the test's own time limit would end it."""
    assert not any(extract_actions("```bash\n" * 200_000))
    assert extract_actions("```bash" + "\n" * 500_000) == []
    assert extract_actions("```bash " * 200_000) == []
    assert len(extract_actions("```bash\nls\n```\n" * 50_000)) == 50_000

"""SmolLM2-135M-Instruct from its package: it loads, and the agent loop runs one attempt with it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swe_rl.agent.loop import run_agent
from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.policy import smollm2
from swe_rl.types import ExecResult, FinishReason, Task


@dataclass
class Answer:
    output_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    weight_versions: list[int]
    cached_tokens: int = 0


class InProcess:
    """transformers' own greedy generation behind the engine's signature."""

    def __init__(self, model: Any) -> None:
        self.model = model

    async def generate(self, input_ids, sampling_params, *, rid, routing_key="", deadline=None) -> Answer:
        ids = torch.tensor([input_ids])
        out = self.model.generate(ids, max_new_tokens=sampling_params["max_new_tokens"], do_sample=False)
        new = out[0, len(input_ids) :].tolist()
        return Answer(new, [0.0] * len(new), FinishReason.LENGTH, [0] * len(new))


class Echo:
    workdir = "/"

    async def exec(self, command: str, **_: Any) -> ExecResult:
        return ExecResult(0, "")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_converted_model_loads_and_the_agent_runs(tmp_path) -> None:
    assert smollm2.main([str(tmp_path / "model")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    capital = tokenizer("The capital of France is", return_tensors="pt")
    assert "Paris" in tokenizer.decode(model.generate(**capital, max_new_tokens=5, do_sample=False)[0])
    settings = Config(step_limit=1, rollout_max_context_len=4096, rollout_max_response_len=24)
    task = Task(instance_id="hello", problem_statement="Say hello.")
    trajectory = await run_agent(task, Echo(), InProcess(model), tokenizer, settings, {}, Deadline(600))
    assert trajectory.exit_status in ("step_limit", "submitted")
    assert len(trajectory.turns) == 1

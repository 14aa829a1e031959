"""The bash agent: the one loop that training, evaluation and demonstrations share (design rule 1).

One turn: the engine samples an answer, its single bash block runs in the sandbox, the output becomes the observation.
"""

from __future__ import annotations

import math
import time
import traceback
from typing import Any, Protocol

from swe_rl.agent.context import ContextFull, TokenHistory
from swe_rl.agent.observation import clean_text, is_submission, truncate_middle
from swe_rl.agent.parse import FormatError, parse_action
from swe_rl.agent.templates import AgentPrompts, load_prompts
from swe_rl.agent.tokens import ChatFormat, chat_format
from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.errors import ConfigError, DeadlineExceeded, EngineError, InfraError
from swe_rl.sandbox.protocol import Sandbox
from swe_rl.types import LOG_PROB_TOLERANCE, FinishReason, Task, Trajectory, Turn, Verdict

SEED_STRIDE = 1_000_003  # between the sampling seeds of an attempt's turns
STUCK_SECONDS = 30.0  # an engine that stays silent this long may be stuck ...
STUCK_FACTOR = (
    3.0  # ... and is, where the longest answer would have taken a third of that at the attempt's slowest speed so far
)
STEP_OUTPUT_CHARS = 100_000  # of a command's output kept in the step's record, for replaying it


class Engine(Protocol):
    """What the loop needs of a policy server; `swe_rl.engine.client.EngineClient` has it, so has a scripted policy."""

    async def generate(
        self,
        input_ids: list[int],
        sampling_params: dict[str, Any],
        *,
        rid: str,
        routing_key: str = "",
        deadline: Deadline | None = None,
    ) -> Any: ...


async def run_agent(
    task: Task,
    sandbox: Sandbox,
    engine: Engine,
    tokenizer: Any,
    settings: Config,
    sampling_params: dict[str, Any],
    deadline: Deadline,
    *,
    attempt_id: str = "",
) -> Trajectory:
    """Let the policy work on `task` in `sandbox` until it submits or meets a limit.

    sampling_params: SGLang's names; `max_new_tokens` is bounded by `rollout_max_response_len` and the context.
    Returns the trajectory with `exit_status` set; its patch is collected by the caller. A failing engine or sandbox
    (InfraError) ends it as "infra_error" with the verdict set, so that what was done so far is kept for the record.
    Raises ConfigError for a prompt file or chat template that cannot be used.
    """
    trajectory = Trajectory(task)
    loop = _Loop(trajectory, sandbox, engine, chat_format(tokenizer), settings, sampling_params, deadline, attempt_id)
    try:
        await loop.run()
    except DeadlineExceeded as error:
        _end_by_deadline(trajectory, error)
    except InfraError as error:
        _end_by_infra_error(trajectory, error)
    return trajectory


class _Loop:
    def __init__(
        self,
        trajectory: Trajectory,
        sandbox: Sandbox,
        engine: Engine,
        chat: ChatFormat,
        settings: Config,
        sampling_params: dict[str, Any],
        deadline: Deadline,
        attempt_id: str,
    ) -> None:
        self.trajectory = trajectory
        self.sandbox = sandbox
        self.engine = engine
        self.chat = chat
        self.settings = settings
        self.deadline = deadline
        self.attempt_id = attempt_id or f"{trajectory.task.instance_id}-{time.time_ns()}"
        self.prompts: AgentPrompts = load_prompts(settings.swe_agent_config)
        self.sampling_params = dict(sampling_params)
        bound = settings.rollout_max_response_len
        self.sampling_params["max_new_tokens"] = min(int(self.sampling_params.get("max_new_tokens") or bound), bound)
        stops = self.sampling_params.get("stop_token_ids") or []
        self.sampling_params["stop_token_ids"] = sorted({*stops, chat.end_of_turn_id})

    async def run(self) -> None:
        trajectory, limit = self.trajectory, self.settings.step_limit
        trajectory.messages = list(self.prompts.first_messages(trajectory.task, limit))
        try:
            history = self._start_history()
            trajectory.segments = history.segments
            for step in range(limit):
                self.deadline.check("agent")
                turn = await self._sample(history.prompt_ids(), step)
                history.add_answer(turn)
                trajectory.turns.append(turn)
                answer = self.chat.decode_answer(turn.output_ids)
                trajectory.messages.append({"role": "assistant", "content": answer})
                observation = await self._act(answer, turn, step)
                if observation is None:
                    trajectory.exit_status = "submitted"
                    return
                trajectory.messages.append({"role": "user", "content": observation})
                if step + 1 < limit:
                    history.add_observation(answer, observation)
            trajectory.exit_status = "step_limit"
        except ContextFull as error:
            trajectory.exit_status = "context_limit"
            trajectory.verdict_detail["exit_reason"] = str(error)

    def _start_history(self) -> TokenHistory:
        settings = self.settings
        max_prompt_tokens = settings.rollout_max_context_len - settings.rollout_max_response_len
        if max_prompt_tokens <= 0:
            raise ConfigError(
                f"rollout_max_response_len: {settings.rollout_max_response_len} leaves no room for a prompt; "
                f"it must be below rollout_max_context_len ({settings.rollout_max_context_len})"
            )
        return TokenHistory(
            self.chat,
            self.trajectory.messages,
            max_prompt_tokens=max_prompt_tokens,
            head_ratio=settings.swe_cm_head_ratio,
            omission=self.prompts.omission,
        )

    async def _sample(self, prompt_ids: list[int], step: int) -> Turn:
        started = time.monotonic()
        params = self.sampling_params
        if "sampling_seed" in params:  # one seed for all turns would repeat the same random numbers in each of them
            params = {**params, "sampling_seed": (params["sampling_seed"] + SEED_STRIDE * step) % 2**31}
        try:
            result = await self.engine.generate(
                prompt_ids,
                params,
                rid=f"{self.attempt_id}-t{step}",
                routing_key=self.attempt_id,
                deadline=self.deadline,
            )
        except DeadlineExceeded as error:
            self._check_stuck(time.monotonic() - started, error)
            raise
        seconds = time.monotonic() - started
        self._add_time("model", seconds)
        turn = Turn(
            prompt_ids=prompt_ids,
            output_ids=list(result.output_ids),
            log_probs=list(result.log_probs),
            weight_versions=list(result.weight_versions),
            finish_reason=FinishReason(result.finish_reason),
            cached_tokens=result.cached_tokens,
            seconds=seconds,
        )
        check_turn(turn)
        if turn.finish_reason is FinishReason.ABORT:
            self.trajectory.dropped_tokens += len(turn.output_ids)
            raise EngineError(f"the engine aborted the generation after {len(turn.output_ids)} tokens")
        return turn

    def _check_stuck(self, waited: float, error: DeadlineExceeded) -> None:
        """Raise EngineError where the engine, and not a talkative policy, let the time run out during this call."""
        speeds = [turn.seconds / max(1, len(turn.output_ids)) for turn in self.trajectory.turns]  # seconds a token
        longest = max(speeds, default=0.0) * self.sampling_params["max_new_tokens"]
        if waited > max(STUCK_SECONDS, STUCK_FACTOR * longest):
            raise EngineError(
                f"the engine was silent for the last {waited:.0f} s of the attempt; "
                f"at the speed it had, its longest answer takes {longest:.0f} s"
            ) from error

    async def _act(self, answer: str, turn: Turn, step: int) -> str | None:
        """Run the answer's command; returns the observation, or None when the attempt was submitted."""
        limit = self.settings.step_limit
        left = limit - step - 1
        record = self._new_step(turn, step)
        try:
            action = parse_action(answer, self.prompts.action_language)
        except FormatError as error:
            record["format_error"] = error.count
            cut_short = turn.finish_reason is FinishReason.LENGTH
            return self.prompts.format_error(error.count, cut_short=cut_short, steps_left=left, step_limit=limit)
        record["action"] = action
        timeout = self.deadline.bound(self.settings.swe_command_timeout)
        self.deadline.check("agent")
        env = {**self.prompts.command_env, **self.trajectory.task.env}
        started = time.monotonic()
        result = await self.sandbox.exec(action, timeout=timeout, env=env)
        seconds = time.monotonic() - started
        self._add_time("command", seconds)
        output = clean_text(result.output)
        record |= {
            "returncode": result.returncode,
            "output": truncate_middle(output, STEP_OUTPUT_CHARS, dropped=result.dropped_bytes).joined(),
            "timed_out": result.timed_out,
            "truncated": result.truncated or len(output) > self.settings.swe_observation_chars,
            "seconds_command": round(seconds, 4),
        }
        if is_submission(output, result.returncode):
            return None
        text = truncate_middle(output, self.settings.swe_observation_chars, dropped=result.dropped_bytes)
        return self.prompts.observation(result, text, timeout=timeout, steps_left=left, step_limit=limit)

    def _new_step(self, turn: Turn, step: int) -> dict[str, Any]:
        record: dict[str, Any] = {
            "step": step,
            "prompt_tokens": len(turn.prompt_ids),
            "output_tokens": len(turn.output_ids),
            "cached_tokens": turn.cached_tokens,
            "finish_reason": turn.finish_reason.value,
            "weight_versions": sorted(set(turn.weight_versions)),
            "segment": len(self.trajectory.segments) - 1,
            "seconds_model": round(turn.seconds, 4),
        }
        self.trajectory.steps.append(record)
        return record

    def _add_time(self, stage: str, seconds: float) -> None:
        self.trajectory.timings[stage] = self.trajectory.timings.get(stage, 0.0) + seconds


def check_turn(turn: Turn) -> None:
    """Raise EngineError where an engine's answer cannot be trained on: lengths that disagree, or log-probs that are no
    log-probs (a NaN must stop the attempt here instead of becoming a silent reward of 0)."""
    n = len(turn.output_ids)
    if len(turn.log_probs) != n or len(turn.weight_versions) != n:
        raise EngineError(
            f"the engine returned {n} ids, {len(turn.log_probs)} log-probs and {len(turn.weight_versions)} weight versions"
        )
    for position, log_prob in enumerate(turn.log_probs):
        if not math.isfinite(log_prob) or log_prob > LOG_PROB_TOLERANCE:
            raise EngineError(f"the engine returned the log-prob {log_prob} for output token {position}")


def _end_by_deadline(trajectory: Trajectory, error: DeadlineExceeded) -> None:
    """Time ran out. Before the first answer that is the engine's or the sandbox's fault, not the policy's."""
    if trajectory.turns:
        trajectory.exit_status = "deadline"
        trajectory.verdict_detail["exit_reason"] = str(error)
    else:
        _end_by_infra_error(trajectory, error)


def _end_by_infra_error(trajectory: Trajectory, error: InfraError) -> None:
    trajectory.exit_status = "infra_error"
    trajectory.verdict = Verdict.INFRA_ERROR
    trajectory.verdict_detail |= {
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }

"""The words of the design as types: Task, Turn, Segment, Trajectory, Sample, Verdict, ExecResult.

They hold data only and import nothing heavy, so that every stage (rollout, grading, trainer, servers) can share them.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass, field
from typing import Any

LOG_PROB_TOLERANCE = 1e-3  # an engine's log-prob may round to slightly above 0


class Verdict(str, enum.Enum):
    """Why an attempt ended as it did. Only `resolved` is a success; `infra_error` says nothing about the policy."""

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    NO_PATCH = "no_patch"
    PATCH_REJECTED = "patch_rejected"
    TAMPERED = "tampered"
    TEST_TIMEOUT = "test_timeout"
    INFRA_ERROR = "infra_error"

    @property
    def reward(self) -> float:
        """1.0 for `resolved`, else 0.0. An `infra_error` must leave its group before rewards are compared."""
        return 1.0 if self is Verdict.RESOLVED else 0.0

    @property
    def counts(self) -> bool:
        """Whether the verdict says something about the policy (design rule 3)."""
        return self is not Verdict.INFRA_ERROR


@dataclass(frozen=True)
class ExecResult:
    """One command's end. `output` is stdout and stderr together, bounded; the cut is said inside the text."""

    returncode: int  # 124 when the deadline killed the command's process group
    output: str
    timed_out: bool = False
    truncated: bool = False  # head and tail were kept, the middle was dropped
    seconds: float = 0.0
    dropped_bytes: int = 0  # how much of the middle that is; the text says it in a line of its own


@dataclass
class Task:
    """One problem: a repository at a base commit in an image, an issue text, an eval script, tests that must pass."""

    instance_id: str
    problem_statement: str
    repo: str = ""
    base_commit: str = ""  # the agent's patch is the diff against this commit ("" = the sandbox's first HEAD)
    image: str = ""
    workdir: str = "/testbed"
    eval_script: str = ""  # bash; run in `workdir` by the grader
    patch: str = ""  # the gold patch: never shown to an agent
    test_patch: str = ""  # applied by the grader after the agent's patch and the restored test files
    fail_to_pass: list[str] = field(default_factory=list)
    pass_to_pass: list[str] = field(default_factory=list)
    test_files: list[str] = field(default_factory=list)  # restored and hash-checked at grading
    log_parser: str = ""  # "" = by repo (swebench), "pytest", "junit", "exit_code"
    version: str = ""
    archive: str = ""  # local .tar of the repository (with .git) for sandboxes that bring their own files
    data_source: str = ""
    certified: bool | None = None  # None = never certified
    flaky: bool | None = None
    network: bool = False
    env: dict[str, str] = field(default_factory=dict)  # extra variables of the agent's commands
    metadata: dict[str, Any] = field(default_factory=dict)  # e.g. level, package, kind of bug


class FinishReason(str, enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass
class Turn:
    """One model call with exact ids. All lists of the output have one length."""

    prompt_ids: list[int]
    output_ids: list[int]
    log_probs: list[float]  # log p(output token | before), of the temperature-scaled distribution it was sampled from
    weight_versions: list[int]  # per output token: optimizer step whose weights sampled it
    finish_reason: FinishReason
    cached_tokens: int = 0
    seconds: float = 0.0


@dataclass
class Segment:
    """A maximal run of turns whose tokens extend one another: one training sequence.

    `tokens` = prompt + everything after it; `loss_mask`, `log_probs` and `weight_versions` have one entry per token after
    `prompt_length` (slime's convention: they cover the response part). Mask 1 = sampled by the policy, 0 = observation.
    """

    tokens: list[int]
    prompt_length: int
    loss_mask: list[int]
    log_probs: list[float]  # 0.0 where the mask is 0
    weight_versions: list[int]  # -1 where the mask is 0
    fork_cause: str = ""  # why this segment did not extend the one before ("" for the first), e.g. "context_dropped"


@dataclass
class Trajectory:
    """All turns of one attempt, its commands and outputs, its patch and its verdict."""

    task: Task
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    exit_status: str = ""  # "submitted", "step_limit", "context_limit", "deadline", "aborted", "infra_error"
    patch: bytes = b""
    verdict: Verdict | None = None
    verdict_detail: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)  # seconds by stage
    dropped_tokens: int = 0  # sampled tokens that no segment trains (must be 0 unless aborted)
    reward_not_submitted: float = 1.0  # share of its reward that an attempt gets which did not submit by itself
    custom_reward: float | None = None  # what a user's reward function said instead

    @property
    def reward(self) -> float | None:
        """The verdict's reward, or its share where the agent ran into a limit, or that of a user's reward function; None before
        grading and for infra_error."""
        if self.verdict is None or not self.verdict.counts:
            return None
        if self.custom_reward is not None:
            return self.custom_reward
        return self.verdict.reward * (1.0 if self.exit_status == "submitted" else self.reward_not_submitted)


class SampleStatus(str, enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """One training sequence on its way from rollout to trainer; field names are slime's, so functions can be shared.

    tokens: prompt + response ids. loss_mask, rollout_log_probs: one entry per response token (length `response_length`).
    group_index: the group whose rewards are compared. rollout_id: the trajectory; segments of one attempt share it.
    """

    Status = SampleStatus

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[int] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise ValueError where it cannot be trained on: lengths that disagree (a shifted mask trains the wrong tokens without
        a sound), ids outside the vocabulary, a mask that is none, log-probs of trained tokens that are no log-probs."""
        n = self.response_length
        if n > len(self.tokens):
            raise ValueError(f"response_length {n} > {len(self.tokens)} tokens")
        for name in ("loss_mask", "rollout_log_probs"):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise ValueError(f"{name} has {len(value)} entries, response_length is {n}")
        if vocab_size is not None and self.tokens and not (min(self.tokens) >= 0 and max(self.tokens) < vocab_size):
            raise ValueError(f"token ids span {min(self.tokens)}..{max(self.tokens)}, the vocabulary has {vocab_size}")
        mask = [1] * n if self.loss_mask is None else self.loss_mask
        if any(entry not in (0, 1) for entry in mask):
            raise ValueError("loss_mask must hold 0 and 1 only")
        if n and n == len(self.tokens) and mask[0]:
            raise ValueError("the first token has no token before it and cannot be trained: its loss_mask must be 0")
        for log_prob, trained in zip(self.rollout_log_probs or (), mask, strict=False):
            if trained and not (math.isfinite(log_prob) and log_prob <= LOG_PROB_TOLERANCE):
                raise ValueError(f"rollout_log_probs of trained tokens must be finite and at most 0, not {log_prob}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

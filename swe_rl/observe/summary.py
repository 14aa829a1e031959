"""The end of a run in one file and one screen: what was done, before and after, the token audit, where everything lies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from swe_rl.config import Config
from swe_rl.evaluate.intervals import Rate
from swe_rl.run_folder import RunFolder

PARTS_OF_AGENT = ("model", "command")  # stages inside the stage "agent": waiting for the engine, running commands


@dataclass
class Totals:
    """Counts over the whole run; kept in checkpoints, so that a resumed run reports all of it."""

    attempts: int = 0
    optimizer_steps: int = 0
    seconds_training: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)
    forks: Counter[str] = field(default_factory=Counter)
    seconds_by_stage: dict[str, float] = field(default_factory=dict)  # the driver's wall clock
    attempt_seconds_by_stage: dict[str, float] = field(
        default_factory=dict
    )  # summed over attempts that ran side by side
    busy_seconds: dict[str, float] = field(default_factory=dict)  # wall clock with at least one attempt in the stage
    rollbacks: list[dict[str, Any]] = field(default_factory=list)  # returns to a checkpoint, see `Driver.roll_back`
    trained_tokens: int = 0
    sampled_tokens_trained: int = 0
    segments: int = 0
    dropped_tokens: int = 0
    verdict_cache_hits: int = 0
    first_logprob_diff: float | None = None  # engine against trainer, before the first update

    def add(self, counts: dict[str, Any]) -> None:
        """Add the counts of one rollout step (`RolloutBatch.counts`)."""
        for name in (
            "attempts",
            "trained_tokens",
            "sampled_tokens_trained",
            "segments",
            "dropped_tokens",
            "verdict_cache_hits",
        ):
            setattr(self, name, getattr(self, name) + counts[name])
        for name in ("verdicts", "forks"):
            getattr(self, name).update(counts[name])
        for name, by_stage in (
            ("seconds_by_stage", self.attempt_seconds_by_stage),
            ("busy_seconds", self.busy_seconds),
        ):
            for stage, seconds in counts[name].items():
                by_stage[stage] = by_stage.get(stage, 0.0) + seconds

    def spend(self, stage: str, seconds: float) -> None:
        """Count wall seconds of the driver."""
        self.seconds_by_stage[stage] = self.seconds_by_stage.get(stage, 0.0) + seconds

    def audit(self) -> dict[str, Any]:
        """The proof that what was trained is what was sampled (design rule 2)."""
        return {
            "trained_tokens": self.trained_tokens,
            "sampled_fraction": self.sampled_tokens_trained / self.trained_tokens if self.trained_tokens else 1.0,
            "segments": self.segments,
            "forks": dict(self.forks),
            "dropped_tokens": self.dropped_tokens,
            "mean_abs_logprob_diff": self.first_logprob_diff,
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON values (`dataclasses.asdict` would count the items of a Counter instead of copying them)."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Totals:
        known = {k: v for k, v in values.items() if k in cls.__dataclass_fields__}
        for name in ("verdicts", "forks"):
            known[name] = Counter(known.get(name, {}))
        return cls(**known)


def build_summary(
    config: Config, run: RunFolder, totals: Totals, evaluations: dict[str, dict[str, Any]], *, sandbox: str
) -> dict[str, Any]:
    """The contents of summary.json. `evaluations` maps "before" and "after" to rates (and "greedy", levels).

    sandbox: the kind that was used, which `--sandbox auto` does not say.
    """
    return {
        "run": run.name,
        "seed": config.seed,
        "seconds_training": round(totals.seconds_training, 3),
        "seconds_by_stage": _rounded(totals.seconds_by_stage),
        "attempt_seconds_by_stage": _rounded(totals.attempt_seconds_by_stage),
        "busy_seconds_by_stage": _rounded(totals.busy_seconds),
        "rollbacks": totals.rollbacks,
        "optimizer_steps": totals.optimizer_steps,
        "attempts": totals.attempts,
        "verdicts": dict(totals.verdicts),
        "verdict_cache_hits": totals.verdict_cache_hits,
        **evaluations,
        "audit": totals.audit(),
        "sandbox": sandbox,
        "engine": config.engine,
        "hf_checkpoint": config.hf_checkpoint,
        "paths": {
            "attempts": str(run.attempts),
            "checkpoints": str(run.checkpoints),
            "hf": str(run.hf),
            "plots": str(run.plots),
            "metrics": str(run.metrics),
        },
    }


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """The same on one screen."""
    table = Table(
        title=f"{summary['run']}: {summary['optimizer_steps']} optimizer steps", show_header=False, title_justify="left"
    )
    table.add_column(style="bold")
    table.add_column()
    for name in ("before", "after"):
        if name in summary:
            table.add_row(f"held-out {name}", _rate(summary[name]))
            for level, values in sorted(summary[name].get("levels", {}).items()):
                table.add_row(f"  {level}", _rate(values))
            if "greedy" in summary[name]:
                table.add_row("  greedy", _rate(summary[name]["greedy"]))
    verdicts = ", ".join(f"{k} {v}" for k, v in sorted(summary["verdicts"].items(), key=lambda item: -item[1]))
    table.add_row("attempts", f"{summary['attempts']} ({verdicts})")
    table.add_row("sandboxes", summary["sandbox"])
    table.add_row("training", f"{summary['seconds_training']:.0f} s")
    if summary["rollbacks"]:
        returns = (f"step {r['step']} ({r['reason']}) to {r['back_to']}" for r in summary["rollbacks"])
        table.add_row("rolled back", "; ".join(returns))
    table.add_row("time by stage", _stages(summary["seconds_by_stage"]))
    table.add_row("  of attempts", _attempt_stages(summary))
    audit = summary["audit"]
    diff = audit["mean_abs_logprob_diff"]
    shown = "n/a" if diff is None else f"{diff:.2g}"
    table.add_row(
        "token audit",
        f"{audit['trained_tokens']} trained, {100 * audit['sampled_fraction']:.4g}% of them sampled; "
        f"{audit['segments']} segments, {audit['dropped_tokens']} tokens dropped; engine and trainer differ by {shown} nats",
    )
    for name, path in summary["paths"].items():
        table.add_row(name, path)
    console.print(table)


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {stage: round(value, 3) for stage, value in seconds.items()}


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _stages(seconds: dict[str, float]) -> str:
    """The longest first."""
    return ", ".join(f"{stage} {_seconds(s)}" for stage, s in sorted(seconds.items(), key=lambda item: -item[1]))


def _attempt_stages(summary: dict[str, Any]) -> str:
    """Where attempts spent their time, how many ran at once, and how much of the grading went on beside sampling."""
    by_stage, busy = summary["attempt_seconds_by_stage"], summary["busy_seconds_by_stage"]
    stages = {stage: seconds for stage, seconds in by_stage.items() if stage not in PARTS_OF_AGENT}
    text = _stages(stages)
    if parts := {stage: by_stage[stage] for stage in PARTS_OF_AGENT if stage in by_stage}:
        text += f" (of agent: {_stages(parts)})"
    if wall := busy.get("rollout"):
        text += f"; together {_seconds(sum(stages.values()))} in {_seconds(wall)} of rollouts"
    if busy.get("grade"):
        both = _seconds(busy.get("agent and grade", 0.0))
        text += f"; something was graded for {_seconds(busy['grade'])}, {both} of it while others were sampled"
    return text


def _rate(values: dict[str, Any]) -> str:
    return str(Rate(values["resolve_rate"], tuple(values["ci95"]), values["n"], values.get("tasks", 0)))

"""PNG pictures of a run, drawn from its metrics file alone, so that they can be redrawn at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swe_rl.observe.metrics import read_metrics

# file name: (title, y label, [(kind, metric, label)]); a metric that ends in * stands for all with that beginning
PANELS: dict[str, tuple[str, str, list[tuple[str, str, str]]]] = {
    "reward": ("Reward per rollout step", "mean reward", [("rollout", "reward_mean", "training tasks, T as sampled")]),
    "resolve_rate": (
        "Resolved attempts",
        "share of attempts",
        [("rollout", "resolve_rate", "training tasks"), ("eval", "resolve_rate", "held-out tasks")],
    ),
    "levels": (
        "Resolved attempts by level of the task",
        "share of attempts",
        [("rollout", "resolve_rate/*", "training tasks")],
    ),
    "entropy": ("Policy entropy", "nats per sampled token", [("train", "entropy", "trainer")]),
    "kl": (
        "Change of the policy",
        "KL, k3 estimator",
        [
            ("train", "kl", "to the reference"),
            ("train", "ppo_kl", "from the policy before the update"),
            ("train", "rollout_kl", "from the policy that sampled"),
        ],
    ),
    "logprob_diff": (
        "Engine and trainer log-probs",
        "mean |difference|, nats",
        [("train", "mean_abs_logprob_diff", "before the update")],
    ),
    "time": (
        "Where the time goes",
        "seconds per step",
        [
            ("rollout", "seconds", "rollout"),
            ("train", "seconds/train", "train"),
            ("push", "seconds", "push weights"),
        ],
    ),
}


def draw_plots(metrics_file: Path, folder: Path) -> list[Path]:
    """Draw every panel that has data, and `overview.png` with all of them. Returns the files written."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = read_metrics(metrics_file)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with_data = [name for name in PANELS if any(_points(records, k, m)[0] for k, m, _ in _series(records, name))]
    for name in with_data:
        figure, axes = plt.subplots(figsize=(6.4, 4))
        _draw(axes, records, name)
        written.append(_save(figure, folder / f"{name}.png"))
        plt.close(figure)
    if with_data:
        rows = (len(with_data) + 2) // 3
        figure, grid = plt.subplots(rows, 3, figsize=(15, 4 * rows), squeeze=False)
        for axes, name in zip(grid.flat, with_data, strict=False):
            _draw(axes, records, name)
        for axes in list(grid.flat)[len(with_data) :]:
            axes.set_visible(False)
        written.append(_save(figure, folder / "overview.png"))
        plt.close(figure)
    return written


def _series(records: list[dict[str, Any]], name: str) -> list[tuple[str, str, str]]:
    """The panel's series, with those that end in * spelled out."""
    spelled = []
    for kind, metric, text in PANELS[name][2]:
        if not metric.endswith("*"):
            spelled.append((kind, metric, text))
            continue
        found = {key for r in records if r["kind"] == kind for key in r if key.startswith(metric[:-1])}
        spelled += [(kind, key, f"{key[len(metric) - 1 :]}, {text}") for key in sorted(found)]
    return spelled


def _points(records: list[dict[str, Any]], kind: str, metric: str) -> tuple[list[int], list[float], list[Any]]:
    chosen = [r for r in records if r["kind"] == kind and isinstance(r.get(metric), int | float)]
    return [r["step"] for r in chosen], [float(r[metric]) for r in chosen], [r.get("ci95") for r in chosen]


def _draw(axes: Any, records: list[dict[str, Any]], name: str) -> None:
    title, label, _ = PANELS[name]
    for kind, metric, text in _series(records, name):
        x, y, intervals = _points(records, kind, metric)
        if not x:
            continue
        if kind == "eval" and all(intervals):
            below = [value - low for value, (low, _) in zip(y, intervals, strict=True)]
            above = [high - value for value, (_, high) in zip(y, intervals, strict=True)]
            axes.errorbar(x, y, yerr=[below, above], fmt="o-", capsize=4, label=f"{text} (95% interval)")
        else:
            axes.plot(x, y, alpha=0.35 if len(x) > 15 else 1.0, marker="." if len(x) < 40 else None, label=text)
            if len(x) > 15:
                axes.plot(x, _running_mean(y, 9), color=axes.lines[-1].get_color(), label=f"{text}, mean of 9")
    axes.set(title=title, xlabel="rollout step", ylabel=label)
    for step in _points(records, "rollback", "back_to")[0]:
        axes.axvline(step, color="tab:red", linestyle=":", alpha=0.7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    if name in ("resolve_rate", "levels"):
        axes.set_ylim(bottom=0)


def _running_mean(values: list[float], width: int) -> list[float]:
    half = width // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(w) / len(w) for w in windows]


def _save(figure: Any, path: Path) -> Path:
    temporary = path.with_suffix(".tmp.png")
    figure.tight_layout()
    try:
        figure.savefig(temporary, dpi=110)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path

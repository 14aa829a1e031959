"""Does it learn? The quickstart, run for several seeds and with controls, and what a sceptic would ask of the result.

    python bench/learning.py [--runs seed1,seed2,seed3,shuffled,sglang,docker,async] [--out DIR] [--json PATH] [-- FLAGS ...]

Every run is `bash scripts/quickstart.sh` with one thing changed; a run that is finished in DIR is read, not made again, so
an interrupted proof goes on. FLAGS go to every run. Goals, on held-out packages at temperature 1 (declared beforehand):

- each seed: 8% to 50% before, at least 1.5 times that after, intervals (bootstrap over tasks) that do not overlap, at
  most 15 minutes of training, at least 400 attempts each time;
- rewards shuffled among attempts: the interval after reaches down to the rate before, and the steps are as many;
- another engine, another sandbox, one step ahead: the interval after overlaps that of seed 1; one step ahead takes less
  time than seed 1 (compare them in one go on a quiet machine).

Writes DIR/learning.png: the curves of training tasks and both evaluations of every run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from json_file import json_file
from rich.console import Console
from rich.table import Table

from swe_rl.observe.metrics import read_metrics

LOCAL = ["--sandbox", "bubblewrap"]
WHOLE = ["--max-train-seconds", "0", "--max-run-seconds", "0"]  # as many steps as seed 1, however slow they are
RUNS: dict[str, list[str]] = {
    "seed1": ["--seed", "1", *LOCAL],
    "seed2": ["--seed", "2", *LOCAL],
    "seed3": ["--seed", "3", *LOCAL],
    "shuffled": [
        "--seed",
        "1",
        *LOCAL,
        "--shuffle-rewards",
        "true",
        "--no-guard",
        *WHOLE,
    ],  # nothing comes to its rescue
    "sglang": ["--seed", "1", *LOCAL, "--engine", "sglang", *WHOLE],
    "docker": ["--seed", "1", "--sandbox", "docker", *WHOLE],
    "async": ["--seed", "1", *LOCAL, "--async"],
}
GOAL_FACTOR, GOAL_BEFORE, GOAL_SECONDS, GOAL_ATTEMPTS = 1.5, (0.08, 0.50), 900.0, 400
RUN_TIMEOUT = 3600.0


def run(name: str, folder: Path, flags: list[str]) -> dict[str, Any]:
    """The run's summary; made by the quickstart where it is not there yet. Exits, with the reason, where that fails."""
    summary = folder / "summary.json"
    if not summary.exists():
        command = ["bash", "scripts/quickstart.sh", "--run-dir", str(folder), "--eval-greedy", *RUNS[name], *flags]
        print("+", " ".join(command), flush=True)
        try:
            code = subprocess.run(command, check=False, timeout=RUN_TIMEOUT).returncode
        except subprocess.TimeoutExpired:
            sys.exit(f"bench/learning.py: {name} is not done after {RUN_TIMEOUT:.0f} s; run this again to continue it")
        if code:
            sys.exit(f"bench/learning.py: {name} ended with {code}; run this again to continue it, or remove {folder}")
    loaded: dict[str, Any] = json.loads(summary.read_text())
    return loaded


def overlap(first: dict[str, Any], second: dict[str, Any]) -> bool:
    (low, high), (other_low, other_high) = first["ci95"], second["ci95"]
    return bool(low <= other_high and other_low <= high)


def misses(name: str, summary: dict[str, Any], reference: dict[str, Any] | None) -> list[str]:
    """What the run fails to show; empty where it shows all it should."""
    before, after = summary["before"], summary["after"]
    found = []
    if min(before["n"], after["n"]) < GOAL_ATTEMPTS:
        found.append(f"fewer than {GOAL_ATTEMPTS} attempts")
    if name.startswith("seed"):
        if summary["seconds_training"] > GOAL_SECONDS:
            found.append(f"more than {GOAL_SECONDS:.0f} s of training")
        if not GOAL_BEFORE[0] <= before["resolve_rate"] <= GOAL_BEFORE[1]:
            found.append("rate before out of range")
        if after["resolve_rate"] < GOAL_FACTOR * before["resolve_rate"]:
            found.append(f"less than {GOAL_FACTOR} times the rate before")
        if overlap(before, after):
            found.append("intervals overlap")
    elif name == "shuffled":
        if after["ci95"][0] > before["resolve_rate"]:
            found.append("it improved all the same")
        if reference is None or summary["optimizer_steps"] < reference["optimizer_steps"]:
            found.append("fewer steps than seed1, or no seed1 to compare with")
    elif reference is None:
        found.append("no seed1 to compare with")
    else:
        if not overlap(after, reference["after"]):
            found.append("not the rate of seed 1")
        if summary["optimizer_steps"] < reference["optimizer_steps"]:
            found.append("fewer steps than seed 1")
        if name == "async" and summary["seconds_training"] >= reference["seconds_training"]:
            found.append("no faster than seed 1")
    return found


def rate(values: dict[str, Any] | None) -> str:
    if values is None:
        return ""
    low, high = (100 * bound for bound in values["ci95"])
    return f"{100 * values['resolve_rate']:.1f} [{low:.1f}, {high:.1f}]"


def show(summaries: dict[str, dict[str, Any]], verdicts: dict[str, list[str]]) -> None:
    table = Table(title="resolve rate on held-out packages, %, temperature 1 [95%]", title_justify="left")
    for column in ("run", "before", "after", "steps", "training s", "goal"):
        table.add_column(column)
    for name, summary in summaries.items():
        missed = "; ".join(verdicts[name])
        steps, seconds = str(summary["optimizer_steps"]), f"{summary['seconds_training']:.0f}"
        table.add_row(name, rate(summary["before"]), rate(summary["after"]), steps, seconds, missed or "met")
        levels = summary["before"].get("levels", {})
        for level in levels:
            table.add_row(f"  {level}", rate(levels[level]), rate(summary["after"]["levels"].get(level)), "", "", "")
        if "greedy" in summary["before"]:
            table.add_row("  greedy", rate(summary["before"]["greedy"]), rate(summary["after"]["greedy"]), "", "", "")
    Console().print(table)


def draw(folders: dict[str, Path], summaries: dict[str, dict[str, Any]], file: Path) -> None:
    """Training tasks (mean of five steps) over seconds of training, and the held-out rates with their intervals at both ends."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5))
    for index, (name, folder) in enumerate(folders.items()):
        records = read_metrics(folder / "metrics.jsonl")
        rates = [r["resolve_rate"] for r in records if r["kind"] == "rollout"]
        steps = [r["step"] for r in records if r["kind"] == "rollout"]
        means = [sum(rates[max(0, i - 4) : i + 1]) / len(rates[max(0, i - 4) : i + 1]) for i in range(len(rates))]
        line = axes.plot(steps, means, label=name, linestyle="--" if name == "shuffled" else "-")[0]
        for place, label in ((0, "before"), (steps[-1], "after")):
            value = summaries[name][label]
            low, high = value["ci95"]
            error = [[value["resolve_rate"] - low], [high - value["resolve_rate"]]]
            where = place + (index - len(folders) / 2) * 0.3
            axes.errorbar([where], [value["resolve_rate"]], yerr=error, fmt="o", capsize=3, color=line.get_color())
    axes.set(
        xlabel="rollout step",
        ylabel="resolved",
        title="Lines: training tasks, mean of five steps. Points: held-out packages, 95% intervals",
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", default="seed1,seed2,seed3,shuffled", help=f"of {', '.join(RUNS)} (default %(default)s)"
    )
    parser.add_argument("--out", default="export/learning", help="folder of the runs (default %(default)s)")
    parser.add_argument("--json", type=json_file, help="also write the figures to this file")
    parser.add_argument("flags", nargs="*", help="further flags of every run, after --")
    args = parser.parse_args()
    names = args.runs.split(",")
    if unknown := set(names) - set(RUNS):
        parser.error(f"--runs: unknown {', '.join(sorted(unknown))}; allowed are {', '.join(RUNS)}")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    folders = {name: out / name for name in names}
    summaries = {name: run(name, folder.absolute(), args.flags) for name, folder in folders.items()}
    seed1 = out / "seed1" / "summary.json"  # of an earlier proof, where this one is not asked for it
    reference = json.loads(seed1.read_text()) if seed1.exists() else None
    verdicts = {name: misses(name, summary, reference) for name, summary in summaries.items()}
    show(summaries, verdicts)
    draw(folders, summaries, out / "learning.png")
    if args.json:
        record = {name: {**summaries[name], "missed": verdicts[name]} for name in names}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())

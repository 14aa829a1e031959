"""Which held-out tasks an evaluation uses and what its attempts add up to, by level too."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from swe_rl.config import Config
from swe_rl.evaluate.intervals import resolve_rate
from swe_rl.types import Task, Verdict


def choose(tasks: Sequence[Task], config: Config) -> tuple[list[Task], int]:
    """Tasks and attempts per task, at least `eval_attempts` in all (0: `n_samples_per_eval_prompt` at each task).

    Where fewer attempts than tasks are wanted, a seeded sample of the tasks is taken, the same before and after training.
    """
    if not config.eval_attempts:
        return list(tasks), config.n_samples_per_eval_prompt
    if config.eval_attempts < len(tasks):
        picked = sorted(random.Random(f"eval/{config.seed}").sample(range(len(tasks)), config.eval_attempts))
        return [tasks[i] for i in picked], 1
    return list(tasks), math.ceil(config.eval_attempts / len(tasks))


def rates(records: Iterable[dict[str, Any]], *, seed: int) -> dict[str, Any]:
    """Resolve rate with interval over the attempts that count, the same by level, verdict counts, and infra_errors apart."""
    counted, by_level = [], defaultdict(list)
    verdicts: dict[str, int] = defaultdict(int)
    for record in records:
        verdicts[record["verdict"]] += 1
        if record["verdict"] == Verdict.INFRA_ERROR.value:
            continue
        pair = (record["instance_id"], record["verdict"] == Verdict.RESOLVED.value)
        counted.append(pair)
        level = record.get("task_metadata", {}).get("level")
        if level is not None:
            by_level[str(level)].append(pair)
    result = resolve_rate(counted, seed=seed).to_dict()
    result["levels"] = {level: resolve_rate(pairs, seed=seed).to_dict() for level, pairs in sorted(by_level.items())}
    result["verdicts"] = dict(verdicts)
    return result

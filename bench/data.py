"""Reading 100,000 rows: `swe-rl data inspect` on Parquet against a naive read with pandas, in the same run.

    python bench/data.py --json export/bench_data.json

Goals: inspect in under 20 s and 400 MB (peak resident memory of its process); streaming in at most 200 MB above a bare
import. The rows are made from a seed, with the sizes of SWE-bench Lite's (issue about 1 KB, 40-odd tests, patches).
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from json_file import json_file

ROWS = 100_000
GOAL_SECONDS, GOAL_MB, GOAL_STREAM_MB = 20.0, 400.0, 200.0
_STREAM = "import sys; from swe_rl.tasks.load import iter_tasks; print(sum(1 for _ in iter_tasks(sys.argv[1])))"
_BARE = "import sys; import pyarrow.parquet; from swe_rl.tasks.load import iter_tasks; print(0)"
_NAIVE = (
    "import sys, json, pandas; table = pandas.read_parquet(sys.argv[1]); print(table.groupby('repo').size().to_dict(),"
    " table.isna().sum().to_dict(), sum(len(json.loads(tests)) for tests in table['PASS_TO_PASS']))"
)


def make_parquet(path: Path, rows: int, seed: int) -> None:
    """Rows in SWE-bench's form, written in row groups of 1,000 (as hubs do)."""
    import pyarrow
    import pyarrow.parquet as parquet

    rng = random.Random(seed)
    words = [f"{rng.choice('abcdefghij')}{rng.randrange(10**6):x}" for _ in range(4000)]
    writer = None
    for start in range(0, rows, 1000):
        table = pyarrow.Table.from_pylist([_row(rng, words, i) for i in range(start, min(rows, start + 1000))])
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()


def _row(rng: random.Random, words: list[str], index: int) -> dict[str, str]:
    def text(count: int) -> str:
        return " ".join(rng.choices(words, k=count))

    repo = f"owner{index % 40}/project{index % 40}"
    tests = [
        f"tests/test_{index % 97}.py::TestCase::test_{rng.choice(words)}[{n}]" for n in range(rng.randrange(5, 90))
    ]
    diff = f"diff --git a/src/m.py b/src/m.py\n--- a/src/m.py\n+++ b/src/m.py\n@@ -1 +1 @@\n-{text(60)}\n+{text(60)}\n"
    return {
        "repo": repo,
        "instance_id": f"{repo.replace('/', '__')}-{index}",
        "base_commit": f"{rng.getrandbits(160):040x}",
        "patch": diff,
        "test_patch": diff.replace("src/m.py", "tests/test_m.py"),
        "problem_statement": text(150),
        "hints_text": text(60),
        "created_at": "2024-01-01T00:00:00Z",
        "version": f"{index % 7}.{index % 10}",
        "FAIL_TO_PASS": json.dumps(tests[:2]),
        "PASS_TO_PASS": json.dumps(tests[2:]),
        "environment_setup_commit": f"{rng.getrandbits(160):040x}",
    }


def measure(arguments: list[str]) -> dict[str, Any]:
    """Wall seconds and peak resident memory (MB) of one child process."""
    watcher = (
        "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode;"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024); sys.exit(code)"
    )
    started = time.perf_counter()
    child = subprocess.run([sys.executable, "-c", watcher, *arguments], capture_output=True, text=True, timeout=600)
    seconds = time.perf_counter() - started
    if child.returncode != 0:
        raise RuntimeError(f"{arguments[:4]}: exit code {child.returncode}: {child.stderr[-400:]}")
    return {"seconds": round(seconds, 2), "peak_mb": round(float(child.stdout), 1)}


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    ordered = sorted(runs, key=lambda run: run["seconds"])
    return {**ordered[len(ordered) // 2], "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=json_file, help="write the figures there")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swe-rl-bench-") as folder:
        path = Path(folder) / "rows.parquet"
        make_parquet(path, arguments.rows, arguments.seed)
        size = path.stat().st_size / 2**20
        commands = {
            "bare import": [sys.executable, "-c", _BARE, str(path)],
            "stream tasks": [sys.executable, "-c", _STREAM, str(path)],
            "inspect": [sys.executable, "-m", "swe_rl", "data", "inspect", str(path), "--json"],
            "pandas, whole file": [sys.executable, "-c", _NAIVE, str(path)],
        }
        figures = {name: median([measure(argv) for _ in range(arguments.repeat)]) for name, argv in commands.items()}
    stream_mb = figures["stream tasks"]["peak_mb"] - figures["bare import"]["peak_mb"]
    print(f"{arguments.rows:,} rows, Parquet of {size:.0f} MB, median of {arguments.repeat}")
    for name, run in figures.items():
        print(f"  {name:<20} {run['seconds']:7.2f} s  {run['peak_mb']:8.1f} MB")
    ratio = figures["pandas, whole file"]["peak_mb"] / figures["inspect"]["peak_mb"]
    print(
        f"  streaming holds {stream_mb:.1f} MB above a bare import; pandas needs {ratio:.1f} times the memory of inspect"
    )
    met = {
        "inspect_seconds": figures["inspect"]["seconds"] < GOAL_SECONDS,
        "inspect_mb": figures["inspect"]["peak_mb"] < GOAL_MB,
        "stream_mb": stream_mb <= GOAL_STREAM_MB,
    }
    result = {
        "rows": arguments.rows,
        "parquet_mb": round(size, 1),
        "figures": figures,
        "stream_above_import_mb": round(stream_mb, 1),
        "pandas_to_inspect_memory": round(ratio, 2),
        "goals": {"inspect_seconds": GOAL_SECONDS, "inspect_mb": GOAL_MB, "stream_mb": GOAL_STREAM_MB},
        "met": met,
        "bench_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    for name, good in met.items():
        if not good:
            print(f"MISSED: {name}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

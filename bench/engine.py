"""Decode speed and prefix reuse of the embedded engine, against plain transformers `generate` and (where installed) SGLang.

All engines serve the same random Qwen3 over the same prompts, one thread each, greedy, end of sequence ignored; the two
servers are measured over HTTP by the client that training uses. Goals: at batch 32 the embedded engine decodes at least
as many tokens per CPU second of its process as `generate` does (wall time, which a busy machine disturbs more, is printed too:
the client is a process of its own beside the engine), and in a 10-turn conversation it computes each prompt token once.

    python bench/engine.py --json PATH [--parameters 2] [--sglang]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from json_file import json_file
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from swe_rl.config import Config
from swe_rl.engine.client import EngineClient
from swe_rl.engine.launch import launch_engines

VOCABULARY = 1024
PROMPT_TOKENS = 200
TURNS = 10
TURN_OUTPUT, TURN_OBSERVATION = 32, 60
GOAL_RATIO = 1.0  # tokens per CPU second, embedded over HTTP / transformers in process, at the largest batch


class Speed(NamedTuple):
    """Tokens per second of the clock, and per CPU second of the process that made them."""

    per_second: float
    per_cpu_second: float


def policy(millions: int) -> Qwen3ForCausalLM:
    """A Qwen3 of about 2, 5 or 10 million parameters: the range of the quickstart policy."""
    hidden, layers = {2: (192, 4), 5: (256, 6), 10: (384, 6)}[millions]
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def prompts(count: int) -> list[list[int]]:
    return [[(31 * row + 7 * i * i) % VOCABULARY for i in range(PROMPT_TOKENS)] for row in range(count)]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children until now."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


class Stopwatch:
    """Wall and CPU seconds of a process since it was made."""

    def __init__(self, pid: int) -> None:
        self._pid, self._cpu, self._wall = pid, cpu_seconds(pid), time.perf_counter()

    def speed(self, tokens: int) -> Speed:
        return Speed(tokens / (time.perf_counter() - self._wall), tokens / (cpu_seconds(self._pid) - self._cpu))


@torch.inference_mode()
def with_transformers(model: PreTrainedModel, batch: int, new_tokens: int) -> Speed:
    """`generate` in this process."""
    ids = torch.tensor(prompts(batch))
    watch = Stopwatch(os.getpid())
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return watch.speed(batch * new_tokens)


async def over_http(client: EngineClient, pid: int, batch: int, new_tokens: int) -> Speed:
    """`batch` requests sent at once to the engine of process `pid`, prompts computed afresh."""
    await client.flush_cache()
    params = {"temperature": 0.0, "max_new_tokens": new_tokens, "ignore_eos": True}
    watch, name = Stopwatch(pid), time.time_ns()
    calls = (client.generate(ids, params, rid=f"{name}-{i}") for i, ids in enumerate(prompts(batch)))
    results = await asyncio.gather(*calls)
    return watch.speed(sum(len(result.output_ids) for result in results))


async def conversation(client: EngineClient) -> dict[str, float]:
    """Ten turns, each prompt extending the last one's tokens: seconds, and the share of prompt tokens that was reused."""
    await client.flush_cache()
    ids, prompt_tokens, cached = prompts(1)[0], 0, 0
    params = {"temperature": 0.0, "max_new_tokens": TURN_OUTPUT, "ignore_eos": True}
    started = time.perf_counter()
    for turn in range(TURNS):
        result = await client.generate(ids, params, rid=f"{started}-{turn}", routing_key="conversation")
        prompt_tokens += len(ids)
        cached += result.cached_tokens
        ids = ids + result.output_ids + [(turn + i) % VOCABULARY for i in range(TURN_OBSERVATION)]
    # what reuse cannot avoid: the first prompt, each observation, and the last sampled token of each turn
    needed = PROMPT_TOKENS + (TURNS - 1) * (TURN_OBSERVATION + 1)
    return {
        "seconds": time.perf_counter() - started,
        "prompt_tokens": prompt_tokens,
        "computed": prompt_tokens - cached,
        "needed": needed,
    }


async def measure_server(
    config: Config, folder: str, batches: list[int], new_tokens: int, repeats: int
) -> dict[str, Any]:
    fleet = await asyncio.to_thread(launch_engines, config, folder, log_dir=Path(folder))
    client = EngineClient(fleet.urls, request_timeout=600)
    pid = fleet.processes[0].pid
    try:
        await over_http(client, pid, 2, 8)
        speeds = {b: [await over_http(client, pid, b, new_tokens) for _ in range(repeats)] for b in batches}
        return medians(speeds) | {"conversation": await conversation(client)}
    finally:
        await client.aclose()
        fleet.stop()


def medians(speeds: dict[int, list[Speed]]) -> dict[str, Any]:
    return {
        "tokens_per_second": {str(b): statistics.median(s.per_second for s in many) for b, many in speeds.items()},
        "tokens_per_cpu_second": {
            str(b): statistics.median(s.per_cpu_second for s in many) for b, many in speeds.items()
        },
    }


def report(results: dict[str, Any], batches: list[int]) -> None:
    table = Table(title="decode, tokens per CPU second of the engine (per second of the clock), medians of one thread")
    for column in ("engine", *(f"batch {b}" for b in batches), "10 turns: computed"):
        table.add_column(column)
    for name, result in results.items():
        talk = result.get("conversation")
        share = f"{talk['computed']:.0f} / {talk['needed']:.0f} of {talk['prompt_tokens']:.0f}" if talk else ""
        cpu, wall = result["tokens_per_cpu_second"], result["tokens_per_second"]
        table.add_row(name, *(f"{cpu[str(b)]:.0f} ({wall[str(b)]:.0f})" for b in batches), share)
    Console().print(table)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=json_file, help="write the numbers here")
    parser.add_argument("--parameters", type=int, choices=(2, 5, 10), default=2, help="millions of parameters")
    parser.add_argument("--batches", default="1,8,32", help="requests at once")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--sglang", action="store_true", help="measure SGLang on the CPU too (scripts/setup_sglang_cpu.sh)"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    batches = [int(text) for text in args.batches.split(",")]
    model = policy(args.parameters)
    with tempfile.TemporaryDirectory(prefix="swe-rl-bench-") as folder:
        model.save_pretrained(folder)
        with_transformers(model, 2, 8)
        speeds = {b: [with_transformers(model, b, args.new_tokens) for _ in range(args.repeats)] for b in batches}
        results: dict[str, Any] = {"transformers generate": medians(speeds)}
        for engine in ("embedded", "sglang") if args.sglang else ("embedded",):
            config = Config(engine=engine, engine_cache_tokens=32768, engine_start_timeout=900)
            results[engine] = asyncio.run(measure_server(config, folder, batches, args.new_tokens, args.repeats))
    report(results, batches)
    largest = str(batches[-1])
    embedded = results["embedded"]
    plain = results["transformers generate"]
    ratio, wall = (embedded[n][largest] / plain[n][largest] for n in ("tokens_per_cpu_second", "tokens_per_second"))
    talk = embedded["conversation"]
    reached = ratio >= GOAL_RATIO and talk["computed"] <= talk["needed"]
    print(
        f"embedded / transformers at batch {largest}: {ratio:.2f} (goal {GOAL_RATIO}), by the clock {wall:.2f}; "
        f"goals {'reached' if reached else 'MISSED'}"
    )
    if args.json:
        size = sum(parameter.numel() for parameter in model.parameters())
        record = {
            "parameters": size,
            "results": results,
            "ratio": ratio,
            "wall_ratio": wall,
            "goal_ratio": GOAL_RATIO,
            "reached": reached,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

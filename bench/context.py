"""Context management: its cost per turn at 10, 100 and 1,000 turns, against rendering the whole conversation every turn.

Goal: linear in the turns, that is, a turn of an attempt of 1,000 costs at most twice a turn of one of 10.
Real tokenizer, no model: answers are random token ids, observations lines of source code. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from json_file import json_file

from swe_rl.agent.context import TokenHistory
from swe_rl.agent.tokens import ChatFormat, Message
from swe_rl.types import FinishReason, Turn
from tests.agent.build_tokenizers import build_tokenizer

TURNS = (10, 100, 1000)
MAX_PROMPT = 12_288  # the default context length minus the default response length
ANSWER_TOKENS = 120
FIRST: list[Message] = [
    {"role": "system", "content": "You are an experienced software engineer. " * 20},
    {"role": "user", "content": "clamp(3, 0, 2) returns 3 instead of 2. " * 40},
]


def observation(number: int) -> str:
    return "\n".join(f"{number + i:6d}\tdef function_{i}(value, low, high):  # line {i}" for i in range(20))


def managed(chat: ChatFormat, turns: int) -> tuple[float, int]:
    """CPU seconds of our token history over an attempt of `turns` turns, and its number of segments."""
    rng = random.Random(1)
    answers = [[rng.randrange(30, 390) for _ in range(ANSWER_TOKENS)] + [chat.end_of_turn_id] for _ in range(turns)]
    started = time.process_time()
    history = TokenHistory(
        chat, FIRST, max_prompt_tokens=MAX_PROMPT, head_ratio=0.3, omission=lambda n: f"[{n} steps left out]"
    )
    for number, ids in enumerate(answers):
        turn = Turn(history.prompt_ids(), ids, [-1.0] * len(ids), [0] * len(ids), FinishReason.STOP)
        history.add_answer(turn)
        history.add_observation(chat.decode_answer(ids), observation(number))
    return time.process_time() - started, len(history.segments)


def rendered(chat: ChatFormat, turns: int) -> float:
    """CPU seconds of rendering and tokenising the whole conversation every turn, the oldest turns left out one by one
    until it fits: the usual way, which also changes what was sampled."""
    rng = random.Random(1)
    tokenizer = chat.tokenizer
    messages = list(FIRST)
    started = time.process_time()
    for number in range(turns):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        while len(tokenizer(text, add_special_tokens=False)["input_ids"]) > MAX_PROMPT:
            del messages[2:4]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = [rng.randrange(30, 390) for _ in range(ANSWER_TOKENS)]
        messages.append({"role": "assistant", "content": chat.decode_answer(ids)})
        messages.append({"role": "user", "content": observation(number)})
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=json_file, help="write the numbers here")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions; medians are reported")
    parser.add_argument("--skip-rendered-above", type=int, default=100, help="turns up to which the alternative runs")
    args = parser.parse_args()
    chat = ChatFormat(build_tokenizer())
    managed(chat, 10)  # warm caches of templates and tokenizer
    rows = []
    for turns in TURNS:
        samples = [managed(chat, turns) for _ in range(args.repeats)]
        ours = statistics.median(seconds for seconds, _ in samples) / turns
        naive = rendered(chat, turns) / turns if turns <= args.skip_rendered_above else None
        rows.append(
            {
                "turns": turns,
                "ms_per_turn": ours * 1e3,
                "segments": samples[0][1],
                "rendered_ms_per_turn": naive and naive * 1e3,
            }
        )
    growth = rows[-1]["ms_per_turn"] / rows[0]["ms_per_turn"]
    table = Table(title="Context management, CPU per turn")
    for name in ("turns", "ours", "segments", "rendered anew", "ratio"):
        table.add_column(name, justify="right")
    for row in rows:
        naive = row["rendered_ms_per_turn"]
        shown = (f"{naive:.2f} ms", f"{naive / row['ms_per_turn']:.1f}") if naive else ("not run", "")
        table.add_row(str(row["turns"]), f"{row['ms_per_turn']:.2f} ms", str(row["segments"]), *shown)
    Console().print(table)
    met = growth <= 2.0
    print(
        f"growth of the cost per turn from 10 to 1,000 turns: {growth:.2f} (goal: at most 2.0): {'met' if met else 'MISSED'}"
    )
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "growth": growth, "goal": 2.0, "met": met}, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

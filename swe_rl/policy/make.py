"""`python -m swe_rl.policy.make`: a new tiny policy, untrained: tokenizer learned from practice texts, weights from a seed."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from swe_rl.agent.templates import load_prompts
from swe_rl.errors import SweRlError
from swe_rl.policy.model import new_policy, tiny_config
from swe_rl.policy.save import save_policy
from swe_rl.policy.tokenizer import train_tokenizer
from swe_rl.tasks.synth.practice import executed_snippets, renamed
from swe_rl.tasks.synth.practice_demos import conversation, practice_words, snippets_of

ROLES = "system\nuser\nassistant\n"


def practice_texts(sdists: list[Path], count: int, seed: int) -> Iterator[str]:
    """What conversations over the packages consist of: roles, prompts, issues, answers, listings."""
    rng = random.Random(seed)
    pools = [pool for pool in (snippets_of(sdist, rng) for sdist in sdists) if pool]
    words = practice_words(pools, rng)
    system = load_prompts("quickstart").system_template
    for done in executed_snippets(lambda: renamed(rng.choice(rng.choice(pools)), words, rng), count, rng):
        issue, turns = conversation(done, words, rng)
        yield ROLES + system
        yield issue
        for turn in turns:
            yield from turn


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m swe_rl.policy.make", description=__doc__)
    parser.add_argument("--sdist", action="append", required=True, help="package whose code the tokenizer learns from")
    parser.add_argument("--out", required=True, help="folder of the new policy")
    parser.add_argument("--texts", type=int, default=4000, help="practice conversations to learn from (default 4000)")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    sdists = [Path(name) for name in args.sdist]
    tokenizer = train_tokenizer(practice_texts(sdists, args.texts, args.seed), vocab_size=args.vocab_size)
    model = new_policy(tiny_config(tokenizer, hidden=args.hidden, layers=args.layers), seed=args.seed)
    save_policy(model, tokenizer, Path(args.out))
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokenizer)} tokens in {args.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SweRlError as error:
        sys.exit(f"policy.make: {error}")

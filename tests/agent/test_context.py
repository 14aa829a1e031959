"""Token histories: prompts extend one another, turns leave whole, each sampled token is trained exactly once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.agent.context import CONTEXT_DROPPED, HISTORY_REWRITTEN, ContextFull, TokenHistory
from swe_rl.agent.tokens import ChatFormat
from swe_rl.types import FinishReason, Turn
from tests.agent.build_tokenizers import build_tokenizer

FIRST = [{"role": "system", "content": "Fix it."}, {"role": "user", "content": "clamp(3, 0, 2) returns 3"}]
CHAT = {name: ChatFormat(build_tokenizer(name)) for name in ("chatml", "llama", "mistral", "qwen3", "qwq")}


def history(chat, limit=100_000, ratio=0.3):
    return TokenHistory(
        chat, FIRST, max_prompt_tokens=limit, head_ratio=ratio, omission=lambda n: f"[{n} steps left out]"
    )


def play(tokens, chat, answer_ids, observation, number=0):
    """One turn with log-probs that tell the turn and the position."""
    turn = Turn(
        tokens.prompt_ids(),
        answer_ids,
        [-number - i / 1000 for i in range(len(answer_ids))],
        [number] * len(answer_ids),
        FinishReason.STOP,
    )
    tokens.add_answer(turn)
    tokens.add_observation(chat.decode_answer(answer_ids), observation)
    return turn


def answer(chat, text):
    return [*chat.tokenizer(text, add_special_tokens=False)["input_ids"], chat.end_of_turn_id]


def check_trained_once(segments, turns):
    """The tokens with mask 1, in order, are the turns' outputs, each on its own prompt, with its log-probs and versions."""
    waiting = [turn for turn in turns if turn.output_ids]
    for segment in segments:
        n = len(segment.tokens) - segment.prompt_length
        assert len(segment.loss_mask) == len(segment.log_probs) == len(segment.weight_versions) == n
        position = 0
        while position < n:
            if segment.loss_mask[position] == 0:
                assert segment.log_probs[position] == 0.0 and segment.weight_versions[position] == -1
                position += 1
                continue
            turn = waiting.pop(0)
            end = position + len(turn.output_ids)
            start = segment.prompt_length + position
            assert segment.tokens[:start] == turn.prompt_ids
            assert segment.tokens[start : start + len(turn.output_ids)] == turn.output_ids
            assert segment.loss_mask[position:end] == [1] * len(turn.output_ids)
            assert segment.log_probs[position:end] == turn.log_probs
            assert segment.weight_versions[position:end] == turn.weight_versions
            position = end
    assert not waiting


def test_ids_that_decode_and_encode_differently_are_kept():
    """The policy may sample any ids for a text; encoding the text again would train ids it never sampled."""
    chat = CHAT["chatml"]
    tokenizer = chat.tokenizer
    odd = [tokenizer.convert_tokens_to_ids(c) for c in "sed"] + [chat.end_of_turn_id]
    assert tokenizer("sed", add_special_tokens=False)["input_ids"] != odd[:-1]
    invalid_utf8 = [tokenizer.convert_tokens_to_ids(c) for c in ("Ã", "ð", "Ł")]  # bytes that are no characters
    assert tokenizer(tokenizer.decode(invalid_utf8), add_special_tokens=False)["input_ids"] != invalid_utf8
    tokens = history(chat)
    turns = [play(tokens, chat, odd, "ok", 0), play(tokens, chat, invalid_utf8, "ok", 1)]
    last = tokens.prompt_ids()
    assert last[: len(turns[1].prompt_ids)] == turns[1].prompt_ids
    assert last[len(turns[1].prompt_ids) :][:3] == invalid_utf8
    assert last[len(turns[1].prompt_ids) + 3] == chat.end_of_turn_id  # not sampled: added, and not trained
    assert len(tokens.segments) == 1
    check_trained_once(tokens.segments, turns)
    assert sum(tokens.segments[0].loss_mask) == len(odd) + len(invalid_utf8)


@pytest.mark.parametrize("name", ["qwen3", "qwq"])
def test_removed_thinking_forks(name):
    chat = CHAT[name]
    tokens = history(chat)
    thinking = answer(chat, "hm\n</think>\n\n```bash\nls\n```" if name == "qwq" else "<think>\nhm\n</think>\n\nls")
    turns = [play(tokens, chat, thinking, "ok", i) for i in range(3)]
    assert [segment.fork_cause for segment in tokens.segments] == ["", HISTORY_REWRITTEN, HISTORY_REWRITTEN]
    check_trained_once(tokens.segments, turns)
    assert "hm" not in chat.tokenizer.decode(turns[2].prompt_ids)


def test_qwen3_answers_without_thinking_do_not_fork():
    chat = CHAT["qwen3"]
    tokens = history(chat)
    turns = [play(tokens, chat, answer(chat, f"```bash\nls {i}\n```"), "ok", i) for i in range(4)]
    assert len(tokens.segments) == 1
    check_trained_once(tokens.segments, turns)


@pytest.mark.parametrize("name", ["chatml", "llama", "mistral"])
def test_dropped_turns(name):
    chat = CHAT[name]
    limit = 600
    tokens = history(chat, limit)
    turns = []
    for i in range(60):
        turns.append(play(tokens, chat, answer(chat, f"look {i}"), f"line {i} " * 5, i))
        assert len(tokens.prompt_ids()) <= limit
    check_trained_once(tokens.segments, turns)
    assert all(segment.fork_cause == CONTEXT_DROPPED for segment in tokens.segments[1:])
    assert 2 < len(tokens.segments) < 30  # many turns leave at once
    text = chat.tokenizer.decode(tokens.prompt_ids())
    assert "clamp" in text and "look 0" in text and "look 59" in text and "look 30" not in text
    assert f"[{tokens.omitted_turns} steps left out]" in text
    kept = sum(f"look {i}<" in text or f"look {i}</s>" in text for i in range(60))
    assert kept == 60 - tokens.omitted_turns
    # the head's share: everything before the marker
    head = text[: text.index("steps left out")]
    assert len(chat.tokenizer(head, add_special_tokens=False)["input_ids"]) < 0.3 * limit + 20


def test_the_first_messages_stay_even_above_the_heads_share():
    chat = CHAT["mistral"]
    messages = list(FIRST)
    tokens = TokenHistory(
        chat, messages, max_prompt_tokens=150, head_ratio=0.0, omission=lambda n: f"[{n} steps left out]"
    )
    messages += [{"role": "assistant", "content": "long " * 99}]  # the transcript that the loop goes on writing
    turns = [play(tokens, chat, answer(chat, f"look {i}"), "word " * 8, i) for i in range(12)]
    text = chat.tokenizer.decode(tokens.prompt_ids())
    assert "clamp" in text and "steps left out" in text and "look 0" not in text
    check_trained_once(tokens.segments, turns)


def test_a_huge_newest_turn_pushes_out_the_heads_turns_then_fills_the_context():
    chat = CHAT["chatml"]
    tokens = history(chat, 400, ratio=0.5)
    for i in range(3):
        play(tokens, chat, answer(chat, f"look {i}"), "word " * 3, i)
    room = 400 - len(tokens.prompt_ids())
    play(tokens, chat, answer(chat, "big"), "xyz!" * (room // 4 + 10), 3)
    text = chat.tokenizer.decode(tokens.prompt_ids())
    assert len(tokens.prompt_ids()) <= 400 and "big" in text
    with pytest.raises(ContextFull, match="bound is 400"):
        play(tokens, chat, answer(chat, "bigger"), "xyz!" * 400, 4)
    with pytest.raises(ContextFull, match="first prompt"):
        history(chat, 10)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["chatml", "llama", "mistral", "qwen3"]),
    seed=st.integers(0, 10_000),
    limit=st.integers(150, 900),
    ratio=st.floats(0, 1),
)
def test_any_attempt_trains_each_sampled_token_once(name, seed, limit, ratio):
    """Random ids (not texts), closed or not, random observations, any bounds: the invariant of design rule 2."""
    chat = CHAT[name]
    rng = random.Random(seed)
    tokens = history(chat, limit, ratio)
    turns = []
    for i in range(25):
        ids = [rng.randrange(20, 400) for _ in range(rng.randrange(0, 30))]
        if rng.random() < 0.2 and name == "qwen3":
            ids = answer(chat, "a</think>b")
        if rng.random() < 0.7:
            ids.append(chat.end_of_turn_id)
        turns.append(Turn(tokens.prompt_ids(), ids, [-float(i)] * len(ids), [i] * len(ids), FinishReason.STOP))
        tokens.add_answer(turns[-1])
        try:
            tokens.add_observation(chat.decode_answer(ids), "out " * rng.randrange(0, 30))
        except ContextFull:
            break
        assert len(tokens.prompt_ids()) <= limit
    check_trained_once(tokens.segments, turns)

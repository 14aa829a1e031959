"""The tokenizer loses nothing, never merges across kinds of character, and its template can be used turn by turn."""

import random

from swe_rl.agent.tokens import chat_format
from swe_rl.policy.tokenizer import train_tokenizer

TEXTS = ["system user assistant", "def first_item(values):\n    return values[0] <= 10\n"] * 20


def test_round_trip_of_any_text() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=400)
    rng = random.Random(1)
    samples = ["", "é 漢字 \t\r\n  x", *("".join(chr(rng.randrange(1, 0x2FFF)) for _ in range(50)) for _ in range(20))]
    for text in samples:
        assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text


def test_kinds_of_character_never_share_a_token() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=400)
    pieces = [tokenizer.decode([i]) for i in tokenizer("values10_<=    first")["input_ids"]]
    assert pieces[-1] == "first"
    for piece in pieces:
        kinds = {"letter" if c.isalpha() else "digit" if c.isdigit() else "space" if c == " " else c for c in piece}
        assert len(kinds) == 1, piece
        assert piece.isalpha() or piece.isspace() or len(piece) == 1


def test_chat_template_works_turn_by_turn() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=400)
    assert chat_format(tokenizer).end_of_turn_id == tokenizer.eos_token_id

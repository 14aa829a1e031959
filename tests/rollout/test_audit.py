"""The audit finds every way in which trained tokens can differ from what the engine returned."""

from __future__ import annotations

from array import array

import pytest

from swe_rl.rollout.audit import audit_attempt
from swe_rl.rollout.ledger import EngineCall, RecordingEngine, recording
from swe_rl.types import Sample
from tests.agent.build_tokenizers import build_tokenizer
from tests.agent.scripted import ScriptedEngine


def call(prompt, output, log_probs=None, rid="a-t0"):
    log_probs = log_probs or [-0.5] * len(output)
    return EngineCall(rid, array("i", prompt), array("i", output), array("d", log_probs))


CALLS = [call([1, 2, 3], [4, 5]), call([1, 2, 3, 4, 5, 6, 7], [8, 9, 10], rid="a-t1")]


def sample(**changes):
    values = {
        "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        "response_length": 7,
        "loss_mask": [1, 1, 0, 0, 1, 1, 1],
        "rollout_log_probs": [-0.5, -0.5, 0.0, 0.0, -0.5, -0.5, -0.5],
    }
    return Sample(**{**values, **changes})


def test_what_was_sampled_is_trained_once():
    audit = audit_attempt([sample()], CALLS, "a")
    assert (audit.trained, audit.sampled, audit.dropped, audit.segments) == (5, 5, 0, 1)
    assert audit.sampled_fraction == 1.0


@pytest.mark.parametrize(
    ("changes", "sampled"),
    [
        ({"tokens": [1, 2, 3, 4, 99, 6, 7, 8, 9, 10]}, 0),  # an id changed: the second turn's prompt is wrong too
        ({"tokens": [1, 2, 3, 4, 5, 6, 99, 8, 9, 10]}, 2),  # an observation was rewritten
        ({"loss_mask": [1, 1, 1, 0, 1, 1, 1]}, 3),  # an observation's token is trained
        ({"loss_mask": [1, 1, 0, 1, 1, 1, 0]}, 2),  # a mask shifted by one
        ({"rollout_log_probs": [-0.5, -0.4, 0.0, 0.0, -0.5, -0.5, -0.5]}, 3),  # a log-prob changed
        ({"rollout_log_probs": None}, 0),
        ({"loss_mask": None}, 0),  # everything trained
    ],
)
def test_any_difference_lowers_the_fraction(changes, sampled):
    audit = audit_attempt([sample(**changes)], CALLS, "a")
    assert audit.sampled == sampled < audit.trained and audit.sampled_fraction < 1.0


def test_tokens_trained_twice_or_never():
    twice = audit_attempt([sample(), sample()], CALLS, "a")
    assert (twice.trained, twice.sampled) == (10, 5)
    masked = sample(loss_mask=[1, 1, 0, 0, 0, 0, 0])
    never = audit_attempt([masked], CALLS, "a")
    assert (never.trained, never.sampled, never.dropped) == (2, 2, 3) and never.sampled_fraction == 1.0
    assert audit_attempt([], CALLS, "a").dropped == 5


def test_what_is_left_out_of_training_is_not_counted_as_trained():
    audit = audit_attempt([sample()], [*CALLS, call([1], [2], rid="before-t0")], "a").untrained()
    assert (audit.trained, audit.sampled, audit.dropped, audit.retried, audit.segments) == (0, 0, 5, 1, 0)


def test_earlier_starts_and_forks_are_counted_apart():
    fork = sample(tokens=[1, 7, 8], response_length=1, loss_mask=[1], rollout_log_probs=[-0.5])
    fork.metadata = {"fork_cause": "context_dropped"}
    calls = [*CALLS, call([1, 7], [8], rid="a-t2"), call([1], [2, 3], rid="before-t0")]
    audit = audit_attempt([sample(), fork], calls, "a")
    assert (audit.trained, audit.sampled, audit.dropped, audit.retried) == (6, 6, 0, 2)
    assert audit.forks == {"context_dropped": 1} and audit.segments == 2
    total = audit_attempt([sample()], CALLS, "a")
    total += audit
    assert (total.trained, total.retried, total.segments, total.forks["context_dropped"]) == (11, 2, 3, 1)


async def test_the_recording_engine_is_a_second_witness():
    engine = RecordingEngine(ScriptedEngine(build_tokenizer(), [[5, 6]]))
    await engine.generate([9], {}, rid="outside")
    with recording() as calls:
        prompt = [1, 2]
        result = await engine.generate(prompt, {}, rid="x")
        prompt.append(3)
        result.output_ids.append(7)  # what a careless agent may do later does not change the record
    assert [(c.rid, list(c.prompt_ids), list(c.output_ids)) for c in calls] == [("x", [1, 2], [5, 6])]

"""What the engine really returned, written down at the engine's door, so that the token audit has a second witness.

The agent builds training sequences; the audit compares them with these records instead of trusting their construction.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from swe_rl.agent.loop import Engine
from swe_rl.deadline import Deadline


@dataclass(frozen=True)
class EngineCall:
    """One generation as it passed; compact copies, which nobody can change afterwards by accident."""

    rid: str
    prompt_ids: array[int]
    output_ids: array[int]
    log_probs: array[float]


_calls: ContextVar[list[EngineCall] | None] = ContextVar("engine_calls", default=None)


@contextlib.contextmanager
def recording() -> Iterator[list[EngineCall]]:
    """Collect the calls made through a RecordingEngine in this task and in tasks it starts."""
    calls: list[EngineCall] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


class RecordingEngine:
    """Passes `generate` on and records what came back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(
        self,
        input_ids: list[int],
        sampling_params: dict[str, Any],
        *,
        rid: str,
        routing_key: str = "",
        deadline: Deadline | None = None,
    ) -> Any:
        """See `swe_rl.engine.client.EngineClient.generate`."""
        prompt = array("i", input_ids)
        result = await self._engine.generate(
            input_ids, sampling_params, rid=rid, routing_key=routing_key, deadline=deadline
        )
        calls = _calls.get()
        if calls is not None:
            calls.append(EngineCall(rid, prompt, array("i", result.output_ids), array("d", result.log_probs)))
        return result

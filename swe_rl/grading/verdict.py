"""The result of grading one patch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swe_rl.types import Verdict


@dataclass
class GradeResult:
    """A verdict with its evidence.

    detail: reasons and files (JSON values only). tests: status by test id. output: what the tests printed (bounded).
    seconds: by stage ("open", "evaluate" with "apply" and "tests" in it, "close", "total"); 0.0 where the verdict was remembered.
    """

    verdict: Verdict
    detail: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, str] = field(default_factory=dict)
    output: str = ""
    returncode: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def resolved(self) -> bool:
        return self.verdict is Verdict.RESOLVED

"""The rollout manager as the driver sees it: calls that show progress while they wait, are bounded, and raise typed errors."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError

from swe_rl.config import Config
from swe_rl.errors import InfraError, SweRlError
from swe_rl.rollout.manager import RolloutManager
from swe_rl.types import Task

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
CLOSE_SECONDS = 30.0
START_SECONDS = 600.0  # reading tasks, choosing sandboxes, building a local image the first time
OnProgress = Callable[[dict[str, Any]], None]


class RolloutCall:
    """A rollout or evaluation under way. `result` waits for it; `done_within` only looks."""

    def __init__(self, owner: RemoteRollouts, ref: Any, *, what: str, bound: float) -> None:
        self._owner, self._ref, self._what = owner, ref, what
        self._until = time.monotonic() + bound
        self._bound = bound

    def result(self, on_progress: OnProgress | None = None) -> Any:
        """The call's result. Raises the typed error of the manager, or InfraError where it is gone or out of time."""
        while True:
            done, _ = ray.wait([self._ref], timeout=POLL_SECONDS)
            if done:
                return self._owner.get(self._ref, self._what)
            if time.monotonic() > self._until:
                ray.cancel(self._ref)
                raise InfraError(
                    f"{self._what}: not done after {self._bound:.0f} s, although every attempt has a deadline "
                    f"(swe_rollout_timeout {self._owner.attempt_seconds:g} s)"
                )
            if on_progress is not None:
                on_progress(self._owner.progress())

    def wait(self, on_progress: OnProgress | None = None) -> None:
        """Wait until it has ended, in success or not; `result` tells which."""
        while not ray.wait([self._ref], timeout=POLL_SECONDS)[0]:
            if time.monotonic() > self._until:
                return
            if on_progress is not None:
                on_progress(self._owner.progress())

    def abandon(self) -> None:
        """End it with its attempts and sandboxes; what it had sampled is lost."""
        ray.cancel(self._ref)
        with contextlib.suppress(SweRlError):  # cancelled as it should be, or failed of itself: nobody wants its result
            self._owner.get(self._ref, self._what, CLOSE_SECONDS)


class RemoteRollouts:
    """Owns the RolloutManager actor; `config.engine_urls` names the engines. Ray must be initialised."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._actor: Any = RolloutManager.remote(config)  # type: ignore[attr-defined]
        try:
            self.info: dict[str, Any] = self._ask("start", timeout=START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def attempt_seconds(self) -> float:
        """The deadline of one attempt, from which the bounds of calls are made."""
        return self._config.swe_rollout_timeout

    def start(self, step: int) -> RolloutCall:
        """Begin to sample the groups of a rollout step."""
        attempts = (
            self._config.rollout_batch_size
            * self._config.dynamic_sampling_max_factor
            * self._config.n_samples_per_prompt
        )
        return RolloutCall(
            self, self._actor.rollout.remote(step), what=f"rollout {step}", bound=self._time_for(attempts)
        )

    def evaluate(
        self, tasks: list[Task], *, attempts: int, temperature: float, label: str, attempts_dir: str
    ) -> RolloutCall:
        """Begin an evaluation: `attempts` attempts at each of `tasks`."""
        ref = self._actor.evaluate.remote(
            tasks, attempts=attempts, temperature=temperature, label=label, attempts_dir=attempts_dir
        )
        return RolloutCall(self, ref, what=f"evaluation '{label}'", bound=self._time_for(len(tasks) * attempts))

    def set_weight_version(self, version: int) -> None:
        self._ask("set_weight_version", version)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ask("load_state_dict", state)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._ask("state_dict")
        return state

    def progress(self) -> dict[str, Any]:
        """What the attempts are doing; empty where the manager is too busy to say."""
        try:
            snapshot: dict[str, Any] = ray.get(self._actor.progress.remote(), timeout=POLL_SECONDS)
        except RayError:  # the call itself tells what is wrong
            return {}
        return snapshot

    def close(self) -> None:
        """End attempts, sandboxes and the actor."""
        actor, self._actor = self._actor, None
        if actor is None:
            return
        try:
            ray.get(actor.close.remote(), timeout=CLOSE_SECONDS)
        except RayError as error:
            log.warning("the rollout manager did not close by itself (%s); its sandboxes end with its process", error)
        finally:
            ray.kill(actor, no_restart=True)

    def get(self, ref: Any, what: str, timeout: float = 60.0) -> Any:
        """The value of a finished call, or its typed error."""
        try:
            return ray.get(ref, timeout=timeout)
        except RayTaskError as error:
            if isinstance(error.cause, SweRlError):
                raise error.cause from None
            raise InfraError(f"{what} failed: {type(error.cause).__name__}: {error.cause}") from error
        except TaskCancelledError as error:
            raise InfraError(f"{what} was cancelled") from error
        except RayActorError as error:
            raise InfraError(f"{what}: the rollout manager's process died ({type(error).__name__})") from error
        except RayError as error:
            raise InfraError(f"{what}: {type(error).__name__}: {error}") from error

    def _ask(self, method: str, *args: Any, timeout: float = 60.0) -> Any:
        return self.get(getattr(self._actor, method).remote(*args), method, timeout)

    def _time_for(self, attempts: float) -> float:
        """Seconds that so many attempts can take at most: every wave of concurrent ones has the attempt's deadline."""
        waves = math.ceil(attempts / self.info["attempts_at_once"]) + 1
        return waves * self._config.swe_rollout_timeout + 60.0

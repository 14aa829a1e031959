"""Errors of the trainer: what failed decides whether a run stops, resumes from a checkpoint or asks the user."""

from __future__ import annotations

from swe_rl.errors import DataError, SweRlError


class TrainerError(SweRlError):
    """Training cannot go on: a worker raised, or the loss stayed non-finite."""


class TrainerDied(TrainerError):
    """A training process is gone (killed, out of memory, node lost) or did not answer within its bound."""


class TrainingCollapsed(TrainerError):
    """The guard restored the last good policy as often as it may. The run has ended, with that policy evaluated and exported."""


class CheckpointError(DataError):
    """A checkpoint cannot be written or read. The message names the folder, the reason and what is left intact."""

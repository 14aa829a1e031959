"""Certification: which tasks can be trusted. Gold patches must resolve every time, the empty patch never."""

from swe_rl.tasks.certify.command import main

__all__ = ["main"]

"""The `swe-rl` command itself."""

from __future__ import annotations

import os

import pytest

from swe_rl import cli


def test_waiting_threads_do_not_spin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Set before a command is imported, for torch reads it when it is loaded; a value of the user's stays."""
    for before, after in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if before:
            monkeypatch.setenv("OMP_WAIT_POLICY", before)
        with pytest.raises(SystemExit):
            cli.main(["data", "inspect", "--help"])
        assert os.environ["OMP_WAIT_POLICY"] == after

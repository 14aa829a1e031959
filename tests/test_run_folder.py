"""When a start makes a new run and when it continues an old one."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_rl.config import Config
from swe_rl.errors import ConfigError, UsageError
from swe_rl.run_folder import RunFolder, write_atomically


def config(tmp_path: Path, **kw: object) -> Config:
    return Config(export_root=str(tmp_path), **kw)  # type: ignore[arg-type]


def test_an_unfinished_run_is_continued_by_the_same_command(tmp_path: Path) -> None:
    first = RunFolder.open(config(tmp_path))
    first.close()
    second = RunFolder.open(config(tmp_path, save_keep=5, progress="none"))
    assert second.resumed and second.path.resolve() == first.path.resolve()


def test_other_settings_or_a_finished_run_start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_TIMESTAMP", "a")
    first = RunFolder.open(config(tmp_path))
    first.close()
    monkeypatch.setenv("RUN_TIMESTAMP", "b")
    second = RunFolder.open(config(tmp_path, lr=1e-3))
    assert not second.resumed and second.path != first.path
    assert (tmp_path / "latest").resolve() == second.path.resolve()
    write_atomically(second.summary, "{}")
    second.close()
    monkeypatch.setenv("RUN_TIMESTAMP", "c")
    assert not RunFolder.open(config(tmp_path, lr=1e-3)).resumed


def test_a_run_in_use_is_refused(tmp_path: Path) -> None:
    held = RunFolder.open(config(tmp_path, run_name="x"))
    with pytest.raises(UsageError, match="in use"):
        RunFolder.open(config(tmp_path, run_name="x"))
    held.close()


def test_a_named_run_with_other_settings_is_refused(tmp_path: Path) -> None:
    RunFolder.open(config(tmp_path, run_name="x")).close()
    with pytest.raises(ConfigError, match="lr"):
        RunFolder.open(config(tmp_path, run_name="x", lr=1e-3))


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    run = RunFolder.open(config(tmp_path, run_name="x"))
    write_atomically(run.summary, "{}")
    run.close()
    with pytest.raises(UsageError, match="finished"):
        RunFolder.open(config(tmp_path, run_name="x"))


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make"):
        RunFolder.open(config(tmp_path / "file"))

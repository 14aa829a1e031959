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


def test_a_run_that_was_never_begun_leaves_nothing(tmp_path: Path) -> None:
    kept = RunFolder.open(config(tmp_path, run_name="kept"))
    kept.close()
    outside = tmp_path / "elsewhere"
    refused = RunFolder.open(config(tmp_path, run_name="refused", save=str(outside / "a"), lr=1e-3))
    refused.close()
    refused.discard()
    assert not refused.path.exists() and list(outside.iterdir()) == []
    assert (tmp_path / "latest").resolve() == kept.path.resolve()
    mine = tmp_path / "mine"  # the user's own folders stay, empty as they are, and so does a claim of an earlier start
    mine.mkdir()
    (outside / "b" / "step_000001").mkdir(parents=True)
    (outside / "b" / ".run").write_text(f"{tmp_path / 'refused'}\n")
    refused = RunFolder.open(
        config(tmp_path, run_name="refused", save=str(outside / "b"), swe_save_traj_dir=str(mine), lr=1e-3)
    )
    refused.close()
    refused.discard()
    assert mine.is_dir() and (outside / "b" / ".run").is_file() and not refused.path.exists()
    again = RunFolder.open(config(tmp_path, run_name="kept"))  # what an earlier start made is kept
    again.close()
    again.discard()
    assert kept.path.exists()
    begun = RunFolder.open(config(tmp_path / "b"))
    begun.close()
    begun.metrics.touch()
    begun.discard()
    assert begun.path.exists()
    begun.metrics.unlink()
    begun.discard()
    assert list((tmp_path / "b").iterdir()) == []


def test_a_run_is_continued_by_the_link_latest(tmp_path: Path) -> None:
    first = RunFolder.open(config(tmp_path, run_name="x"))
    first.close()
    again = RunFolder.open(config(tmp_path, run_dir=str(tmp_path / "latest")))
    assert again.resumed and again.path == first.path.resolve()
    assert (tmp_path / "latest").resolve() == first.path.resolve()


def test_a_folder_of_checkpoints_belongs_to_one_run(tmp_path: Path) -> None:
    shared = tmp_path / "ckpt"
    first = RunFolder.open(config(tmp_path / "a", save=str(shared)))
    (shared / "step_000002").mkdir()
    first.close()
    with pytest.raises(ConfigError, match=r"--save .* holds the checkpoints of .*a/swe-rl_.*--load"):
        RunFolder.open(config(tmp_path / "b", save=str(shared)))
    again = RunFolder.open(config(tmp_path / "a", save=str(shared)))
    assert again.resumed and again.path.resolve() == first.path.resolve()
    again.close()
    other = RunFolder.open(config(tmp_path / "a", run_name="c", save=str(tmp_path / "other")))
    other.close()
    with pytest.raises(ConfigError, match=r"other settings \(save\)"):  # its checkpoints would be lost
        RunFolder.open(config(tmp_path / "a", run_name="c", save=str(tmp_path / "elsewhere")))
    (tmp_path / "strange" / "step_000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match="another run"):
        RunFolder.open(config(tmp_path / "d", save=str(tmp_path / "strange")))


def test_no_auto_resume_never_continues(tmp_path: Path) -> None:
    RunFolder.open(config(tmp_path, run_name="x")).close()
    with pytest.raises(UsageError, match="--no-auto-resume"):
        RunFolder.open(config(tmp_path, run_name="x", auto_resume=False))
    with pytest.raises(UsageError, match="--no-auto-resume"):
        RunFolder.open(config(tmp_path, run_dir=str(tmp_path / "x"), auto_resume=False))
    assert not RunFolder.open(config(tmp_path, auto_resume=False)).resumed


def test_what_refuses_a_run_leaves_no_trace(tmp_path: Path) -> None:
    def refuse(run: RunFolder, _config: Config) -> None:
        raise UsageError(f"{run.path.name}: no room")

    with pytest.raises(UsageError, match="x: no room"):
        RunFolder.open(config(tmp_path, run_name="x"), admit=refuse)
    assert list(tmp_path.iterdir()) == []


def test_evaluations_of_weights_that_are_made_again_are_forgotten(tmp_path: Path) -> None:
    run = RunFolder.open(config(tmp_path))
    for label in ("before", "step-10", "step-15"):
        run.evaluation(label).write_text("{}")
    run.forget_evaluations_after(10)
    assert [run.evaluation(label).exists() for label in ("before", "step-10", "step-15")] == [True, True, False]

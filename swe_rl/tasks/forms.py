"""From one raw row of any known dataset form to a `Task` (design, "Dataset forms that are read as they come").

The forms differ in where things lie, hardly in what they are called; so a row is first opened (`_open`) into one flat
mapping and then read by field names with aliases. Every refusal is a ValueError with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swe_rl.sandbox.variables import check_variables
from swe_rl.tasks import fields, images
from swe_rl.tasks.r2e import complete_r2e
from swe_rl.tasks.swe_smith import complete_swe_smith, is_swe_smith
from swe_rl.tasks.test_command import script_from_command, script_from_parts
from swe_rl.types import Task

# Task field: names it has in the wild, first found wins
ALIASES: dict[str, tuple[str, ...]] = {
    "instance_id": ("instance_id", "task_id", "id"),
    "problem_statement": ("problem_statement", "issue", "text", "prompt"),
    "repo": ("repo", "repo_name"),
    "base_commit": ("base_commit", "commit_hash", "base_sha"),
    "image": ("image", "image_name", "docker_image", "image_url"),
    "workdir": ("workdir", "work_dir", "cwd"),
    "eval_script": ("eval_script",),
    "test_command": ("eval_cmd", "test_cmd", "test_command"),
    "patch": ("patch", "gold_patch", "golden_patch"),
    "test_patch": ("test_patch",),
    "fail_to_pass": ("fail_to_pass", "FAIL_TO_PASS", "f2p"),
    "pass_to_pass": ("pass_to_pass", "PASS_TO_PASS", "p2p"),
    "version": ("version",),
    "data_source": ("data_source", "dataset", "source"),
}
_OWN = ("test_files", "log_parser", "archive", "certified", "flaky", "network", "env")
_EXTRA = ("level", "package", "difficulty", "created_at", "subset", "split", "environment_setup_commit")
_SHAPE = ("text", "prompt", "label", "metadata", "instance", "setup_script", "test_script", "expected_output_json",
          "parsed_commit_content", "image_assets")  # fmt: skip
COLUMNS = {name for names in ALIASES.values() for name in names} | {*_OWN, *_EXTRA, *_SHAPE}
_WRAPPERS = (
    "swe-rl",
    "instance-column",
)  # around a raw row of another form, or (with `log_parser`) around a Task of ours
LOG_PARSERS = ("", "pytest", "junit", "exit_code", "r2e")
_SWEBENCH_ID = re.compile(r"([\w.-]+)__([\w.-]+)-\d+")
_DIFF_TARGET = re.compile(r"^diff --git a/.* b/(.+)$", re.MULTILINE)


def form_of(row: Mapping[str, Any]) -> str:
    """The name of the row's form: swe-rl, instance-column, slime, r2e-gym, swe-smith, areal or swebench."""
    metadata = row.get("metadata")
    if "text" in row and isinstance(metadata, (dict, str)) and "instance" in metadata:
        return "swe-rl"
    if not fields.is_missing(row.get("instance")):
        return "instance-column"
    if "prompt" in row and not fields.is_missing(metadata):
        return "slime"
    if "expected_output_json" in row or ("docker_image" in row and "repo_name" in row):
        return "r2e-gym"
    if is_swe_smith(row):
        return "swe-smith"
    if "repo" not in row and ("eval_script" in row or "eval_cmd" in row):
        return "areal"
    return "swebench"


def task_from_row(
    row: Mapping[str, Any], *, fallback_id: str = "", for_training: bool = True, image_template: str = ""
) -> Task:
    """The task that `row` holds. Raises ValueError with the reason where it cannot be used.

    fallback_id: the id of rows of forms that have none (slime's coding-agent form). for_training: the row must hold a
    problem statement and a way to grade; False where only its tests are asked for (grading a log that exists).
    image_template: names the image of a row that names none (`image_from_template`) in place of the published rules.
    """
    form = form_of(row)
    flat = _open(row, form)
    if form in _WRAPPERS and "log_parser" not in flat:
        form = form_of({**flat, "metadata": None, "instance": None})
    raw_id = _first(flat, "instance_id")
    if fields.is_missing(raw_id):
        raw_id = _r2e_id(flat) if form == "r2e-gym" else (fallback_id if form == "slime" else "")
    task = Task(
        instance_id=fields.identifier(raw_id),
        problem_statement=_statement(flat, required=for_training),
        repo=fields.text(_first(flat, "repo"), "repo"),
        base_commit=fields.revision(_first(flat, "base_commit")),
        image=fields.image(_first(flat, "image")),
        workdir=fields.workdir(_first(flat, "workdir")),
        eval_script=fields.text(_first(flat, "eval_script"), "eval_script"),
        patch=fields.text(_first(flat, "patch"), "patch"),
        test_patch=fields.text(_first(flat, "test_patch"), "test_patch"),
        fail_to_pass=fields.string_list(_first(flat, "fail_to_pass"), "FAIL_TO_PASS"),
        pass_to_pass=fields.string_list(_first(flat, "pass_to_pass"), "PASS_TO_PASS"),
        test_files=[name for name in fields.string_list(flat.get("test_files"), "test_files") if name],
        log_parser=fields.text(flat.get("log_parser"), "log_parser"),
        version=fields.text(_first(flat, "version"), "version"),
        archive=fields.text(flat.get("archive"), "archive"),
        data_source=fields.text(_first(flat, "data_source"), "data_source"),
        certified=fields.flag(flat.get("certified"), "certified"),
        flaky=fields.flag(flat.get("flaky"), "flaky"),
        network=bool(fields.flag(flat.get("network"), "network")),
        env=_env(flat.get("env")),
        metadata=_metadata(flat),
    )
    _complete(task, flat, form)
    if not task.image and not task.archive:  # an archive brings the repository by itself
        task.image = fields.image(images.image_of(task, image_template))
    _check(task)
    if for_training:
        _check_gradable(task)
    elif not task.repo and (found := _SWEBENCH_ID.fullmatch(task.instance_id)):
        task.repo = f"{found[1]}/{found[2]}"
    return task


def _open(row: Mapping[str, Any], form: str) -> dict[str, Any]:
    """One flat mapping with everything the row says about its task; inner values win over outer ones."""
    outer = {k: v for k, v in row.items() if not fields.is_missing(v)}
    if form == "swe-rl":
        metadata = fields.mapping(outer.pop("metadata"), "metadata")
        instance = fields.mapping(metadata.pop("instance"), "metadata.instance")
        return {**outer, **_scalars(metadata), **_present(instance)}
    if form == "instance-column":
        instance = fields.mapping(outer.pop("instance"), "instance")
        return {**outer, **_present(instance)}
    if form == "slime":
        metadata = fields.mapping(outer.pop("metadata"), "metadata")
        instance = fields.mapping(metadata.pop("instance", None), "metadata.instance")
        return {**outer, **_present(metadata), **_present(instance)}
    return outer


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k == "log_parser" or not fields.is_missing(v)}


def _scalars(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if isinstance(v, (str, int, float, bool)) and not fields.is_missing(v)}


def _first(flat: Mapping[str, Any], name: str) -> Any:
    for alias in ALIASES[name]:
        value = flat.get(alias)
        if value is not None and not fields.is_missing(value):
            return value
    return None


def _statement(flat: Mapping[str, Any], *, required: bool) -> str:
    value = _first(flat, "problem_statement")
    if isinstance(value, (list, tuple)):  # a chat: the last user message
        turns = [m for m in value if isinstance(m, dict)]
        users = [m for m in turns if m.get("role") == "user"] or turns
        value = users[-1].get("content") if users else None
        if isinstance(value, list):
            value = "\n".join(str(part.get("text", "")) for part in value if isinstance(part, dict))
    statement = fields.text(value, "problem_statement")
    if not statement.strip() and required:
        raise ValueError("problem_statement is missing")
    return statement


def _metadata(flat: Mapping[str, Any]) -> dict[str, Any]:
    inner = flat.get("metadata")
    kept = {k: flat[k] for k in _EXTRA if k in flat and isinstance(flat[k], (str, int, float, bool))}
    # SWE-bench Multimodal: swebench's eval script fetches them.
    if assets := fields.mapping(flat.get("image_assets"), "image_assets"):
        kept["image_assets"] = {k: v for k, v in assets.items() if not fields.is_missing(v)}
    return {**kept, **(_given(inner) if isinstance(inner, dict) else {})}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Without what is missing: in Parquet every row has the keys of all rows. What is empty is a value."""
    return {k: v for k, v in values.items() if isinstance(v, (str, list, tuple, dict)) or not fields.is_missing(v)}


def _env(value: Any) -> dict[str, str]:
    env = {k: fields.text(v, f"env {k}") for k, v in _given(fields.mapping(value, "env")).items()}
    try:
        check_variables(env)
    except ValueError as error:
        raise ValueError(f"env: {error}") from None
    return env


def _r2e_id(flat: Mapping[str, Any]) -> str:
    repo, commit = flat.get("repo_name"), flat.get("commit_hash")
    return f"{repo}__{commit}" if isinstance(repo, str) and isinstance(commit, str) else ""


def _complete(task: Task, flat: Mapping[str, Any], form: str) -> None:
    """Fill what a form implies but does not write."""
    command = fields.text(_first(flat, "test_command"), "eval_cmd")
    if form == "r2e-gym":
        complete_r2e(task, flat)
    elif form == "swe-smith":
        complete_swe_smith(task, own_command=bool(command))
    if command and not task.eval_script:
        task.metadata["test_command"] = command
        task.eval_script = script_from_command(command)
    if not task.eval_script and flat.get("test_script"):
        setup = fields.text(flat.get("setup_script"), "setup_script")
        task.eval_script = script_from_parts(setup, fields.text(flat["test_script"], "test_script"))
    if task.eval_script and not task.fail_to_pass and not task.pass_to_pass and not task.log_parser:
        task.log_parser = "exit_code"  # no test is named: the script's exit code decides
    if not task.test_files and task.test_patch:
        task.test_files = list(dict.fromkeys(_DIFF_TARGET.findall(task.test_patch)))


def _check(task: Task) -> None:
    if task.log_parser not in LOG_PARSERS:
        raise ValueError(f"log_parser {task.log_parser!r} is none of {', '.join(LOG_PARSERS[1:])}")
    if any(len(part.encode()) > 255 for part in task.archive.split("/")) or len(task.archive.encode()) > 4095:
        raise ValueError(f"archive {task.archive[:60]!r}... is longer than any path")
    for path in task.test_files:
        if path.startswith("/") or ".." in path.split("/") or any(ord(c) < 32 for c in path):
            raise ValueError(f"test file {path[:60]!r} is not a path inside the repository")


def _check_gradable(task: Task) -> None:
    if task.log_parser == "junit":  # the grader brings its own command, which runs the named tests
        if not task.fail_to_pass:
            raise ValueError("FAIL_TO_PASS is empty, which log_parser 'junit' cannot do without")
        return
    if not task.eval_script and not (task.repo and task.version):
        raise ValueError("no way to grade: neither eval_script, nor repo and version, nor a test command")
    if not task.eval_script and not task.test_patch:
        raise ValueError("no way to grade: no eval_script, and no test_patch to make one from")
    if not task.fail_to_pass and not task.pass_to_pass and task.log_parser != "exit_code":
        raise ValueError("FAIL_TO_PASS and PASS_TO_PASS are empty: nothing says when the task is resolved")

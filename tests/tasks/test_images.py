"""Image names: published rules, templates, registries, digests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl import cli
from swe_rl.config.load import load_config
from swe_rl.errors import ConfigError
from swe_rl.generate_with_swe import task_of
from swe_rl.grading.regrade import config_of_run, tasks_of_run
from swe_rl.sandbox.container.pull_dataset import images_of
from swe_rl.tasks import images
from swe_rl.tasks.forms import task_from_row
from swe_rl.tasks.load import find_task, load_tasks
from swe_rl.types import Sample


@pytest.mark.parametrize(
    ("name", "repo", "source", "expected"),
    [
        ("Django__django-1", "django/django", "", "swebench/sweb.eval.x86_64.django_1776_django-1:latest"),
        ("getmoto__moto-1", "getmoto/moto", "", "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-1:latest"),
        ("own__thing-1", "own/thing", "SWE-Gym/SWE-Gym", "xingyaoww/sweb.eval.x86_64.own_s_thing-1:latest"),
        ("o__p.1a2b.lm__x", "swesmith/o__p.1a2b", "", "jyangballin/swesmith.x86_64.o_1776_p.1a2b:latest"),
        ("handmade", "", "", ""),
    ],
)
def test_published_rules(name: str, repo: str, source: str, expected: str) -> None:
    assert images.default_image(name, repo, source) == expected


def test_a_task_with_an_archive_needs_no_image() -> None:
    row = {"instance_id": "own__thing-1", "problem_statement": "p", "eval_script": "true", "log_parser": "exit_code"}
    assert task_from_row({"text": "p", "metadata": {"instance": row}}).image == images.swebench_image("own__thing-1")
    assert task_from_row({"text": "p", "metadata": {"instance": {**row, "archive": "a.tar"}}}).image == ""


def test_swebenchs_own_rule() -> None:
    """Against the package: the key of a TestSpec with the namespace `swebench`."""
    from swe_rl.tasks.swebench_library import swebench_library

    row = {
        "instance_id": "django__django-11099",
        "repo": "django/django",
        "version": "3.0",
        "base_commit": "a",
        "test_patch": "",
    }
    spec = swebench_library().make_test_spec(row, namespace="swebench")
    assert images.swebench_image("django__django-11099") == spec.instance_image_key


@pytest.mark.parametrize(
    ("image", "registry", "expected"),
    [
        ("swebench/x:1", "", "swebench/x:1"),
        ("swebench/x:1", "mirror.example:5000/hub/", "mirror.example:5000/hub/swebench/x:1"),
        ("swebench/x:1", "https://mirror.example", "mirror.example/swebench/x:1"),
        ("docker.io/swebench/x:1", "m.example", "docker.io/swebench/x:1"),
        ("ghcr.io/o/x:1", "m.example", "ghcr.io/o/x:1"),
        ("localhost:5000/x", "m.example", "localhost:5000/x"),
        ("m.example/swebench/x:1", "m.example", "m.example/swebench/x:1"),
        ("", "m.example", ""),
    ],
)
def test_registry(image: str, registry: str, expected: str) -> None:
    assert images.with_registry(image, registry) == expected
    assert images.with_registry(expected, registry) == expected


def test_template() -> None:
    values = {"instance_id": "A__b-1", "repo": "A/b", "version": "1"}
    assert (
        images.image_from_template("r/{id_1776}/{id_s}/{instance_id}:{version}", values)
        == "r/a_1776_b-1/a_s_b-1/a__b-1:1"
    )
    for bad in ("{nope}", "{0}", "{", "{repo.x}{"):
        with pytest.raises(ConfigError, match="known fields are"):
            images.image_from_template(bad, values)


def test_the_setting_names_images_of_tasks_that_name_none(tmp_path: Path) -> None:
    """In every command that has settings; a row's own image, and a task with an archive, are left alone."""
    row = {"problem_statement": "s", "eval_script": "true"}
    rows = [
        {**row, "instance_id": "a__b-1"},
        {**row, "instance_id": "c", "image": "own:1"},
        {**row, "instance_id": "d"},
    ]
    rows[2]["archive"] = "/x.tar"
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    template = load_config([], environ={"SWE_IMAGE_TEMPLATE": "reg.example/{id_s}:v1"}).config.swe_image_template
    tasks = load_tasks(tmp_path / "t.jsonl", image_template=template).tasks
    assert [task.image for task in tasks] == ["reg.example/a_s_b-1:v1", "own:1", ""]
    assert find_task(tmp_path / "t.jsonl", "a__b-1", image_template=template).image == tasks[0].image
    assert task_of(Sample(prompt="s", metadata={"instance": rows[0]}), template).image == tasks[0].image
    assert images_of(str(tmp_path / "t.jsonl"), "", template) == ["own:1", "reg.example/a_s_b-1:v1"]
    (tmp_path / "config.yaml").write_text(f"prompt_data: {tmp_path / 't.jsonl'}\nswe_image_template: {template}\n")
    config = config_of_run(tmp_path, [])
    assert tasks_of_run(tmp_path, [], config.swe_image_template)["a__b-1"].image == tasks[0].image
    with pytest.raises(ConfigError, match=r"--swe-image-template.*known fields are"):
        load_config(["--swe-image-template", "x/{nope}"], environ={})


def test_the_setting_reaches_certification(tmp_path: Path) -> None:
    rows = [{"instance_id": "a__b-1", "problem_statement": "s", "eval_script": "true"}]
    (tmp_path / "t.jsonl").write_text(json.dumps(rows[0]) + "\n")
    call = [
        "data",
        "certify",
        str(tmp_path / "t.jsonl"),
        "--sandbox",
        "process",
        "--swe-image-template",
        "r/{instance_id}",
    ]
    assert cli.main(call) == 1  # the row has no gold patch
    assert load_tasks(tmp_path / "t.certified.jsonl").tasks[0].image == "r/a__b-1"


DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "given", "expected"),
    [
        ("r.example:5000/x/y:1", DIGEST, f"r.example:5000/x/y@{DIGEST}"),
        ("r.example:5000/x/y", f"other/y@{DIGEST}", f"r.example:5000/x/y@{DIGEST}"),
        (f"x@sha256:{'b' * 64}", DIGEST, f"x@{DIGEST}"),
        ("x:1", "", "x:1"),
    ],
)
def test_pins(image: str, given: str, expected: str) -> None:
    assert images.pin(image, given) == expected


def test_what_is_no_digest() -> None:
    with pytest.raises(ValueError, match="no sha256"):
        images.pin("x", "latest")


def test_the_variables_of_the_fields_script(tmp_path: Path) -> None:
    """Which images are pulled; there is no engine to pull them."""
    rows = [
        {"instance_id": f"t-{i}", "problem_statement": "x", "eval_script": "true", "image": f"own:{i}"}
        for i in range(3)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "list").write_text("other:1\nother:2\n")

    def pull(*flags: str, **variables: str) -> tuple[int, str]:
        own = ("SWE_", "DOCKER_", "TRAIN", "IMAGE_LIST")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own) and name != "N"}
        env = {**kept, "DOCKER_HOST": "unix:///no/such.sock", "PYTHON": sys.executable, **variables}
        script = Path(__file__).resolve().parents[2] / "data" / "pull_swe_images.sh"
        done = subprocess.run(
            ["bash", str(script), *flags], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout + done.stderr

    tasks, images = str(tmp_path / "t.jsonl"), str(tmp_path / "list")
    for flags, variables, start in (
        ((), {"TRAIN": tasks, "N": "2"}, "2 images, 1 places, 2 failures\nown:0: "),
        ((), {"IMAGE_LIST": images, "TRAIN": tasks, "N": ""}, "2 images, 1 places, 2 failures\nother:1: "),
        ((tasks, "--limit", "1"), {"IMAGE_LIST": images}, "1 images, 1 places, 1 failures\nown:0: "),
    ):
        code, said = pull(*flags, **variables)
        assert code == 1 and start in said, said
    code, said = pull(tasks, N="many")
    assert code == 2 and "--limit" in said
    code, said = pull()
    assert code == 2 and "IMAGE_LIST" in said

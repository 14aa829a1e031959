"""Image names: published rules, templates, registries, digests."""

from __future__ import annotations

import pytest

from swe_rl.errors import ConfigError
from swe_rl.tasks import images
from swe_rl.tasks.forms import task_from_row


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

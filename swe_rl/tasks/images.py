"""Names of task images: each dataset's published rule, a template, a registry prefix or mirror, digest pins.

Sources: SWE-bench `TestSpec.instance_image_key` (namespace `swebench`, `__` -> `_1776_`); SWE-Gym's images on Docker Hub
(`xingyaoww`, `__` -> `_s_`); SWE-smith's `image_name` and R2E-Gym's `docker_image` come in the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from swe_rl.errors import ConfigError
from swe_rl.types import Task

SWE_GYM_REPOS = frozenset(
    {
        "getmoto/moto",
        "dask/dask",
        "conan-io/conan",
        "python/mypy",
        "pandas-dev/pandas",
        "pydantic/pydantic",
        "iterative/dvc",
        "modin-project/modin",
        "Project-MONAI/MONAI",
        "bokeh/bokeh",
        "facebookresearch/hydra",
    }
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def swebench_image(instance_id: str) -> str:
    """The image SWE-bench publishes for an instance (x86_64)."""
    return f"swebench/sweb.eval.x86_64.{instance_id.lower().replace('__', '_1776_')}:latest"


def swe_gym_image(instance_id: str) -> str:
    """The image SWE-Gym publishes for an instance."""
    return f"xingyaoww/sweb.eval.x86_64.{instance_id.lower().replace('__', '_s_')}:latest"


def swe_smith_image(repo: str) -> str:
    """The image of a SWE-smith repository such as `swesmith/oauthlib__oauthlib.1fd52536` (all its bugs share it)."""
    name = repo.split("/")[-1].lower()
    return f"jyangballin/swesmith.x86_64.{name.replace('__', '_1776_')}:latest"


def default_image(instance_id: str, repo: str, data_source: str) -> str:
    """The published image by data source or repository; "" where no rule is known (the row must then name one)."""
    source = data_source.lower().replace("_", "-")
    if "smith" in source or repo.startswith("swesmith/"):
        return swe_smith_image(repo) if repo else ""
    if "gym" in source or repo in SWE_GYM_REPOS:
        return swe_gym_image(instance_id)
    if "__" in instance_id and re.fullmatch(r"[\w.-]+__[\w.-]+-\d+", instance_id):
        return swebench_image(instance_id)
    return ""


def image_from_template(template: str, values: Mapping[str, str]) -> str:
    """`template` with {instance_id}, {repo}, {version}, {id_1776} and {id_s} (the id after each dataset's rule) filled in.

    Raises ConfigError naming the unknown field.
    """
    instance_id = values.get("instance_id", "").lower()
    known = {
        **values,
        "instance_id": instance_id,
        "id_1776": instance_id.replace("__", "_1776_"),
        "id_s": instance_id.replace("__", "_s_"),
    }
    try:
        return template.format_map(known)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"image template {template!r}: {error}; known fields are {', '.join(sorted(known))}"
        ) from None


def image_of(task: Task, template: str) -> str:
    """The image of a task that names none: by `template` (setting `swe_image_template`), else by the published rules."""
    if not template:
        return default_image(task.instance_id, task.repo, task.data_source)
    values = {"instance_id": task.instance_id, "repo": task.repo, "version": task.version}
    return image_from_template(template, values)


def _has_registry(image: str) -> bool:
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def with_registry(image: str, registry: str) -> str:
    """`image` below `registry` (`SWE_DOCKER_REGISTRY`): `mirror.example:5000/hub` + `swebench/x:latest`.

    An image that names a registry of its own (`ghcr.io/...`, `docker.io/...`) is left alone, and so is every image where
    there is no registry to put before it.
    """
    registry = registry.strip().rstrip("/")
    for scheme in ("https://", "http://", "docker://"):
        registry = registry.removeprefix(scheme)
    if not registry or not image or image.startswith(registry + "/"):
        return image
    return image if _has_registry(image) else f"{registry}/{image}"


def pin(image: str, digest: str) -> str:
    """`repository@sha256:...`: the exact image that certification saw. Returns `image` where `digest` is empty.

    `digest` may be a bare `sha256:...` or an engine's `repository@sha256:...`. Raises ValueError for anything else.
    """
    if not digest:
        return image
    found = _DIGEST.search(digest)
    if found is None:
        raise ValueError(f"{digest!r} is no sha256 digest")
    name = image.split("@", 1)[0]
    head, colon, tag = name.rpartition(":")
    repository = head if colon and "/" not in tag else name
    return f"{repository}@{found.group(0)}"

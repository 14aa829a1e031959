"""Image references: default tag, registry, credentials and mirrors, as the docker CLI understands them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

from swe_rl.errors import ConfigError, UsageError

HUB = "docker.io"
HUB_AUTH_KEYS = ("https://index.docker.io/v1/", "index.docker.io", HUB)
REFERENCE = re.compile(r"[a-z0-9A-Z][\w.:/@-]{0,510}\Z", re.ASCII)


def normalized(image: str) -> str:
    """`image` as Docker lists it: short where it is docker.io's, its default tag spelt out.

    Raises UsageError for what is no reference at all.
    """
    if not REFERENCE.match(image):
        raise UsageError(f"image {image[:200]!r} is not an image reference")
    image = familiar(image)
    if "@" in image or ":" in image.rsplit("/", 1)[-1]:
        return image
    return f"{image}:latest"


def familiar(image: str) -> str:
    """Without the host of docker.io: Docker leaves it out of its lists, Podman writes it."""
    return image.removeprefix(f"{HUB}/").removeprefix("library/") if image.startswith(f"{HUB}/") else image


def registry_of(image: str) -> str:
    """The registry's host of a reference; docker.io where none is named."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else HUB


def repository(image: str) -> str:
    """The path in its registry: without host, tag and digest."""
    path = image.removeprefix(f"{registry_of(image)}/").partition("@")[0]
    return path.partition(":")[0]


def candidates(image: str, mirrors: list[str]) -> list[str]:
    """Where to pull `image` from, in order: mirrors of docker.io first, then the origin.

    A digest is pulled from the origin alone: the engine gives no image of a mirror the name that carries it.
    """
    if registry_of(image) != HUB or "@" in image:
        return [image]
    path = image.removeprefix(f"{HUB}/")
    if "/" not in path:
        path = f"library/{path}"
    return [f"{mirror.rstrip('/')}/{path}" for mirror in mirrors] + [image]


def load_credentials(path: str) -> dict[str, dict[str, str]]:
    """{registry: engine's auth object} from a docker config.json; an empty path means none. Raises ConfigError."""
    if not path:
        return {}
    try:
        auths = json.loads(Path(path).read_text(encoding="utf-8")).get("auths", {})
        found = {}
        for registry, entry in auths.items():
            user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
            key = HUB if registry in HUB_AUTH_KEYS else registry.removeprefix("https://").rstrip("/")
            found[key] = {"username": user, "password": password, "serveraddress": registry}
        return found
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"registry credentials {path}: not a docker config.json ({type(error).__name__})") from None


def auth_header(image: str, credentials: dict[str, dict[str, str]]) -> dict[str, str]:
    """The engine's header for pulling `image`."""
    entry = credentials.get(registry_of(image))
    if entry is None:
        return {}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(entry).encode()).decode()}

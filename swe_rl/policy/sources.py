"""Which packages' code the quickstart's policy practises on: `data/quickstart/practice.json`, pinned, none of them held out."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from swe_rl.errors import DataError, SweRlError
from swe_rl.tasks.synth.source import cached_sdist, download_sdist, sha256

LIST = Path("data/quickstart/practice.json")
PACKAGES = Path("data/quickstart/packages.json")


def practice_sdists(cache: Path) -> list[Path]:
    """The sdist files, downloaded by pip where they are missing. Raises DataError for a wrong hash or a held-out package."""
    held_out = {entry["package"] for entry in json.loads(PACKAGES.read_text()) if entry["split"] == "heldout"}
    files = []
    for entry in json.loads(LIST.read_text()):
        name, version = entry["package"], entry["version"]
        if name in held_out:
            raise DataError(f"{LIST}: {name} is held out and must not be practised on")
        file = cached_sdist(name, version, cache) or download_sdist(f"{name}=={version}", cache)
        if sha256(file) != entry["sha256"]:
            raise DataError(f"{file}: sha256 is {sha256(file)}, {LIST} says {entry['sha256']}")
        files.append(file)
    return files


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m swe_rl.policy.sources", description=__doc__)
    parser.add_argument("--cache", required=True, help="folder of downloaded sdists")
    args = parser.parse_args(argv)
    for file in practice_sdists(Path(args.cache)):
        print(file)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SweRlError as error:
        sys.exit(f"policy.sources: {error}")

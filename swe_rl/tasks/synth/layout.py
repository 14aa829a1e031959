"""Which files of a repository are tests (hidden from the agent) and which hold code that may be broken."""

from __future__ import annotations

from pathlib import PurePosixPath

TEST_FOLDERS = {"test", "tests", "testing"}
NOT_CODE = {"setup.py", "conftest.py", "noxfile.py", "__main__.py"}


def is_test_file(path: str) -> bool:
    """Whether a file belongs to the tests: in a test folder, or named as pytest collects it."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    named = name.endswith(".py") and (name.startswith("test_") or name.removesuffix(".py").endswith("_test"))
    return bool(TEST_FOLDERS & set(parts[:-1])) or named or name in ("conftest.py", "tests.py", "test.py")


def is_test_module(path: str) -> bool:
    name = PurePosixPath(path).name
    return is_test_file(path) and name.endswith(".py") and name not in ("conftest.py", "__init__.py")


def code_modules(tree: dict[str, bytes]) -> list[str]:
    """Python modules that are not tests, in order of their paths."""
    return [
        path
        for path in sorted(tree)
        if path.endswith(".py") and not is_test_file(path) and PurePosixPath(path).name not in NOT_CODE
    ]

"""New modules that would be imported in place of what a test run stands on: the standard library, pytest and what it needs.

`python -m pytest` puts the current folder before the standard library, so a new `argparse.py` at the top runs before pytest
does, and can print a whole passing session and leave. Only making such a file is one: a repository may have its own.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterable

# Of the Pythons that images have (3.6 and newer), whatever the Python that the grader runs on.
_GONE_FROM_THE_LIBRARY = (
    "_bootlocale", "aifc", "asynchat", "asyncore", "audioop", "binhex", "cgi", "cgitb", "chunk", "crypt", "distutils",
    "dummy_threading", "formatter", "imghdr", "imp", "lib2to3", "macpath", "mailcap", "msilib", "nis", "nntplib",
    "ossaudiodev", "parser", "pipes", "smtpd", "sndhdr", "spwd", "sunau", "symbol", "telnetlib", "uu", "xdrlib",
)  # fmt: skip
_IMPORTED_BY_THE_RUNNER = (
    "_pytest", "atomicwrites", "attr", "attrs", "colorama", "exceptiongroup", "execnet", "funcsigs", "importlib_metadata",
    "importlib_resources", "iniconfig", "more_itertools", "packaging", "pathlib2", "pkg_resources", "pluggy", "py", "pygments",
    "pyparsing", "pytest", "setuptools", "six", "toml", "tomli", "typing_extensions", "wcwidth", "xdist", "zipp",
    "_hypothesis_pytestplugin", "hypothesis", "anyio", "coverage", "mock",
)  # fmt: skip
_STARTED_WITH = ("sitecustomize", "usercustomize", "swe_rl_session")
_NAMES = frozenset((*sys.stdlib_module_names, *_GONE_FROM_THE_LIBRARY, *_IMPORTED_BY_THE_RUNNER, *_STARTED_WITH))
_PLUGIN = re.compile(r"pytest_\w+$")
_MODULE = re.compile(r"(?P<name>[^/.]+)(?:/__init__)?(?:\.[\w-]+)*\.(?:py|pyc|so|pyd)$")


def is_shadow(path: str, roots: Iterable[str] = ("",)) -> bool:
    """Whether a file made at `path` is such a module. roots: folders, relative, that the test run may import from."""
    for root in roots:
        inside = path if root in ("", ".") else path.removeprefix(posixpath.normpath(root) + "/")
        if root not in ("", ".") and inside == path:
            continue
        found = _MODULE.match(inside)
        if found and (found["name"] in _NAMES or _PLUGIN.match(found["name"])):
            return True
    return False

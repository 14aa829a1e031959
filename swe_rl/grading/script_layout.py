"""Where an eval script lays out the graders' tests itself: its `git apply` of the test patch, its checkouts of their files.

grade.sh has laid out the same files, from git's objects, and watches them from then on. The script doing it once more would
be a write to a watched file, and a second `git apply` of a patch that creates files applies nothing at all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

# git apply -v - <<'EOF_1' ... EOF_1 as swebench writes it: nothing else on either line, so no other command depends on it.
_APPLY = re.compile(
    r"^[ \t]*git apply(?:[ \t]+-\S*)*[ \t]*<<[ \t]*(['\"]?)(\w+)\1[ \t]*\r?\n(.*?)\n\2[ \t]*\r?$",
    re.MULTILINE | re.DOTALL,
)
_CHECKOUT = re.compile(
    r"^[ \t]*git checkout[ \t]+(?:(?:-[qf]+|--quiet|--force)[ \t]+)*(?:(HEAD|[0-9a-fA-F]{7,64})[ \t]+(?:--[ \t]+)?|--[ \t]+)"
    r"([^\n;&|<>$`(){}]+?)[ \t]*\r?$",
    re.MULTILINE,
)
_GIT_WRITES = re.compile(r"\bgit\b[^\n]*\b(?:checkout|restore)\b([^\n]*)")
_DONE = ":"  # in place of what is left out: an `if` around it keeps a body, the exit code is 0


def applied_patches(script: str) -> list[str]:
    """The patches that the script applies from its own text."""
    return [found[3] for found in _APPLY.finditer(script)]


def without_layout(script: str, *, test_patch: str, files: Collection[str], base: str) -> str:
    """The script without its own lay-out of `files` (base commit and test patch), all else byte for byte as it is.

    base: the base commit, or what a row without its id has instead ("" or a tag): grade.sh then works on HEAD, and the
    commit that the script names is taken for the same. Where the script applies any other patch, it is left as it is: that
    may belong to the files that it checks out.
    """
    wanted = _plain(test_patch)
    rest = _APPLY.sub(lambda found: _DONE if wanted and _plain(found[3]) == wanted else found[0], script)
    if re.search(r"\bgit\b.*\bapply\b", rest):
        return script
    known = base.lower() if re.fullmatch(r"[0-9a-fA-F]{7,64}", base) else ""
    names = {*files, *" ".join(files).split()}  # swebench does not quote names with spaces

    def checkout(found: re.Match[str]) -> str:
        same_commit = found[1] in (None, "HEAD") or not known or known.startswith(found[1].lower())
        return _DONE if same_commit and names.issuperset(_words(found[2])) else found[0]

    return _CHECKOUT.sub(checkout, rest)


def rewrites(script: str, files: Collection[str]) -> bool:
    """Whether git writes one of `files`, or a folder above it, anywhere in the script."""
    above = {
        "/".join(parts[:number]) for parts in (name.split("/") for name in files) for number in range(1, len(parts))
    }
    names = {".", *files, *above}
    return any(
        names.intersection(word.removeprefix("./").rstrip("/") or "." for word in _words(found[1]))
        for found in _GIT_WRITES.finditer(script)
    )


def _plain(patch: str) -> str:
    return patch.replace("\r\n", "\n").strip()


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()

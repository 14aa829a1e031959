"""The reverse of a git patch as text: SWE-smith's rows hold the patch that makes the bug, and the fix undoes it."""

from __future__ import annotations

import re

_HUNK = re.compile(r"^@@ -(\S+) \+(\S+) @@(.*)$", re.DOTALL)
_SWAPS = {
    "new file mode": "deleted file mode",
    "deleted file mode": "new file mode",
    "old mode": "new mode",
    "new mode": "old mode",
    "rename from": "rename to",
    "rename to": "rename from",
}
_PAIR_ORDER = (("old mode", "new mode"), ("rename from", "rename to"), ("---", "+++"))


def reverse_patch(patch: str) -> str:
    """What `git apply --reverse` would apply, written forwards. Raises ValueError for binary patches and copies."""
    if "GIT binary patch" in patch:
        raise ValueError("a binary patch cannot be reversed as text")
    out: list[str] = []
    lines = patch.split("\n")
    i = 0
    while i < len(lines):
        line = lines[i]
        hunk = _HUNK.match(line)
        if hunk:
            i = _reverse_hunk(lines, i, hunk, out)
            continue
        out.append(_reverse_header(line))
        i += 1
    return "\n".join(_order_pairs(out))


def _count(span: str) -> int:
    return int(span.split(",")[1]) if "," in span else 1


def _reverse_hunk(lines: list[str], start: int, hunk: re.Match[str], out: list[str]) -> int:
    """Append the reversed hunk; return the index after it. Removed lines are written before added ones, as git does."""
    old, new, rest = hunk.groups()
    out.append(f"@@ -{new} +{old} @@{rest}")
    left_old, left_new, i = _count(old), _count(new), start + 1
    removed: list[str] = []
    added: list[str] = []

    def flush() -> None:
        out.extend(removed + added)
        removed.clear()
        added.clear()

    last = removed
    while i < len(lines) and (left_old > 0 or left_new > 0 or lines[i].startswith("\\")):
        line = lines[i]
        if line.startswith("-"):
            added.append("+" + line[1:])
            last, left_old = added, left_old - 1
        elif line.startswith("+"):
            removed.append("-" + line[1:])
            last, left_new = removed, left_new - 1
        elif line.startswith("\\"):
            (last if last else out).append(line)
        else:
            flush()
            out.append(line)
            left_old, left_new, last = left_old - 1, left_new - 1, []
        i += 1
    flush()
    return i


def _reverse_header(line: str) -> str:
    for name, other in _SWAPS.items():
        if line.startswith(name + " "):
            return other + line[len(name) :]
    if line.startswith("copy "):
        raise ValueError("a patch that copies files cannot be reversed as text")
    if line.startswith("index ") and ".." in line:
        ids, _, mode = line[6:].partition(" ")
        old, _, new = ids.partition("..")
        return f"index {new}..{old}" + (f" {mode}" if mode else "")
    if line.startswith("--- "):
        return "+++ " + _side(line[4:], "b/")
    if line.startswith("+++ "):
        return "--- " + _side(line[4:], "a/")
    if line.startswith("diff --git a/") and " b/" in line:
        left, _, right = line[len("diff --git a/") :].rpartition(" b/")
        return f"diff --git a/{right} b/{left}"
    return line


def _side(name: str, prefix: str) -> str:
    return prefix + name[2:] if name[:2] in ("a/", "b/") else name


def _order_pairs(lines: list[str]) -> list[str]:
    """Headers come in pairs with the old side first; reversing swapped them."""
    for i in range(len(lines) - 1):
        for first, second in _PAIR_ORDER:
            if lines[i].startswith(second + " ") and lines[i + 1].startswith(first + " "):
                if first == "---" and not _is_header(lines, i):
                    continue
                lines[i], lines[i + 1] = lines[i + 1], lines[i]
    return lines


def _is_header(lines: list[str], i: int) -> bool:
    """Whether lines i, i+1 are a file header: a hunk follows (inside a hunk two such lines are never before `@@`)."""
    return i + 2 < len(lines) and lines[i + 2].startswith("@@ ")

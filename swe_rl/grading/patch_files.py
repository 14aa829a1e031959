"""Which files a patch touches, read from its bytes: the ground that patch policy and path safety stand on.

Text parsers of diffs miss what matters here (pure deletes, renames, binary files, mode changes, quoted and non-UTF-8 names),
and a line of a hunk may look like a header; so sections are split by git's grammar, counting hunk lines.
Format: git's "extended diff headers", https://git-scm.com/docs/diff-format#generate_patch_text_with_p
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from swe_rl.errors import SweRlError

_GIT = re.compile(rb"^diff --git (.+)$")
_HUNK = re.compile(rb"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HEADER_ENDS = (b"diff --git ", b"--- ", b"@@ ", b"GIT binary patch", b"Binary files ")
_ESCAPE = re.compile(rb"\\([abtnvfr\"\\]|[0-3][0-7]{2})")
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}

_RENAMES = {
    b"rename from ": b"from", b"rename old ": b"from", b"copy from ": b"from",
    b"rename to ": b"to", b"rename new ": b"to", b"copy to ": b"to",
}  # fmt: skip
_PLAIN_NAME = re.compile(r"[\w.+/@~ ,=-]+$")

MAX_NAMES = 10_000  # characters of a header with both names that are looked at: twice the longest path

SYMLINK = "120000"
GITLINK = "160000"


class PatchFormatError(SweRlError):
    """The bytes are not a patch. The message says where."""


@dataclass
class FilePatch:
    """One file's section. Paths are relative, bytes decoded with surrogateescape; None where the file does not exist."""

    old: str | None
    new: str | None
    old_mode: str
    new_mode: str
    binary: bool
    data: bytes
    content: bytes = b""  # added lines, of text sections
    hunks: bytes = b""  # nothing but the hunks, of text sections

    @property
    def paths(self) -> list[str]:
        """Every path that the section reads or writes."""
        return list(dict.fromkeys(path for path in (self.old, self.new) if path is not None))

    @property
    def created(self) -> str | None:
        """The path that is there only after the section: of a new file, a rename or a copy."""
        return self.new if self.new != self.old else None


def split_patch(patch: bytes) -> list[FilePatch]:
    """The sections of a patch in git's or the plain unified form. Raises PatchFormatError where there is none."""
    lines = patch.split(b"\n")
    sections: list[FilePatch] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        plain = line.startswith(b"--- ") and position + 1 < len(lines) and lines[position + 1].startswith(b"+++ ")
        if not line.startswith(b"diff --git ") and not plain:
            position += 1
            continue
        end, section = _section(lines, position)
        sections.append(section)
        position = end
    if not sections:
        raise PatchFormatError("no file section in the patch")
    return sections


def _section(lines: list[bytes], start: int) -> tuple[int, FilePatch]:
    fields: dict[bytes, bytes] = {}
    position = start
    git_line = _GIT.match(lines[start].rstrip(b"\r"))
    if git_line:
        position += 1
        while position < len(lines) and not lines[position].startswith(_HEADER_ENDS):
            line = lines[position].rstrip(b"\r")
            for name in (b"old mode ", b"new mode ", b"new file mode ", b"deleted file mode ", b"index "):
                if line.startswith(name):
                    fields[name.strip()] = line[len(name) :]
            for name, field in _RENAMES.items():
                if line.startswith(name):
                    fields[field] = _unquote(line[len(name) :])
            position += 1
    binary = False
    content: list[bytes] = []
    hunks: list[bytes] = []
    while position < len(lines) and not lines[position].startswith(b"diff --git "):
        line = lines[position]
        if line.startswith(b"--- ") and position + 1 < len(lines) and lines[position + 1].startswith(b"+++ "):
            if b"---" in fields or (not git_line and position != start):
                break
            fields[b"---"], fields[b"+++"] = _file_name(line), _file_name(lines[position + 1])
            position += 2
        elif hunk := _HUNK.match(line):
            end = _hunk(lines, position + 1, hunk, content)
            hunks += lines[position:end]
            position = end
        else:
            binary = binary or line.startswith((b"GIT binary patch", b"Binary files "))
            position += 1
    section = _file_patch(git_line, fields, binary, b"\n".join(content), lines[start:position], position == len(lines))
    section.hunks = b"".join(line + b"\n" for line in hunks)
    return position, section


def _hunk(lines: list[bytes], position: int, hunk: re.Match[bytes], content: list[bytes]) -> int:
    old, new = (int(count) if count is not None else 1 for count in hunk.groups())
    while position < len(lines) and (old > 0 or new > 0):
        first = lines[position][:1]
        if first == b"-":
            old -= 1
        elif first == b"+":
            new -= 1
            content.append(lines[position][1:])
        elif first in (b" ", b"", b"\r"):
            old, new = old - 1, new - 1
        elif first != b"\\":
            break  # counts that lie: what follows is read as headers again
        position += 1
    if lines[position : position + 1] and lines[position].startswith(b"\\"):
        position += 1  # "\ No newline at end of file"
    return position


def _file_patch(
    git_line: re.Match[bytes] | None,
    fields: dict[bytes, bytes],
    binary: bool,
    content: bytes,
    lines: list[bytes],
    last: bool,
) -> FilePatch:
    old, new = _git_names(git_line.group(1)) if git_line else (b"", b"")
    old = fields.get(b"from", _strip(fields[b"---"]) if b"---" in fields else old)
    new = fields.get(b"to", _strip(fields[b"+++"]) if b"+++" in fields else new)
    index_mode = fields.get(b"index", b"").partition(b" ")[2]
    old_mode = fields.get(b"deleted file mode", fields.get(b"old mode", index_mode))
    new_mode = fields.get(b"new file mode", fields.get(b"new mode", index_mode))
    created = b"new file mode" in fields or old == b"/dev/null"
    deleted = b"deleted file mode" in fields or new == b"/dev/null"
    if not (old or created) or not (new or deleted):
        raise PatchFormatError(f"a section names no file: {lines[0][:200]!r}")
    data = b"\n".join(lines) + (b"" if last else b"\n")
    return FilePatch(
        None if created else _text(old),
        None if deleted else _text(new),
        old_mode.decode("ascii", "replace"),
        new_mode.decode("ascii", "replace"),
        binary,
        data,
        content,
    )


def _git_names(rest: bytes) -> tuple[bytes, bytes]:
    """Both names of `diff --git a/X b/X`; they are equal where no other header names them."""
    if rest.startswith(b'"'):
        end = re.match(rb'"(?:[^"\\]|\\.)*"', rest)
        if end is None:
            return b"", b""
        return _strip(_unquote(end.group())), _strip(_unquote(rest[end.end() :].strip()))
    for space in re.finditer(rb" ", rest[:MAX_NAMES]):
        old, new = _strip(rest[: space.start()]), _strip(rest[space.end() :])
        if old == new:
            return old, new
    old, _, new = rest.partition(b" b/")
    return _strip(old), _unquote(new)


def _file_name(line: bytes) -> bytes:
    name = line.rstrip(b"\r")[4:]
    return _unquote(name) if name.startswith(b'"') else name.split(b"\t")[0]


def _strip(name: bytes) -> bytes:
    """Without its first folder, whatever that is called: git applies with -p1."""
    return name if name.startswith(b"/") else name.partition(b"/")[2] or name


def plain_patch(sections: list[FilePatch]) -> bytes:
    """The patch as its hunks alone under headers of ours: patch(1) finds diffs in what git and we take for remarks.

    Empty where it cannot be said so: renames, binary files, changes of a mode alone, names that would have to be quoted.
    """
    parts = []
    for section in sections:
        old, new = section.old, section.new
        name = new or old or ""
        if section.binary or not section.hunks or (old and new and old != new) or not _PLAIN_NAME.match(name):
            return b""
        mode = f"new file mode {section.new_mode}\n" if old is None and section.new_mode else ""
        if old and new and section.old_mode != section.new_mode:
            mode = f"old mode {section.old_mode}\nnew mode {section.new_mode}\n"
        head = f"diff --git a/{name} b/{name}\n{mode}"
        head += f"--- {f'a/{old}' if old else '/dev/null'}\t\n+++ {f'b/{new}' if new else '/dev/null'}\t\n"
        parts.append(head.encode() + section.hunks)
    return b"".join(parts)


def _unquote(name: bytes) -> bytes:
    if not (name.startswith(b'"') and name.endswith(b'"') and len(name) >= 2):
        return name
    return _ESCAPE.sub(
        lambda found: _ESCAPED.get(found[1], found[1]) if len(found[1]) == 1 else bytes([int(found[1], 8)]), name[1:-1]
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", errors="surrogateescape")


def unsafe_paths(sections: list[FilePatch]) -> list[str]:
    """Reasons to refuse a patch: paths outside the repository or inside .git, links that lead out, writes through links."""
    problems: list[str] = []
    links: set[str] = set()
    for section in sections:
        for path in section.paths:
            parts = path.split("/")
            if path.startswith("/") or ".." in parts or "\0" in path or re.match(r"[A-Za-z]:[/\\]", path):
                problems.append(f"path leaves the repository: {path!r}")
            elif any(_is_git(part) for part in parts):
                problems.append(f"path inside .git: {path!r}")
        if section.new_mode == SYMLINK and section.new is not None:
            links.add(section.new)
            target = section.content.decode("utf-8", errors="surrogateescape")
            if section.binary or _leads_out(section.new, target):
                problems.append(f"link {section.new!r} leads out of the repository: {target[:200]!r}")
    for section in sections:
        for path in section.paths:
            parents = {path[:at] for at, letter in enumerate(path) if letter == "/"}
            if parents & links:
                problems.append(f"path goes through a link that the patch makes: {path!r}")
    return problems


def _is_git(part: str) -> bool:
    # HFS and NTFS spell .git in other ways too; none of them is ever part of a fix.
    return part.lower().rstrip(". ") == ".git" or part.lower().startswith(("git~", ".git::"))


def _leads_out(path: str, target: str) -> bool:
    if target.startswith("/"):
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return any(_is_git(part) for part in target.split("/"))

"""A container that was worked in, put back before a patch is graded in it: its repository's files as they were committed.

What the image holds beside its commits stays: tests that are in no commit, environments, builds, files it changed. The image
itself says what that is, in a fresh container, so that neither a restart of the server nor the agent can lose it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swe_rl.deadline import Deadline
from swe_rl.sandbox.container.container import Container
from swe_rl.sandbox.container.supervisor import Outcome
from swe_rl.sandbox.exec_server.faults import ExecFault
from swe_rl.sandbox.exec_server.requests import CreateBody
from swe_rl.sandbox.starting_state import StartingStateError

if TYPE_CHECKING:
    from swe_rl.sandbox.exec_server.node import Node

SECONDS = 120.0  # for each command
MAX_NAMES = 8_000_000  # bytes of file names; what an image holds beyond that is not told from what came later
MAX_CHANGES = 4_000_000  # bytes of a patch
KEPT_STATES = 64  # of images, in memory ...
KEPT_BYTES = 1_000_000  # ... where they are no larger
NO_FOLDER, NO_REPOSITORY = 90, 91
# Hooks, monitors and replacements are the agent's; a lock is what a git left that was killed.
_GIT = """\
export GIT_NO_REPLACE_OBJECTS=1 LC_ALL=C
g() { git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c safe.directory='*' "$@"; }
"""
_TIPS = "{ g rev-parse -q --verify HEAD && g rev-list --no-walk --all | head -n 500; } 2> /dev/null; true"
# As it will be after the reset: what is staged only is held, too.
_HELD = r"""
exec 2> /dev/null
g reset -q
if g rev-parse -q --verify HEAD > /dev/null; then
  g ls-files -z -o
else
  find . -name .git -prune -o ! -type d -exec printf '%s\0' {} +
fi && { find . -name .git -prune -o -type d -empty -exec printf '%s/\0' {} +; true; }"""
_CHANGES = (
    "g diff --binary --no-color --no-relative --no-ext-diff --no-textconv --ignore-submodules"
    " --src-prefix=a/ --dst-prefix=b/ HEAD 2> /dev/null"
)
_RESET = r"""
folder=$(g rev-parse --absolute-git-dir 2> /dev/null) || exit 91
rm -f "$folder/index.lock"
at=HEAD
# The newest commit that is the image's; none of them is left where the history was made anew.
tips=$(printf '%s\n' {tips} | g cat-file --batch-check | grep ' commit ' | cut -d ' ' -f 1)
[ -z "$tips" ] || at=$(g merge-base HEAD $tips) || at=${{tips%%[!0-9a-f]*}}
# The index first: what was added or committed here is a new file then, in place of one that a hard reset removes.
said=$(g reset -q "$at" 2>&1 && g reset -q --hard "$at" 2>&1) || {{ printf '%s' "$said"; exit 1; }}
g ls-files -z -o --exclude-standard 2> /dev/null"""


@dataclass(frozen=True)
class ImageState:
    """What an image holds in a folder beside its commits."""

    tips: tuple[str, ...]  # the commits of its HEAD and of its refs; none where it has no repository there
    held: bytes | None  # names of what git does not track, folders with "/", each ended by NUL; None: too many to tell
    changes: bytes  # to files that git tracks, as a patch


async def put_back(node: Node, container: Container, workdir: str, deadline: Deadline, *, commits: bool) -> None:
    """Put the files of the repository in `workdir` back to HEAD and remove new ones; what git ignores or the image holds stays.

    commits: those that were made in the container stay, else the newest one of the image counts. New files stay, too, where
    it cannot be told what the image holds. Raises StartingStateError, and SandboxError kinds where nothing can be told.
    """
    state = await _state(node, container, workdir, deadline)
    tips = "" if commits else " ".join(state.tips)
    done = await _run(container, workdir, _RESET.format(tips=tips), deadline, limit=MAX_NAMES)
    if done.returncode in (NO_FOLDER, NO_REPOSITORY):
        return  # grading says so
    held = None if state.held is None else set(_names(state.held))
    if done.returncode != 0 or (held is not None and done.total > MAX_NAMES):
        said = done.head[:300].decode(errors="replace").strip()
        raise StartingStateError(f"the container's files cannot be put back to HEAD: {said}")
    if held is not None and (new := superfluous(_names(done.head), held)):
        removed = await _run(container, workdir, "xargs -0 rm -rf -- <&3", deadline, data=_lines(new))
        if removed.returncode != 0:
            said = removed.head[:300].decode(errors="replace").strip()
            raise StartingStateError(f"the container's new files cannot be removed: {said}")
        left = superfluous(_folders_above(new), held)
        await _run(container, workdir, "xargs -0 rmdir -- <&3 2> /dev/null", deadline, data=_lines(left))
    if state.changes:
        # Where the commit is another one they may not fit; then they are not this commit's either.
        await _run(container, workdir, "g apply --whitespace=nowarn - <&3", deadline, data=state.changes)


def superfluous(found: Iterable[bytes], held: set[bytes]) -> list[bytes]:
    """Those of the untracked names (a nested repository ends with "/") that neither are held nor have held ones below them."""

    def kept(name: bytes) -> bool:
        return name in held or (name.endswith(b"/") and any(other.startswith(name) for other in held))

    return [name for name in found if not kept(name)]


def _folders_above(names: Iterable[bytes]) -> list[bytes]:
    """Of the names, the deepest first."""
    found: set[bytes] = set()
    for name in names:
        parts = name.rstrip(b"/").split(b"/")[:-1]
        found.update(b"/".join(parts[:depth]) + b"/" for depth in range(1, len(parts) + 1))
    return sorted(found, key=lambda folder: -folder.count(b"/"))


async def _state(node: Node, container: Container, workdir: str, deadline: Deadline) -> ImageState:
    image = str((await node.engine.inspect(container.id))["Image"])  # an id: a name may be another image's by now
    known = node.image_states.get((image, workdir))
    if known is not None:
        return known
    if not await node.engine.has_image(image):
        return ImageState((), None, b"")
    body = CreateBody.model_validate({"image": image, "timeout": max(1.0, deadline.bound(SECONDS))})
    async with node.for_evaluation(body) as fresh:
        tips = await _run(fresh, workdir, _TIPS, deadline, limit=MAX_NAMES)
        held = await _run(fresh, workdir, _HELD, deadline, limit=MAX_NAMES)
        changes = await _run(fresh, workdir, _CHANGES, deadline, limit=MAX_CHANGES)
    if changes.total > MAX_CHANGES:
        raise StartingStateError("what the image changed in its repository's files is too large to be put back")
    names = None if held.returncode != 0 or held.total > MAX_NAMES else held.head
    state = ImageState(
        tuple(re.findall(r"^[0-9a-f]{40,64}$", tips.head.decode(errors="replace"), re.MULTILINE)),
        b"" if held.returncode == NO_FOLDER else names,
        b"" if changes.returncode != 0 else changes.head,
    )
    if len(state.held or b"") + len(state.changes) <= KEPT_BYTES:
        while len(node.image_states) >= KEPT_STATES:
            del node.image_states[next(iter(node.image_states))]
        node.image_states[image, workdir] = state
    return state


async def _run(
    container: Container, workdir: str, script: str, deadline: Deadline, *, data: bytes = b"", limit: int = 10_000
) -> Outcome:
    """Run a script that may read `data` from descriptor 3. Raises ExecFault where it is not done in time: that says nothing."""
    start = f"cd -- {shlex.quote(workdir)} 2> /dev/null || exit {NO_FOLDER}\n{_GIT}{script}\nexit"
    done = await container.run(data, start.encode(), timeout=deadline.bound(SECONDS), output_limit=limit)
    if done.timed_out:
        raise ExecFault("timed_out", "there was no time to put the container's files back")
    return done


def _lines(names: Iterable[bytes]) -> bytes:
    return b"".join(name + b"\0" for name in names)


def _names(data: bytes) -> list[bytes]:
    return [name.removeprefix(b"./") for name in data.split(b"\0") if name]

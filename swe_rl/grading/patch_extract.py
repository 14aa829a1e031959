"""The agent's work as a patch, byte-exact, whatever the agent did to its repository's settings.

The diff is made in a git directory of our own that borrows only the repository's objects: the agent's index, staging, config,
hooks, attributes, excludes, replacements and grafts are not looked at. Only the work tree and the base commit count, so commits
are included, and what the agent staged or hid makes no difference.

The sandbox is the agent's: programs may be gone, files may be made to stall git. What a sandbox that lives answers is the
agent's work, an empty patch where that is nothing; only a sandbox that is lost is a fault of the infrastructure.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swe_rl.errors import SandboxError
from swe_rl.grading.patch_files import GITLINK, PatchFormatError, split_patch
from swe_rl.sandbox.protocol import Sandbox
from swe_rl.types import Task

log = logging.getLogger(__name__)

MAX_PATCH_BYTES = 8_000_000
MAX_ARCHIVE_BYTES = 512 << 20
MAX_GROWTH_BYTES = (
    256 << 20
)  # of the work tree's files beyond those of the base: git would hash them until the time is up
LEAST_SECTION_BYTES = 100  # of a new file in a patch: more files than fit into the largest patch need not be looked at
PROBE_SECONDS = 20.0  # in which a sandbox that lives writes a file, when the patch took too long
MODE_NOISE = 20  # more files than this whose modes alone differ: the image changed them (chmod -R), not the agent

JUNK = (
    "__pycache__/", "*.py[cod]", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".tox/", ".nox/", ".hypothesis/",
    "*.egg-info/", "*.dist-info/", ".eggs/", ".coverage", ".coverage.*", "htmlcov/", "node_modules/", ".venv/", ".DS_Store",
    "*.orig", "*.rej", "*.swp", ".gradle/", "target/debug/", "target/release/",
)  # fmt: skip

_MARK = "swe-rl-patch:"
_SCRIPT = r"""
cd {workdir} || {{ echo '{mark}none'; echo 'there is no such folder'; exit 0; }}
git --version > /dev/null 2>&1 || {{ echo '{mark}failed'; echo 'git does not run'; exit 0; }}
objects={objects}
if [ -z "$objects" ]; then
  objects=.git/objects
  [ -d "$objects" ] || objects=$(git rev-parse --git-path objects 2>/dev/null)
  [ -d "$objects" ] && objects=$(cd "$objects" && pwd)
fi
[ -d "$objects" ] || {{ echo '{mark}none'; echo 'it is no git repository'; exit 0; }}
# Git would wait for ever for what a pipe in place of a file has to say.
find . "$objects" \( -name .gitignore -o -name .gitattributes -o -path "$objects/*" \) \
  \( -xtype p -o -xtype s -o -xtype c -o -xtype b \) -exec rm -f {{}} + 2> /dev/null
bases={bases}
[ -n "$bases" ] || bases=$(git rev-parse HEAD 2>/dev/null)
for t in /tmp /var/tmp /dev/shm /; do t=$t/{scratch}; mkdir -m 700 "$t" 2>/dev/null && break; done
trap 'rm -rf "$t"' EXIT
mkdir -p "$t/git/objects/info" "$t/git/refs" "$t/git/info"
echo 'ref: refs/heads/base' > "$t/git/HEAD"
printf '%s\n' "$objects" > "$t/git/objects/info/alternates"
printf '[core]\n\tbare = false\n\trepositoryformatversion = 0\n' > "$t/git/config"
printf '[safe]\n\tdirectory = *\n[core]\n\tautocrlf = false\n\tsafecrlf = false\n\tprotectNTFS = false\n' > "$t/global"
for name in $(env | sed -n 's/^\(GIT_[A-Z_0-9]*\)=.*/\1/p'); do unset "$name"; done
export GIT_DIR="$t/git" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$t/index" GIT_NO_REPLACE_OBJECTS=1 LC_ALL=C
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL="$t/global" GIT_ATTR_NOSYSTEM=1 HOME="$t"
for base in $bases none; do git read-tree "$base" 2> "$t/error" && break; done
[ "$base" != none ] || {{ echo '{mark}none'; head -c 300 "$t/error"; exit 0; }}
{{ printf '%s\n' {junk}; git cat-file blob "$base:.gitignore" 2>/dev/null; }} > "$t/git/info/exclude"
added=0 count=0 size=0
while IFS= read -r -d '' file; do case $file in */) ;; *) count=$((count + 1)) ;; esac; done < <(
  git ls-files -z -o --exclude-standard | head -c {names})
[ "$count" -le {files} ] || {{ echo '{mark}large'; exit 0; }}
while read -r size; do added=$((added + size)); done < <(git ls-files -z -c -o --exclude-standard |
  grep -zv '/$' | xargs -0 -r stat -c %s -- 2> /dev/null)
while read -r mode kind hash size name; do
  case $size in *[!0-9]*) ;; *) added=$((added - size)) ;; esac
done < <(git ls-tree -r -l "$base")
[ "$added" -le {growth} ] || {{ echo '{mark}large'; exit 0; }}
stage() {{
  git -c core.fileMode=$1 add -u --ignore-errors . 2> "$t/error"
  git ls-files -z -o --exclude-standard | grep -zv '/$' | git -c core.fileMode=$1 update-index -z --add --stdin 2>> "$t/error"
}}
diff() {{
  git diff-index --cached -p --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color \
    --src-prefix=a/ --dst-prefix=b/ "$base" | head -c {limit} > "$t/patch"
}}
stage true; diff
if [ "$(grep -ac '^old mode ' "$t/patch")" -gt {noise} ]; then
  git read-tree "$base"; stage false; diff
fi
echo '{mark}ok'
base64 < "$t/patch"
"""


@dataclass(frozen=True)
class Extraction:
    """What became of one attempt to make a patch. `reason` says why there is none.

    none: no folder, repository or base commit to compare with. large: more than was asked for, `patch` holds its beginning or
    nothing. timed_out and failed: the sandbox lives, but what makes a patch was too slow or is gone.
    """

    status: Literal["ok", "none", "large", "timed_out", "failed"]
    patch: bytes = b""
    reason: str = ""


async def extract_patch(task: Task, sandbox: Sandbox, *, timeout: float, max_bytes: int = MAX_PATCH_BYTES) -> bytes:
    """The diff of the sandbox's work tree against the task's base commit; empty where there is none.

    New, deleted, renamed (as delete and new), binary files and mode changes are in it; junk of builds, files that the task
    ignores and nested repositories are not. Where the agent destroyed .git, the task's archive is compared with, if there
    is one. A patch of more than `max_bytes` comes back cut at `max_bytes` + 1: the grader rejects it by its size; so does what
    stands for files that are too large or too many to look at. Empty where the agent left no tools to make a patch with.
    Raises SandboxError when the sandbox is gone or does not answer.
    """
    found = await try_extract(task, sandbox, timeout=timeout, max_bytes=max_bytes)
    if found.status == "none" and task.archive:
        log.warning("%s: the agent destroyed its git repository; comparing with the task's archive", task.instance_id)
        objects = await _upload_objects(task, sandbox, timeout)
        found = await try_extract(task, sandbox, timeout=timeout, max_bytes=max_bytes, objects=objects)
    if found.status != "ok":
        log.warning("%s: no patch (%s): %s", task.instance_id, found.status, found.reason)
    if found.status == "large":
        return found.patch or b"the files are too large or too many\n".ljust(max_bytes + 1, b"\n")
    return found.patch


async def try_extract(
    task: Task, sandbox: Sandbox, *, timeout: float, max_bytes: int = MAX_PATCH_BYTES, objects: str = ""
) -> Extraction:
    """As `extract_patch`, but what stands in the way of a patch is told apart, and the task's archive is not looked at.

    objects: a shell word that names the folder of the repository's objects, where that is not the work tree's own.
    Raises SandboxError when the sandbox is gone or does not answer.
    """
    # The state that the agent found; the task's base commit where that is lost (the agent destroyed the repository).
    bases = dict.fromkeys(base for base in (getattr(sandbox, "base_commit", ""), task.base_commit) if base)
    script = _SCRIPT.format(
        workdir=shlex.quote(sandbox.workdir),
        objects=objects or "''",
        bases=shlex.quote(" ".join(bases)),
        mark=_MARK,
        junk=" ".join(shlex.quote(pattern) for pattern in JUNK),
        limit=max_bytes + 1,
        scratch=f"swe-rl-{secrets.token_hex(8)}",
        growth=MAX_GROWTH_BYTES,
        files=max_bytes // LEAST_SECTION_BYTES,
        names=max_bytes * 4,
        noise=MODE_NOISE,
    )
    # base64 is a third longer and has line ends; both halves of the bounded output together must hold it.
    result = await sandbox.exec(script, timeout=timeout, cwd="/", output_limit=max_bytes * 3 // 2 + 10_000)
    if result.timed_out:
        await _probe(task, sandbox, timeout)
        return Extraction("timed_out", reason=f"it could not be made in {timeout:.0f} s")
    _, found, answer = result.output.partition(_MARK)
    status, _, body = answer.partition("\n")
    if not found:
        return Extraction("failed", reason=f"the programs that make one failed: {result.output[-300:]!r}")
    if status == "large":
        return Extraction("large", reason="the files are too large or too many")
    if status == "failed":
        return Extraction("failed", reason=body.strip()[:300])
    if status != "ok":
        return Extraction("none", reason=f"{sandbox.workdir}: {body.strip()[:300] or 'no base commit can be read'}")
    try:
        patch = base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error as error:
        return Extraction("failed", reason=f"it came back damaged: {error}")
    if len(patch) > max_bytes:
        return Extraction("large", patch, f"it has more than {max_bytes} bytes")
    return Extraction("ok", without_nested_repositories(patch))


async def _probe(task: Task, sandbox: Sandbox, timeout: float) -> None:
    """Raise SandboxError unless the sandbox still runs what a shell does by itself: then the agent made git slow."""
    word = secrets.token_hex(8)
    script = f'echo {word} > /tmp/{word}; read -r x < /tmp/{word}; echo "said ${{x-{word}}}"'
    result = await sandbox.exec(script, timeout=PROBE_SECONDS, cwd="/")
    if result.timed_out or f"said {word}" not in result.output:
        raise SandboxError(f"the patch of {task.instance_id} could not be collected in {timeout:.0f} s")


async def _upload_objects(task: Task, sandbox: Sandbox, timeout: float) -> str:
    """The pristine repository's objects inside the sandbox, as a shell word that names their folder."""
    archive = Path(task.archive)
    if archive.stat().st_size > MAX_ARCHIVE_BYTES:
        raise SandboxError(f"archive {archive} is too large to compare with")
    await sandbox.upload(".swe-rl-pristine.tar", archive.read_bytes())
    unpack = (
        f"p=/tmp/swe-rl-{secrets.token_hex(8)}; mkdir -m 700 $p && "
        'tar -xf .swe-rl-pristine.tar -C "$p" --no-same-owner; rm -f .swe-rl-pristine.tar; '
        'find "$p" -maxdepth 3 -type d -path "*/.git/objects" | head -n 1'
    )
    result = await sandbox.exec(unpack, timeout=timeout)
    return shlex.quote(result.output.strip().splitlines()[-1] if result.output.strip() else "")


def without_nested_repositories(patch: bytes) -> bytes:
    """Drop sections about gitlinks: a repository that an agent cloned inside the task's is not part of the fix."""
    if GITLINK.encode() not in patch:
        return patch
    try:
        sections = split_patch(patch)
    except PatchFormatError:
        return patch
    return b"".join(section.data for section in sections if GITLINK not in (section.old_mode, section.new_mode))

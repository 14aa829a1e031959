"""The server's side of supervisor.c and supervisor.sh: framed commands over the attach stream of one container.

Per command it costs one write and one read, no call of the engine's API: milliseconds in place of the engine's exec.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiodocker.stream import Stream

from swe_rl.errors import UsageError
from swe_rl.owned_tasks import within
from swe_rl.sandbox.container.errors import CommandInterrupted
from swe_rl.sandbox.container.limits import SUPERVISOR_FOLDER, SUPERVISOR_PROGRAM
from swe_rl.sandbox.protocol import ANSWER_GRACE, cut_line
from swe_rl.types import ExecResult

SCRIPT = Path(__file__).with_name("supervisor.sh").read_text(encoding="utf-8")
# What bash runs for a command ($1: the preamble, which may use the command's bytes itself, from descriptor 3, and exit: so
# files are written), and in a login shell, once, to print what that adds (conda and the like) to descriptor 9.
RUNNER = 'unset BASH_ENV OLDPWD; . ./login; eval "$1"; set --; IFS= read -r -d "" <&3 || :; exec 3<&-; eval "$REPLY"'
DUMP = """{
    [[ $- == *e* ]] && builtin echo set -e
    IFS=: && builtin echo builtin shopt -s ${BASHOPTS//login_shell/}
    builtin umask -p; builtin declare -px; builtin declare -f; builtin declare -Fx; builtin alias -p
} >&9"""
HELLO_SECONDS = 5.0  # in which a running supervisor answers
FRESH_SECONDS = 1.0  # after an answer in which the supervisor is taken to be well
MAX_OUTPUT = 24 * 1024 * 1024  # bytes kept of one command, whatever is asked; they lie in the container's tmpfs
MAX_PREAMBLE = 128 * 1024 - 1  # bytes; the kernel's MAX_ARG_STRLEN
BUILTIN_READ = 64 * 1024  # bytes of a command that bash reads faster than a process could
BROKEN = (
    asyncio.TimeoutError,
    CommandInterrupted,
    aiohttp.ClientError,
    OSError,
    RuntimeError,
    ValueError,
    AssertionError,
)


def supervisor_command(native: bool, folder: str, pids: int) -> list[str]:
    """The command line of a supervisor: the program that is mounted into the container, or the script."""
    start = [SUPERVISOR_PROGRAM] if native else ["bash", "--norc", "--noprofile", "-c", SCRIPT, "swe-rl-supervisor"]
    return [*start, folder, str(pids), RUNNER, DUMP]


def stand_in(native: bool, pids: int) -> list[str]:
    """The command line of one beside a first process that does not answer; it ends with the stream that it serves."""
    return supervisor_command(native, f"{SUPERVISOR_FOLDER}/{secrets.token_hex(8)}", pids)


def preamble(cwd: str, env: dict[str, str]) -> bytes:
    """The lines that run before a command: its folder and its extra variables (names are checked by the caller).

    Raises UsageError where they are longer than the kernel takes as one argument.
    """
    lines = [f"cd -- {shlex.quote(cwd)} || exit 1", "unset OLDPWD"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    if len(text) > MAX_PREAMBLE:
        raise UsageError(f"cwd and env: {len(text)} bytes as shell text, at most {MAX_PREAMBLE}; upload a file instead")
    return text


@dataclass(frozen=True)
class Outcome:
    """How a command ended. head: its first `limit` output bytes or a little more; tail: the last where there were more."""

    returncode: int
    timed_out: bool
    head: bytes
    tail: bytes
    total: int  # at least so many bytes were printed
    limit: int
    seconds: float

    def result(self) -> ExecResult:
        """The same with at most about `limit` bytes as text and a line that states a cut."""
        text, dropped = self.head.decode("utf-8", "replace"), 0
        if self.tail or len(self.head) > self.limit:
            half = self.limit // 2
            head, tail = self.head[:half], (self.tail or self.head)[-half or self.limit :]
            dropped = max(1, self.total - len(head) - len(tail))
            text = head.decode("utf-8", "replace") + cut_line(dropped) + tail.decode("utf-8", "replace")
        return ExecResult(self.returncode, text, self.timed_out, dropped > 0, self.seconds, dropped)


class Supervisor:
    """One attached supervisor. Commands must be run one at a time. After CommandInterrupted it is of no more use."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._heard_at = -FRESH_SECONDS
        self.alive = True

    async def hello(self, timeout: float) -> bool:
        """Whether it answers. A supervisor that is still busy with an earlier server's command does not, in time."""
        nonce = secrets.token_hex(8)
        try:
            await within(timeout, self._answer(f"\nhello {nonce}\n".encode(), f"ready {nonce}"))
            return True
        except BROKEN:
            await self.close()
            return False

    async def ready(self) -> bool:
        """Whether a command may be sent. One that has been silent is asked first: what it was sent could not be taken back."""
        response = self._stream._resp
        connection = response.connection if response is not None else None
        if not self.alive or connection is None or connection.transport is None:
            return False  # the container's end is known
        return time.monotonic() - self._heard_at < FRESH_SECONDS or await self.hello(HELLO_SECONDS)

    async def run(self, command: bytes, start: bytes, *, timeout: float, output_limit: int) -> Outcome:
        """Run one command. Raises CommandInterrupted when no answer comes: whether and how it ran is unknown."""
        started = time.monotonic()
        nonce = secrets.token_hex(8)
        limit = min(output_limit, MAX_OUTPUT)
        kept = max(1, -(-limit // 1024)) * 1024
        reader = "head" if len(command) > BUILTIN_READ or b"\0" in command else "builtin"
        words = ["run", nonce, int(timeout * 1000), kept, limit // 2 + 1, len(start), len(command), reader]
        frame = f"{' '.join(map(str, words))}\n".encode() + start + command + f"{nonce}\n".encode()
        bound = timeout + ANSWER_GRACE
        try:
            code, expired, head, tail, total = await within(bound, self._run(frame, nonce))
        except BROKEN as error:
            await self.close()
            raise CommandInterrupted(f"the supervisor gave no answer: {error or type(error).__name__}") from error
        except BaseException:
            await self.close()  # its answer would be taken for the next command's
            raise
        return Outcome(code, expired, head, tail, total, limit, time.monotonic() - started)

    async def _run(self, frame: bytes, nonce: str) -> tuple[int, bool, bytes, bytes, int]:
        line = await self._answer(frame, f"done {nonce}")
        code, expired, _, head, tail, total = (int(word) for word in line.split()[2:8])
        return code, bool(expired), await self._take(head), await self._take(tail), total

    async def _answer(self, frame: bytes, start: str) -> str:
        """Send a frame and read on to the line that answers it; what an earlier server left unread is skipped."""
        await self._stream.write_in(frame)
        while not (line := await self._line()).startswith(start):
            pass
        return line

    async def close(self) -> None:
        """Let go of the stream; the supervisor itself goes on."""
        self.alive = False
        await self._stream.close()

    async def _more(self) -> None:
        message = await self._stream.read_out()
        if message is None:
            self.alive = False
            raise CommandInterrupted("the container's first process has ended")
        self._heard_at = time.monotonic()
        if message.stream == 1:
            self._buffer += message.data

    async def _line(self) -> str:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > 4096:
                self._buffer.clear()  # the rest of an answer that an earlier server did not take
            await self._more()
        line = self._buffer[:end].decode("utf-8", "replace")
        del self._buffer[: end + 1]
        return line

    async def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

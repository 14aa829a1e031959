"""Grading inside one open, fresh sandbox: patch, graders' tests, run, and what the run proves.

Order: the agent's patch; the test files restored to the base; the test patch; their hashes; the tests. It is one upload and one
command (grade.sh). The exec server's /container/evaluate calls the same code.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import re
import secrets
import tarfile
from collections.abc import Iterable
from pathlib import Path

from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError
from swe_rl.grading.evaluate_pytest import RUNNER_FILES, PytestPlan
from swe_rl.grading.graders_files import (
    fixed_beside_tests,
    graders_files,
    graders_patch,
    helper_folders,
    tests_region,
)
from swe_rl.grading.logs import ParsedLog, parse_log, parser_of, reads_pytest
from swe_rl.grading.patch_files import FilePatch, plain_patch, split_patch
from swe_rl.grading.patch_policy import PolicyResult
from swe_rl.grading.pytest_sessions import session_words, sessions_of
from swe_rl.grading.report import judge
from swe_rl.grading.script_layout import without_layout
from swe_rl.grading.verdict import GradeResult
from swe_rl.sandbox.protocol import Sandbox
from swe_rl.sandbox.starting_state import StartingStateError, upload_into_git
from swe_rl.tasks.eval_script import eval_script_for
from swe_rl.tasks.test_command import END_MARKER, START_MARKER
from swe_rl.types import ExecResult, Task, Verdict

OUTPUT_LIMIT = 16 << 20
END_CODES = range(30, 120)  # the shell's exit code at its own end, drawn for each grading: nothing else ends with it
TIMEOUT_CODE = 124  # of timeout(1)
FAIR_SHARE = 0.5  # of a grading's time, where nothing else says how long its tests may take
SLACK = 0.98  # of the tests' time: upload and clocks take a little of a deadline that fits exactly
GRADE_SCRIPT = Path(__file__).with_name("grade.sh")
SESSION_PROOF = "pytest_session_proof.py"
# Builtins only (PATH may be the patch's by then), and not traced.
_LAY_WORDS = """\
{{ while IFS=' ' read -r swe_rl_name swe_rl_word; do echo "$swe_rl_word" >| "$SWE_RL_PROOF/$swe_rl_name"; done
unset swe_rl_name swe_rl_word; }} 2> /dev/null <<'swe-rl-words'
{words}swe-rl-words
"""
_PYTEST = re.compile(r"(?:^|[;&|(]|-m)[ \t]*(?:\w+=\S*[ \t]+)*(?:\S*/)?py\.?test\b", re.MULTILINE)
_PATH_ANEW = re.compile(r"\bPYTHONPATH=(?![^\s;&|]*\$\{?PYTHONPATH)")  # without the old value
_OWN_ENVIRONMENT = re.compile(r"\b(?:tox|nox|sudo)\b|\benv\b.* -i\b")
CONFTESTS = ":(glob)**/conftest.py"


async def run_tests(
    task: Task, policy: PolicyResult, sandbox: Sandbox, deadline: Deadline, *, tests_seconds: float | None = None
) -> GradeResult:
    """The tests on top of a patch that policy let through (an empty one included: certification grades it too).

    tests_seconds: what the tests may take, never less: who waited long for a sandbox is not judged by what that left over. None:
    all that is left, but running out is a verdict only where that was a fair share of the deadline.
    Raises StartingStateError where .git takes no files.
    """
    run = _Run(task, sandbox.workdir)
    folder = f".git/swe-rl-{run.nonce[:16]}"
    await upload_into_git(sandbox, f"{folder}/bundle.tar", run.bundle(policy.patch))
    entitled = deadline.seconds * FAIR_SHARE if tests_seconds is None else tests_seconds
    available = deadline.remaining() if tests_seconds is None else deadline.bound(tests_seconds)
    result = await sandbox.exec(
        run.command(folder),
        timeout=available,
        env={"GIT_NO_REPLACE_OBJECTS": "1", "PYTHONHASHSEED": "0"},
        output_limit=OUTPUT_LIMIT,
    )
    grade = run.read(result.output, result.returncode, timed_out=result.timed_out)
    seconds = run.stages(result)
    if grade.verdict is Verdict.TEST_TIMEOUT and available < entitled * SLACK:
        # Others took the time that the tests should have had: that says nothing about the patch.
        reason = f"what came before left the tests {available:.1f} s where they may take {entitled:.1f} s"
        grade = GradeResult(Verdict.INFRA_ERROR, {**grade.detail, "kind": "DeadlineExceeded", "reason": reason})
    grade.detail = {**policy.detail(), **grade.detail}
    grade.seconds = seconds
    if result.truncated:
        grade.detail["output_truncated"] = True
    return grade


class _Run:
    """One grading: its random words, the files it brings, the command, and the reading of the answer."""

    def __init__(self, task: Task, workdir: str) -> None:
        self.task, self.workdir = task, workdir
        self.nonce = secrets.token_hex(16)
        self.end_code = secrets.choice(END_CODES)
        self.words = session_words()
        self.plan = PytestPlan(task) if parser_of(task) == "junit" else None
        self.markers = tuple(f"{marker} {secrets.token_hex(8)}" for marker in (START_MARKER, END_MARKER))
        self.helpers: list[str] = []  # files of the patch in folders of the graders' tests

    def bundle(self, patch: bytes) -> bytes:
        """A tar of everything grade.sh needs."""
        test_patch = graders_patch(self.task).encode("utf-8", "surrogateescape")
        sections = split_patch(patch) if patch else []
        test_sections = split_patch(test_patch) if test_patch.strip() else []
        specs = [f":(literal){name}" for name in graders_files(self.task)] + [CONFTESTS]
        fixed = fixed_beside_tests(self.task)
        specs += [f":(exclude,literal){name}" for name in fixed]
        touched = [path for section in sections for path in section.paths]
        folders = tuple(helper_folders(self.task))
        self.helpers = [path for path in dict.fromkeys(touched) if path.startswith(folders) and path not in fixed]
        files = {
            "agent.diff": _whole(patch, sections),
            "test.diff": _whole(test_patch, test_sections) if test_sections else b"",
            "touched": _names(touched),
            "helpers": _names(self.helpers),
            "pathspecs": "".join(f"{spec}\n" for spec in specs).encode("utf-8", "surrogateescape"),
            "secrets": f"N={self.nonce} END={self.end_code}\n".encode(),
            "remove": _names(section.old for section in test_sections if section.old and section.new != section.old),
        }
        files["agent-plain.diff"] = plain_patch(sections)
        if patch and all(line.endswith(b"\r") for line in patch.split(b"\n")[:-1]):
            files["agent-lf.diff"] = files["agent.diff"].replace(b"\r\n", b"\n")
            files["agent-lf-plain.diff"] = plain_patch(split_patch(files["agent-lf.diff"]))
        if self.plan:
            files["config.json"] = self.plan.config(self.workdir)
            files |= {name: _runner_file(name) for name in RUNNER_FILES}
        else:
            files["eval.sh"] = self._script().encode("utf-8", "surrogateescape")
            if self._reaches_pytest():
                files[SESSION_PROOF] = _runner_file(SESSION_PROOF)
            if START_MARKER not in eval_script_for(self.task):
                files |= {name: word.encode() for name, word in self._named_words()}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o600
                tar.addfile(entry, io.BytesIO(data))
        return packed.getvalue()

    def _named_words(self) -> list[tuple[str, str]]:
        return [(f"word{number}", word) for number, word in enumerate(self.words)]

    def _script(self) -> str:
        """The eval script with markers nobody can know, ending with the exit code of the tests.

        Sessions' words are laid out where the tests begin: what is built or installed before cannot read them. The tests are
        laid out by grade.sh alone.
        """
        script = without_layout(
            eval_script_for(self.task),
            test_patch=graders_patch(self.task),
            files=graders_files(self.task),
            base=self.task.base_commit,
        ).replace("\r\n", "\n")
        words = "".join(f"{name} {word}\n" for name, word in self._named_words())
        script = re.sub(
            rf"^.*{re.escape(START_MARKER)}",
            lambda found: _LAY_WORDS.format(words=words) + found[0],
            script,
            count=1,
            flags=re.MULTILINE,
        )
        for plain, secret in zip((START_MARKER, END_MARKER), self.markers, strict=True):
            script = script.replace(plain, secret)
        end = re.search(rf"^.*{re.escape(self.markers[1])}.*$", script, re.MULTILINE)
        if end is None or "swe_rl_status=$?" in script:
            return script
        # SWE-bench's scripts go on after the tests (git checkout): keep the code that counts.
        return f"{script[: end.start()]}swe_rl_status=$?\n{script[end.start() :].rstrip()}\nexit $swe_rl_status\n"

    def command(self, folder: str) -> str:
        run = "pytest" if self.plan else "script"
        python = "'" + str(self.task.metadata.get("python", "")).replace("'", "") + "'"
        base = self.task.base_commit if re.fullmatch(r"[0-9a-fA-F]{7,64}", self.task.base_commit) else ""
        return f"D={folder} BASE={base} RUN={run} PY={python}\n{_grade_script()}"

    def read(self, output: str, returncode: int, *, timed_out: bool) -> GradeResult:
        """The verdict from everything the command printed."""
        started, _, log = output.partition(f"{self.nonce} tests ")
        # What stops a grading is said before any code under test has run.
        before = self._said(started)
        detail: dict[str, object] = {"applied_by": before["applied"]} if "applied" in before else {}
        if before.get("helpers"):
            detail["test_helpers_put_back"] = [self.helpers[int(number)] for number in before["helpers"].split()]
        for name, verdict in _STOPS.items():
            if name in before:
                kind = {"kind": StartingStateError.__name__} if name == "unfit" else {}
                return GradeResult(verdict, {**detail, **kind, "reason": before[name]})
        if not log:
            if timed_out:
                return GradeResult(Verdict.INFRA_ERROR, {**detail, "reason": "no time was left to apply the patch"})
            raise InfraError(f"the grader's command did not begin: {started[-300:]!r}")
        log = log.partition("\n")[2]
        log, _, end = log.partition(f"\n{self.nonce} done ")
        if timed_out:
            return GradeResult(Verdict.TEST_TIMEOUT, {**detail, "reason": "the tests ran past their time"}, output=log)
        if returncode != self.end_code:
            # Only the shell's own last line ends with that code: the code under test ended the shell, by whatever means and
            # with whatever code. A sandbox that dies raises SandboxError instead.
            return GradeResult(
                Verdict.UNRESOLVED, {**detail, "reason": "the test run was ended from inside"}, output=log
            )
        code, _, rest = end.partition("\n")
        said = self._said(rest)
        if not code.isdigit() or not ("same" in said or "changed" in said):
            # The shell came to its end: what it said there was lost on the way, which is nobody's verdict.
            raise InfraError(f"the end of the grader's output is missing: {log[-300:]!r}")
        return self._judge(log, int(code), "changed" in said, detail)

    def stages(self, result: ExecResult) -> dict[str, float]:
        """Seconds of "apply" (the patch and the graders' files) and of "tests", by the clock of the sandbox where it told."""
        # A bash before version 5 tells whole seconds; the decimal point is that of the image's language.
        times = re.search(rf"^{self.nonce} tests \d+ (\d+(?:[.,]\d+)?) (\d+(?:[.,]\d+)?)$", result.output, re.MULTILINE)
        if times is None:
            return {"apply": result.seconds}
        began, ended = (float(text.replace(",", ".")) for text in times.groups())
        apply = min(max(0.0, ended - began), result.seconds)
        return {"apply": apply, "tests": result.seconds - apply}

    def _said(self, text: str) -> dict[str, str]:
        return dict(re.findall(rf"^{self.nonce} (\w+) ?(.*)$", text, re.MULTILINE))

    def _judge(self, log: str, code: int, changed: bool, detail: dict[str, object]) -> GradeResult:
        parsed, log = self._parse(log, code)
        judgement = judge(self.task, parsed, None if self.plan else code)
        verdict = judgement.verdict
        problems = list(judgement.problems)
        if changed:
            verdict = Verdict.TAMPERED
            problems.append("test files were written to while the tests ran")
        if problems:
            detail["problems"] = problems
        if judgement.tests_status:
            detail["tests_status"] = {k: v for k, v in judgement.tests_status.items() if any(v.values())}
        return GradeResult(verdict, detail, parsed.tests, log, code)

    def _parse(self, log: str, code: int) -> tuple[ParsedLog, str]:
        if self.plan:
            return self.plan.read(log)
        said, log = sessions_of(log, self.words)
        asked = self._runs_pytest()
        task = dataclasses.replace(self.task, eval_script=self._script())
        parsed = parse_log(
            task,
            log,
            returncode=code,
            markers=(self.markers[0], self.markers[1]),
            # We write no such lines and have our own clock; a script may have one, too.
            harness=False,
            failures=said.of("failed"),
            passes=said.of("passed") if asked else None,
            xfails=said.of("xfailed"),
        )
        if code == TIMEOUT_CODE and re.search(r"\btimeout\b", tests_region(task.eval_script)):
            parsed.fault = parsed.fault or Verdict.TEST_TIMEOUT
            parsed.problems.append(f"the eval script's own time limit ended the tests (exit code {code})")
        if asked and not said.sessions:
            parsed.problems.append("no pytest session began: what the log shows is not the test runner's")
        elif asked and parsed.parser == "exit_code" and not (said.of("passed") or said.of("xfailed")):
            parsed.problems.append("no test passed in a pytest session: an exit code of 0 alone shows no fix")
        if said.of("meddled"):
            parsed.fault = Verdict.TAMPERED
        parsed.problems += said.problems(code)
        parsed.complete = not parsed.problems
        return parsed, log

    def _reaches_pytest(self) -> bool:
        """Whether the environment that names our plugin and says where it lies reaches the tests whole, or not at all.

        tox may hand on PYTEST_ADDOPTS but not PYTHONPATH (sphinx's does): pytest would end at a plugin that it cannot find.
        """
        script = eval_script_for(self.task)
        return not (_OWN_ENVIRONMENT.search(tests_region(script)) or _PATH_ANEW.search(script))

    def _runs_pytest(self) -> bool:
        """Whether the tests are a pytest session that must have found our plugin."""
        script = eval_script_for(self.task)
        if not self._reaches_pytest() or "PYTEST_ADDOPTS" in script:
            return False
        return reads_pytest(self.task) or bool(_PYTEST.search(tests_region(script)))


_STOPS = {
    "infra": Verdict.INFRA_ERROR,
    "unfit": Verdict.INFRA_ERROR,  # the row does not fit its repository: nothing that an attempt or a sandbox did
    "rejected": Verdict.PATCH_REJECTED,
    "tampered": Verdict.TAMPERED,
}


@functools.cache
def _grade_script() -> str:
    return GRADE_SCRIPT.read_text()


@functools.cache
def _runner_file(name: str) -> bytes:
    return Path(__file__).with_name(name).read_bytes()


def _whole(patch: bytes, sections: list[FilePatch]) -> bytes:
    """The patch with the end of its last line, and with the blank line that ends binary data, where they were stripped."""
    if sections and sections[-1].binary:
        return patch.rstrip(b"\r\n") + b"\n\n"
    return patch if patch.endswith(b"\n") or not patch else patch + b"\n"


def _names(paths: Iterable[str]) -> bytes:
    return b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)

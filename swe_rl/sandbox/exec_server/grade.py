"""/container/evaluate and /container/diff: the graders' own code, run beside the container."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.grading.verdict import GradeResult
from swe_rl.sandbox.container.container import Container
from swe_rl.sandbox.container.sandbox import ContainerSandbox
from swe_rl.sandbox.exec_server.faults import ExecFault
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.put_back import put_back
from swe_rl.sandbox.exec_server.requests import CreateBody, DiffBody, EvaluateBody
from swe_rl.sandbox.starting_state import StartingStateError, prepare
from swe_rl.types import Task, Verdict

if TYPE_CHECKING:
    from swe_rl.grading.patch_policy import PolicyResult

TASK = TypeAdapter(Task)
TASK_FIELDS = {field.name for field in dataclasses.fields(Task)}
NO_PATCH = {"none": "not_found", "large": "too_large", "timed_out": "timed_out", "failed": "diff_failed"}


def task_of(body: EvaluateBody) -> Task:
    """The task that the request describes; without any test names the eval script's exit code decides.

    Its `workdir` is "" where the request names none. Raises ExecFault `bad_request`.
    """
    given = {name: value for name, value in body.task.items() if name in TASK_FIELDS}
    given.setdefault("instance_id", "request")
    given.setdefault("problem_statement", "")
    given["eval_script"] = body.eval_script or given.get("eval_script", "")
    given["workdir"] = body.cwd or given.get("workdir", "")
    if not given.get("fail_to_pass") and not given.get("pass_to_pass"):
        given.setdefault("log_parser", "exit_code")
    try:
        task = TASK.validate_python(given)
    except ValidationError as error:
        raise _bad("task", error) from None
    if task.workdir and not task.workdir.startswith("/"):
        raise ExecFault("bad_request", "task.workdir: must be an absolute path")
    if not task.eval_script and not task.repo and task.log_parser != "junit":
        raise ExecFault("bad_request", "give an eval_script, or a task.repo and task.version whose tests are known")
    return task


def _bad(field: str, error: ValidationError) -> ExecFault:
    first = error.errors()[0]
    return ExecFault("bad_request", f"{'.'.join(map(str, (field, *first['loc'])))}: {first['msg']}")


def patch_of(body: EvaluateBody) -> bytes:
    """The patch byte-exact: `patch_base64` where it is no UTF-8, else `patch`."""
    if not body.patch_base64:
        return body.patch.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(body.patch_base64, validate=True)
    except binascii.Error as error:
        raise ExecFault("bad_request", f"patch_base64: {error}") from None


async def evaluate(node: Node, body: EvaluateBody) -> dict[str, Any]:
    """Grade a patch in the given container, or in a fresh one that is removed afterwards.

    A folder or an image that does not fit is `infra_error`: it says nothing about the patch. Raises ExecFault and the kinds of
    SandboxError.
    """
    from swe_rl.grading.patch_policy import apply_policy

    if bool(body.container_id) == bool(body.image):
        raise ExecFault("bad_request", "give container_id or image, one of the two")
    try:
        settings = GradingSettings(**body.settings)
    except ValidationError as error:
        raise _bad("settings", error) from None
    patch, task, deadline = patch_of(body), task_of(body), Deadline(body.timeout)
    given = await node.get(body.container_id) if body.container_id else None
    policy = apply_policy(task, patch, settings)
    if policy.verdict is not None:
        grade = GradeResult(policy.verdict, policy.detail())
    elif given is not None:
        grade = await _grade(node, given, task, policy, deadline, fresh=False)
    else:
        request = CreateBody.model_validate({"image": body.image, "cwd": body.cwd, "timeout": body.timeout})
        async with node.for_evaluation(request) as made:
            grade = await _grade(node, made, task, policy, deadline, fresh=True)
    seconds = {**grade.seconds, "total": deadline.elapsed()}
    return {
        **dataclasses.asdict(grade),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "verdict": grade.verdict.value,
        "resolved": grade.resolved,
        "timed_out": grade.verdict is Verdict.TEST_TIMEOUT,
        "total_seconds": round(deadline.elapsed(), 3),
    }


async def _grade(
    node: Node, container: Container, task: Task, policy: PolicyResult, deadline: Deadline, *, fresh: bool
) -> GradeResult:
    """fresh: made for this evaluation, so that the task's starting state is still to be made."""
    from swe_rl.grading.evaluate import run_tests

    # As exec and diff; "/" is an image's that names no folder.
    workdir = task.workdir or (container.cwd if container.cwd != "/" else Task.workdir)
    sandbox = ContainerSandbox(container, workdir)
    # It takes several turns of the container, between which another evaluation must not begin.
    async with container.evaluation(deadline.remaining()):
        untouched = node.worked_in(container.id)
        try:
            if fresh:
                await prepare(sandbox, task, "grade", timeout=deadline.remaining())
            elif not untouched:
                await put_back(node, container, workdir, deadline, commits=bool(task.base_commit))
            opened = deadline.elapsed()
            grade = await run_tests(task, policy, sandbox, deadline)
        except StartingStateError as error:
            return GradeResult(Verdict.INFRA_ERROR, {"kind": type(error).__name__, "reason": str(error)})
    grade.seconds = {"open": opened, **grade.seconds}
    return grade


async def diff(node: Node, body: DiffBody) -> dict[str, Any]:
    """The work tree against its base commit, commits and new files included; base64 beside it where it is no UTF-8.

    Raises ExecFault where there is no whole patch: an empty one means that nothing was changed.
    """
    from swe_rl.grading.patch_extract import try_extract

    container = await node.get(body.container_id)
    sandbox = ContainerSandbox(container, body.cwd)
    task = Task("request", "", workdir=sandbox.workdir, base_commit=body.base_commit)
    found = await try_extract(task, sandbox, timeout=body.timeout)
    if found.status != "ok":
        raise ExecFault(NO_PATCH[found.status], f"no patch: {found.reason}")
    answer: dict[str, Any] = {"patch": found.patch.decode("utf-8", "replace"), "returncode": 0}
    if answer["patch"].encode() != found.patch:
        answer["patch_base64"] = base64.b64encode(found.patch).decode()
    return answer

"""/container/evaluate and /container/diff: the graders' own code, run beside the container."""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
from typing import Any

from pydantic import ValidationError

from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.sandbox.container.sandbox import ContainerSandbox
from swe_rl.sandbox.exec_server.faults import ExecFault
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.requests import CreateBody, DiffBody, EvaluateBody
from swe_rl.sandbox.starting_state import prepare
from swe_rl.types import Task

TASK_FIELDS = {field.name: field for field in dataclasses.fields(Task)}


def task_of(body: EvaluateBody) -> Task:
    """The task that the request describes; without any test names the eval script's exit code decides."""
    given = {name: value for name, value in body.task.items() if name in TASK_FIELDS}
    given.setdefault("instance_id", "request")
    given.setdefault("problem_statement", "")
    given["eval_script"] = body.eval_script or given.get("eval_script", "")
    given["workdir"] = body.cwd or given.get("workdir") or "/testbed"
    if not given.get("fail_to_pass") and not given.get("pass_to_pass"):
        given.setdefault("log_parser", "exit_code")
    for name, value in given.items():
        if "list" in str(TASK_FIELDS[name].type) and not (
            isinstance(value, list) and all(isinstance(item, str) for item in value)
        ):
            raise ExecFault("bad_request", f"task.{name} must be a list of strings")
    return Task(**given)


def patch_of(body: EvaluateBody) -> bytes:
    """The patch byte-exact: `patch_base64` where it is no UTF-8, else `patch`."""
    if not body.patch_base64:
        return body.patch.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(body.patch_base64, validate=True)
    except binascii.Error as error:
        raise ExecFault("bad_request", f"patch_base64: {error}") from None


async def evaluate(node: Node, body: EvaluateBody) -> dict[str, Any]:
    """Grade a patch in the given container, or in a fresh one that is removed afterwards."""
    from swe_rl.grading.evaluate import evaluate_in_sandbox

    task, patch, deadline = task_of(body), patch_of(body), Deadline(body.timeout)
    try:
        settings = GradingSettings(**body.settings)
    except ValidationError as error:
        raise ExecFault("bad_request", f"settings: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    if bool(body.container_id) == bool(body.image):
        raise ExecFault("bad_request", "give container_id or image, one of the two")
    async with contextlib.AsyncExitStack() as stack:
        if body.container_id:
            container = await node.get(body.container_id)
        else:
            request = CreateBody.model_validate({"image": body.image, "cwd": body.cwd, "timeout": body.timeout})
            container = await stack.enter_async_context(node.for_evaluation(request))
        sandbox = ContainerSandbox(node.engine, container, task.workdir)
        if body.image:
            await prepare(sandbox, task, "grade", timeout=deadline.remaining())
        grade = await evaluate_in_sandbox(task, patch, sandbox, settings, deadline)
    return {
        **dataclasses.asdict(grade),
        "verdict": grade.verdict.value,
        "resolved": grade.resolved,
        "timed_out": grade.verdict.value == "test_timeout",
        "total_seconds": round(deadline.elapsed(), 3),
    }


async def diff(node: Node, body: DiffBody) -> dict[str, Any]:
    """The work tree against its base commit, commits and new files included; base64 beside it where it is no UTF-8."""
    from swe_rl.grading.patch_extract import extract_patch

    container = await node.get(body.container_id)
    sandbox = ContainerSandbox(node.engine, container, body.cwd)
    task = Task("request", "", workdir=sandbox.workdir, base_commit=body.base_commit)
    patch = await extract_patch(task, sandbox, timeout=body.timeout)
    answer: dict[str, Any] = {"patch": patch.decode("utf-8", "replace")}
    if answer["patch"].encode() != patch:
        answer["patch_base64"] = base64.b64encode(patch).decode()
    return answer

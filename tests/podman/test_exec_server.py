"""The exec server on Podman: the same tests as on Docker, those that the engine can make a difference to."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer
from tests.exec_server.test_endpoints import (
    test_a_login_shell_each_time_afresh,
    test_containers_are_hardened,
    test_files_in_and_out,
    test_image_without_bash,
    test_lower_limits_are_kept,
    test_memory_limit_ends_the_command_not_the_container,
    test_tar_streams,
    test_the_life_of_a_container,
    test_verdicts,
)
from tests.exec_server.test_exactly_once import (
    test_a_command_cut_by_a_kill_is_never_run_again,
    test_a_repeated_request_gets_the_first_answer,
    test_answers_survive_a_kill,
    test_create_is_found_again_after_a_kill,
)
from tests.exec_server.test_existing_clients import (
    test_a_broken_tar_is_the_callers_fault,
    test_the_calls_of_an_older_pool,
)
from tests.exec_server.test_limits import (
    test_a_name_is_given_once,
    test_low_limits_leave_a_container_that_works,
    test_more_processors_than_there_are_means_all_of_them,
    test_the_engine_takes_the_lowest_limits,
)

__all__ = [
    "test_a_broken_tar_is_the_callers_fault",
    "test_a_command_cut_by_a_kill_is_never_run_again",
    "test_a_login_shell_each_time_afresh",
    "test_a_name_is_given_once",
    "test_a_repeated_request_gets_the_first_answer",
    "test_answers_survive_a_kill",
    "test_containers_are_hardened",
    "test_create_is_found_again_after_a_kill",
    "test_files_in_and_out",
    "test_image_without_bash",
    "test_low_limits_leave_a_container_that_works",
    "test_lower_limits_are_kept",
    "test_memory_limit_ends_the_command_not_the_container",
    "test_more_processors_than_there_are_means_all_of_them",
    "test_tar_streams",
    "test_the_calls_of_an_older_pool",
    "test_the_engine_takes_the_lowest_limits",
    "test_the_life_of_a_container",
    "test_verdicts",
]
pytestmark = pytest.mark.podman


async def test_the_engine_is_podman(box: Box) -> None:
    version = json.loads(box.server.engine.docker("version", "--format", "{{json .Server}}"))
    assert version["Components"][0]["Name"] == "Podman Engine"


async def test_no_time_is_lost_on_a_stdin_that_podman_has_closed(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    box = await new_box(server)
    await box.run("echo kept > file")
    server.kill()
    server.start()
    assert (await box.run("cat file"))["output"] == "kept\n"
    assert "no supervisor" not in server.log.read_text(), "the first way to one works"

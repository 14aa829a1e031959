"""Hostile commands and a lost supervisor on Podman."""

from __future__ import annotations

import pytest

from tests.exec_server.test_hostile_commands import (
    test_background_children_do_not_hold_the_answer,
    test_deadline_kills_the_whole_session,
    test_deadline_reaches_what_left_the_session,
    test_endless_output_is_cut_at_the_deadline,
    test_fork_bomb,
    test_invalid_utf8_and_every_byte,
    test_kill_everything,
    test_killing_the_supervisor,
    test_stdin_is_closed,
    test_two_megabyte_command,
)
from tests.exec_server.test_recovery import test_a_dead_supervisor_is_started_again

__all__ = [
    "test_a_dead_supervisor_is_started_again",
    "test_background_children_do_not_hold_the_answer",
    "test_deadline_kills_the_whole_session",
    "test_deadline_reaches_what_left_the_session",
    "test_endless_output_is_cut_at_the_deadline",
    "test_fork_bomb",
    "test_invalid_utf8_and_every_byte",
    "test_kill_everything",
    "test_killing_the_supervisor",
    "test_stdin_is_closed",
    "test_two_megabyte_command",
]
pytestmark = pytest.mark.podman

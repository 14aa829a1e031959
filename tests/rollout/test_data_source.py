"""The order of tasks is seeded, complete per epoch, and continues exactly."""

from __future__ import annotations

import json

import pytest

from swe_rl.errors import DataError
from swe_rl.rollout.data_source import TaskSource
from swe_rl.types import Task


def tasks(n=7, prefix="a"):
    return [Task(f"{prefix}-{i}", "x") for i in range(n)]


def take(source, n):
    return [(group, task.instance_id) for group, task in (source.next() for _ in range(n))]


def test_every_epoch_has_every_task_once_in_its_own_order():
    source = TaskSource(tasks(), seed=3, shuffle=True)
    first, second = take(source, 7), take(source, 7)
    assert [group for group, _ in first + second] == list(range(14))
    names = [sorted(name for _, name in epoch) for epoch in (first, second)]
    assert names[0] == names[1] == [f"a-{i}" for i in range(7)]
    assert [name for _, name in first] != [name for _, name in second]
    assert source.epoch == 2.0
    assert take(TaskSource(tasks(), seed=3, shuffle=True), 7) == first
    assert take(TaskSource(tasks(), seed=4, shuffle=True), 7) != first
    assert [name for _, name in take(TaskSource(tasks(), seed=3, shuffle=False), 8)] == [f"a-{i % 7}" for i in range(8)]


@pytest.mark.parametrize("position", [0, 3, 7, 20])
def test_a_saved_position_continues_exactly(position):
    source = TaskSource(tasks(), seed=3, shuffle=True)
    take(source, position)
    state = json.loads(json.dumps(source.state_dict()))
    rest = take(source, 30)
    other = TaskSource(tasks(), seed=3, shuffle=True)
    other.load_state_dict(state)
    assert take(other, 30) == rest


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (TaskSource(tasks(8), seed=3, shuffle=True), "training tasks"),
        (TaskSource(tasks(prefix="b"), seed=3, shuffle=True), "training tasks"),
        (TaskSource(tasks(), seed=4, shuffle=True), "seed"),
        (TaskSource(tasks(), seed=3, shuffle=False), "rollout_shuffle"),
    ],
)
def test_a_position_in_another_order_is_refused(other, reason):
    with pytest.raises(DataError, match=reason):
        other.load_state_dict(TaskSource(tasks(), seed=3, shuffle=True).state_dict())


def test_no_tasks_and_broken_positions():
    with pytest.raises(DataError, match="no tasks"):
        TaskSource([], seed=1, shuffle=True)
    source = TaskSource(tasks(), seed=3, shuffle=True)
    with pytest.raises(DataError, match="groups"):
        source.load_state_dict({**source.state_dict(), "groups": -1})

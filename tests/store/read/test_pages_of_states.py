"""Pages of tasks in some states: sorted, or met on the way down the ids, they are the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scheduler.model.state import TaskState
from scheduler.store.read import paging, tasks
from support.bench import Bench

STATES = [TaskState.SCHEDULED, TaskState.SUCCESS, TaskState.FAILED, TaskState.DEAD, TaskState.CANCELLED]


@pytest.mark.parametrize(
    ("few", "near", "most"),
    [(1000, 1, 1000), (0, 1000, 1000), (2, 5, 1000), (2, 5, 3), (0, 1, 0)],
    ids=["sorted", "near", "both", "neither", "walked"],
)
def test_every_way_finds_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, few: int, near: int, most: int
) -> None:
    ids = [int(bench.step(str(n)).after(3600).schedule()) for n in range(40)]
    rng = random.Random(7)
    stood = {i: rng.choice(STATES[:2] if i < 30 else STATES) for i in ids}  # the old ones differ from the new
    for i, state in stood.items():
        bench.execute("UPDATE schedd_tasks SET state = :s WHERE id = :id", s=state.code, id=i)
    for name, value in (("_FEW", few), ("_NEAR", near), ("_MAX_SORTED", most)):
        monkeypatch.setattr(paging, name, value)
    for wanted in ([TaskState.DEAD], [TaskState.SCHEDULED], [TaskState.SUCCESS, TaskState.FAILED], STATES):
        expected = [i for i in reversed(ids) if stood[i] in wanted]
        assert pages(bench, wanted) == expected


def pages(bench: Bench, wanted: list[TaskState]) -> list[int]:
    found: list[int] = []
    cursor: Any = None
    with bench.jobs.database.read() as tx:
        while True:
            page = tasks.list_tasks(tx, states=wanted, limit=4, cursor=cursor)
            found += [task.id for task in page.tasks]
            cursor = page.cursor
            if cursor is None:
                return found

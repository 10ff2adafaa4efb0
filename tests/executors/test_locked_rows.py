"""A job whose task's row another transaction holds records the end once it is let go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from scheduler import TaskState
from support.databases import Database
from support.executor_rigs import ProcessRig
from support.placing import Place


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    made = Place(database.url, tmp_path, ProcessRig().settings(tmp_path))
    yield made
    made.close()


def heartbeat(place: Place) -> int:
    """Of the job: the youngest worker."""
    with place.jobs.database.read() as tx:
        return int(tx.run("SELECT heartbeat_at FROM schedd_workers ORDER BY id DESC LIMIT 1").scalar_one())


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_an_end_that_was_blocked_is_recorded_once_the_row_is_free(database: Database, place: Place) -> None:
    task_id = place.schedule("wait")
    place.until(lambda: place.state(task_id) is TaskState.RUNNING)
    with psycopg.connect(database.url.replace("+psycopg", "")) as other:
        other.execute("SELECT 1 FROM schedd_tasks WHERE id = %s FOR UPDATE", (task_id,))
        place.go()
        place.until(lambda: place.lines("end"))
        before = heartbeat(place)
        place.until(lambda: heartbeat(place) > before)  # the job has gone on since it met the lock
        assert place.state(task_id) is TaskState.RUNNING
        other.rollback()
    place.until(lambda: place.ended(task_id))
    assert place.outcomes(task_id) == ["succeeded"]

"""Stores filled with graphs and schedules, as fast as rows can be written."""

from __future__ import annotations

from scheduler import Scheduler
from scheduler.model.rollup import MINUTE, Cell, Measure, bucket_of
from scheduler.model.state import TaskState
from scheduler.ports import SECOND
from scheduler.store import rollups
from scheduler.store.db.dialect import bind_rows

_TASK = (
    "INSERT INTO schedd_tasks (id, kind, state, queue, lane, priority, run_at, unmet, created_at, finished_at, "
    "payload) "
    "SELECT id, kind, state, 'default', kind, 1, CAST(:now AS bigint), unmet, CAST(:now AS bigint), "
    "CASE WHEN state >= 6 THEN CAST(:now AS bigint) END, '{}' "
)


def store_graph(
    jobs: Scheduler,
    kinds: dict[int, str],
    edges: list[tuple[int, int]],
    states: dict[int, TaskState],
    first: int = 1,
) -> int:
    """Store a graph whose tasks are ``first`` plus these numbers. Returns the id of its least task."""
    unmet: dict[int, int] = {}
    for parent, child in edges:
        if states.get(parent, TaskState.WAITING) is not TaskState.SUCCESS:
            unmet[child] = unmet.get(child, 0) + 1
    tasks = [
        (first + n, kind, states.get(n, TaskState.WAITING).code, unmet.get(n, 0)) for n, kind in sorted(kinds.items())
    ]
    with jobs.database.write() as tx:
        columns = {"id": int, "kind": str, "state": int, "unmet": int}
        tx.run(f"{_TASK} FROM {tx.dialect.rows(columns)} j", rows=bind_rows(tasks), now=tx.now)
        tx.run(
            "INSERT INTO schedd_edges (parent, child, on_end, otherwise, ok) "
            f"SELECT parent, child, 0, 0, 1 FROM {tx.dialect.rows({'parent': int, 'child': int})} j",
            rows=bind_rows([(first + a, first + b) for a, b in edges]),
        )
        if tx.dialect.name == "postgresql":
            last = "SELECT setval(pg_get_serial_sequence('schedd_tasks', 'id'), (SELECT max(id) FROM schedd_tasks))"
            tx.run(last)
    return first + min(kinds)


def etl(width: int, done: int = 0, dead: int = 0) -> tuple[dict[int, str], list[tuple[int, int]], dict[int, TaskState]]:
    """A start, ``width`` chains of extract, clean and load, and a report of all; so many chains done, so many dead."""
    kinds = {0: "Start", 1: "Report"}
    edges: list[tuple[int, int]] = []
    states = {0: TaskState.SUCCESS}
    for number in range(width):
        one = 2 + number * 3
        kinds |= {one: "Extract", one + 1: "Clean", one + 2: "Load"}
        edges += [(0, one), (one, one + 1), (one + 1, one + 2), (one + 2, 1)]
        if number < done:
            states |= dict.fromkeys((one, one + 1, one + 2), TaskState.SUCCESS)
        elif number < done + dead:
            states |= {one: TaskState.SUCCESS, one + 1: TaskState.DEAD}
        else:
            states[one] = TaskState.SCHEDULED
    return kinds, edges, states


def known_kinds(jobs: Scheduler, **seconds: float) -> None:
    """Let the rollups say how long these kinds take."""
    with jobs.database.write() as tx:
        at = tx.now - tx.now % (MINUTE * SECOND)
        cells = [
            Cell(
                MINUTE, at, kind, "default", 0, int(Measure.RUN), bucket_of(round(s * SECOND)), 9, round(9 * s * SECOND)
            )
            for kind, s in sorted(seconds.items())
        ]
        rollups.add(tx, cells)

"""Schedulers with child processes, and what tests ask of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faults import isolated as kinds
from faults.harness import result, rows, state, until
from scheduler import Scheduler, Task
from scheduler.model.outcome import AttemptEnd
from scheduler.store.read import history as read_history
from support.databases import Database

PATIENCE = 30.0
GRACE = 0.5
OPTIONS: dict[str, Any] = {"processes": 2, "process_grace": GRACE, "lease": 10.0}


def started(database: Database, **options: Any) -> Scheduler:
    made = Scheduler(database.url, **(OPTIONS | options))
    for kind in kinds.KINDS:
        made.register(kind)
    made.start()
    assert made.engine.wait_ready(PATIENCE)
    return made


def end(jobs: Scheduler) -> None:
    jobs.stop_now()
    jobs.close()


def run(jobs: Scheduler, task: Task) -> int:
    """Schedule it and wait for its end."""
    task_id = jobs.task(task).schedule()
    jobs.wait([task_id], timeout=PATIENCE)
    return task_id


def error_of(jobs: Scheduler, task: Task) -> str:
    task_id = run(jobs, task)
    assert state(jobs, task_id) == "dead"
    return str(jobs.get_last_error(task_id))


def log_of(jobs: Scheduler, task_id: int) -> str:
    with jobs.database.read() as tx:
        return str(read_history.attempt_log(tx, task_id))


def histories(jobs: Scheduler) -> dict[int, list[tuple[int, str]]]:
    """(attempt, how it ended) of all tasks, by their ids."""
    found: dict[int, list[tuple[int, str]]] = {}
    for row in rows(jobs, "SELECT task_id, number, outcome FROM schedd_attempts ORDER BY task_id, claim"):
        found.setdefault(row.task_id, []).append((row.number, str(AttemptEnd.from_code(row.outcome))))
    return found


def serves_on(jobs: Scheduler) -> None:
    assert result(jobs, run(jobs, kinds.Pid(5)))["n"] == 5


def fork_server(jobs: Scheduler) -> int:
    pool = jobs.engine.engine_state.processes
    assert pool is not None
    assert pool.children.fork_server is not None
    return pool.children.fork_server.pid


def noted(path: Path, what: str) -> list[str]:
    return until(lambda: next((line for line in kinds.lines(path) if line[0] == what), None), what)

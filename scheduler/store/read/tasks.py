"""Reading tasks: one, or a page of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.lanes import fairness_of
from scheduler.model.priority import Priority
from scheduler.model.resources import Resources, resources_from_json
from scheduler.model.retry import RetryPolicy
from scheduler.model.spec import is_another
from scheduler.model.state import TaskState
from scheduler.model.task_columns import TaskColumns
from scheduler.model.task_filter import BEFORE, SINCE, TaskFilter, Term, in_states, only
from scheduler.store.broken_rows import BrokenRowError
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.table_names import NUMBERS
from scheduler.store.db.tx import Tx
from scheduler.store.read.graph import EdgeRecord, dependencies, dependents, graph
from scheduler.store.read.history import AttemptRecord, attempt_log, attempt_logs, attempts, result_of, traceback_in
from scheduler.store.read.paging import BIGGEST, Window, ids_of
from scheduler.store.read.where import asked
from scheduler.store.unknown import unknown

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = [
    "AttemptRecord",
    "EdgeRecord",
    "TaskRecord",
    "attempt_log",
    "attempt_logs",
    "attempts",
    "dependencies",
    "dependents",
    "ends",
    "get_task",
    "get_tasks",
    "graph",
    "list_tasks",
    "result_of",
    "traceback_in",
]


class TaskRecord(TaskColumns[int, int, int], frozen=True, kw_only=True):
    """All that is stored of one task. Times and spans are microseconds (UTC), as everywhere in the store.

    ``payload`` is JSON text; :attr:`result` is decoded when asked for. ``run_at`` is FOREVER for a task that
    waits for an event without an end. ``worker`` is the id of the worker that holds it; ``claim`` grows with
    every claim.
    """

    attempt_base: int
    claim: int
    lane: str
    failed_ttl: int | None
    result_text: str | None

    @property
    def result(self) -> Any:
        """What the handler returned; None if it returned nothing, has not ended, or the result is gone."""
        return None if self.result_text is None else msgspec.json.decode(self.result_text)

    def expired(self, now: int) -> bool:
        """Whether its result's time is over."""
        return self.result_until is not None and self.result_until <= now

    def at(self, now: int) -> TaskRecord:
        """The same without a result that has expired."""
        return msgspec.structs.replace(self, result_text=None) if self.expired(now) else self

    @property
    def attempts_used(self) -> int:
        """Executions that count against the budget."""
        return self.attempt - self.attempt_base


FAILURES = (TaskState.FAILED, TaskState.DEAD)  # which failed_ttl is about
_DERIVED = {"priority", "result_text", "fairness_key"}
_COLUMNS = [name for name in TaskRecord.__struct_fields__ if name not in _DERIVED] + ["priority", "result"]
_NUMBERS = [name for name in NUMBERS["schedd_tasks"] if name in _COLUMNS]
_NAMES = ", ".join(f"t.{name}" for name in _COLUMNS)


def _policy(text: str | None) -> RetryPolicy | None:
    """A stored policy; None also for a text that no version of ours wrote, so that the rest can still be shown."""
    try:
        return None if text is None else RetryPolicy.from_json(text)
    except ConfigError:
        return None


def _headers(text: str | None) -> dict[str, Any]:
    """Stored headers; none for a text that is no JSON object."""
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _resources(text: str | None) -> Resources | None:
    """Stored resources; none for a text that no version of ours wrote."""
    try:
        return None if text is None else resources_from_json(text)
    except (ConfigError, msgspec.MsgspecError):
        return None


def _record(row: sa.Row[Any], values: dict[tuple[int, str], str]) -> TaskRecord:
    given = dict(row._mapping)
    for name, most in (("state", len(TaskState)), ("priority", len(Priority))):
        if given[name] not in range(most):
            raise BrokenRowError(f"task {row.id}: {name} {given[name]} is unknown; see `schedctl doctor`")
    for name in _NUMBERS:
        if given[name] is not None and not isinstance(given[name], int):
            raise BrokenRowError(f"task {row.id}: {name} is no number; see `schedctl doctor`")
    task_id, result = given["id"], given.pop("result")
    policy, headers, state = given["retry"], given["headers"], TaskState.from_code(given["state"])
    given |= {
        "state": state,
        "priority": Priority(given.pop("priority")),
        "correlation": given["correlation"] or str(task_id),
        "retry": _policy(policy),
        "fairness_key": fairness_of(str(given["lane"])).key or None,
        "headers": _headers(headers),
        "dead_letter": bool(given["dead_letter"]),
        "resources": _resources(given["resources"]),
        "executor_options": None if given["executor_options"] is None else _headers(given["executor_options"]),
        "finished_at": given["finished_at"] if state.terminal else None,  # else of its last attempt
        "rerun": given["rerun"] == 1,
        "payload": given["payload"] if given["payload"] is not None else values.get((task_id, "payload")),
        "result_text": result if result is not None else values.get((task_id, "result")),
    }
    if given["failed_ttl"] is not None and state in FAILURES and given["finished_at"] is not None:
        given["expires_at"] = given["finished_at"] + given["failed_ttl"]
    return TaskRecord(**given)


def _side_values(tx: Tx, rows: Sequence[sa.Row[Any]]) -> dict[tuple[int, str], str]:
    """Payloads and results that are too long for the row itself."""
    done = TaskState.SUCCESS.code
    ids = [r.id for r in rows if r.payload is None or (r.result is None and r.state == done)]
    if not ids:
        return {}
    found = tx.run(
        "SELECT task_id, name, value FROM schedd_task_values "
        f"WHERE task_id IN {tx.dialect.ids()} AND name IN ('payload', 'result')",
        ids=bind_rows(ids),
    )
    return {(r.task_id, r.name): r.value for r in found}


def get_task(tx: Tx, task_id: int) -> TaskRecord:
    """The task with this id. Raises UnknownTaskError, also for one that retention removed."""
    row = _one(tx, task_id)
    if row is None or is_another(task_id, row.created_at):
        raise unknown(tx, task_id, taken=row is not None)
    return _record(row, _side_values(tx, [row]))


def get_tasks(tx: Tx, ids: Sequence[int], broken: Callable[[str], object] | None = None) -> list[TaskRecord]:
    """The tasks with these ids, in this order; those that are not there are left out.

    ``broken``: called with each row that cannot be read, which is left out, too. Raises BrokenRowError for such a row
    without it.
    """
    sql = f"SELECT {_NAMES} FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()}"
    rows = tx.run(sql, ids=bind_rows(ids)).fetchall()
    values = _side_values(tx, rows)
    found: dict[int, TaskRecord] = {}
    for row in rows:
        try:
            found[row.id] = _record(row, values)
        except BrokenRowError as error:
            if broken is None:
                raise
            broken(str(error))
    return [found[i] for i in ids if i in found]


def _one(tx: Tx, task_id: int) -> sa.Row[Any] | None:
    if not 0 < task_id <= BIGGEST:
        return None
    sql = f"SELECT {_NAMES} FROM schedd_tasks t WHERE t.id = :id"
    return tx.run(sql, id=task_id).first()


class FoundTasks(NamedTuple):
    """A page of tasks, the newest first.

    ``cursor``: only ids below it come next; None: there is nothing more. ``bound``: it had looked at as many tasks as
    its window has before the page was full; ids below ``cursor`` have not been looked at.
    """

    tasks: list[TaskRecord]
    cursor: int | None
    bound: bool


def errors_of(tx: Tx, ids: Sequence[int]) -> dict[int, str | None]:
    """The errors of these tasks."""
    rows = tx.run(f"SELECT id, error FROM schedd_tasks WHERE id IN {tx.dialect.ids()}", ids=bind_rows(ids))
    return {row.id: row.error for row in rows}


def list_tasks(
    tx: Tx,
    *,
    states: Iterable[TaskState] | None = None,
    kind: str | Sequence[str] | None = None,
    queue: str | Sequence[str] | None = None,
    key: str | None = None,
    correlation: str | None = None,
    subject: str | None = None,
    message_type: str | None = None,
    worker: int | None = None,
    since: int | None = None,
    until: int | None = None,
    limit: int = 100,
    cursor: int | None = None,
    window: Window | None = None,
    broken: Callable[[str], object] | None = None,
) -> FoundTasks:
    """A page of tasks.

    ``correlation`` also finds the task that has this id and no correlation of its own. ``since`` and ``until``: created
    at or after, and before, these instants, in microseconds. ``worker``: that holds them. ``window``: how far to look
    where no index leads to them; None: at all. ``broken``: called with each row that cannot be read, which is left out.

    Raises BrokenRowError for such a row without ``broken``.
    """
    given = {"key": key, "correlation": correlation, "subject": subject, "type": message_type, "worker": worker}
    terms = [only(name, value) for name, value in given.items() if value is not None]
    for name, names in (("kind", kind), ("queue", queue)):
        if names is not None:
            terms.append(only(name, *([names] if isinstance(names, str) else names)))
    ages = (Term("stored", (at,), how=how) for at, how in ((since, SINCE), (until, BEFORE)) if at is not None)
    terms += [*ages, *([] if states is None else [in_states(states)])]
    page = ids_of(tx, asked(tx, TaskFilter(tuple(terms))), cursor, limit, window)
    return FoundTasks(get_tasks(tx, page.ids, broken), page.cursor, page.bound)


def removed_at(tx: Tx, task_id: int) -> int | None:
    """When retention removed a task whose end it remembers (microseconds); None if it does not."""
    found: int | None = tx.run(
        "SELECT removed_at FROM schedd_outcomes WHERE task_id = :id", id=min(task_id, BIGGEST)
    ).scalar()
    return found


def ends(tx: Tx, ids: Sequence[int]) -> dict[int, TaskState | None]:
    """The terminal state of each task, None while it lives; of removed ones as recorded.

    Raises UnknownTaskError.
    """
    wanted = [int(i) for i in dict.fromkeys(ids) if 0 < i <= BIGGEST]
    rows = tx.run(
        f"SELECT t.id AS id, t.state AS state, t.created_at FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()} "
        f"UNION ALL SELECT task_id, state, NULL FROM schedd_outcomes WHERE task_id IN {tx.dialect.ids()}",
        ids=bind_rows(wanted),
    ).fetchall()
    found = {row.id: TaskState.from_code(row.state) for row in rows}
    stored = {row.id: row.created_at for row in rows}
    for task_id in ids:
        if task_id not in found or is_another(task_id, stored[task_id]):
            raise unknown(tx, task_id, taken=task_id in found)
    return {i: found[i] if found[i].terminal else None for i in dict.fromkeys(ids)}

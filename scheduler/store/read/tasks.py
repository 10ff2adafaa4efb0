"""Reading tasks: one, or a page of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler.errors import ConfigError, UnknownTaskError
from scheduler.model import state as st
from scheduler.model.resources import Resources, resources_from_json
from scheduler.model.retry import RetryPolicy
from scheduler.model.spec import is_another
from scheduler.model.state import TaskState
from scheduler.model.task import Priority
from scheduler.model.task_columns import TaskColumns
from scheduler.model.texts import rfc3339
from scheduler.model.times import SECOND
from scheduler.store.broken_rows import BrokenRowError, numbers_of
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import claimable, held
from scheduler.store.read.graph import EdgeRecord, dependencies, dependents, graph
from scheduler.store.read.history import AttemptRecord, attempt_log, attempt_logs, attempts, result_of

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
]

_CREATED_SLACK = 600 * SECOND  # ids and creation times may be this much out of step
# Of the states asked for: up to so many tasks are sorted at once; of more, a page is looked for among the newest ids;
# if it is not there, up to so many more are sorted.
_FEW, _NEAR, _MAX_SORTED = 5_000, 30_000, 50_000
_BIGGEST = 2**63 - 1


class TaskRecord(TaskColumns[int, int, int], frozen=True, kw_only=True):
    """All that is stored of one task. Times and spans are microseconds (UTC), as everywhere in the store.

    ``payload`` is JSON text; :attr:`result` is decoded when asked for. ``run_at`` is FOREVER for a task that
    waits for an event without an end. ``worker`` is the id of the worker that holds it; ``claim`` grows with
    every claim.
    """

    attempt_base: int
    claim: int
    lane: str
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


_DERIVED = {"priority", "result_text"}
_COLUMNS = [name for name in TaskRecord.__struct_fields__ if name not in _DERIVED] + ["priority", "result"]
_NUMBERS = [name for name in numbers_of("schedd_tasks") if name in _COLUMNS]
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
        "headers": _headers(headers),
        "dead_letter": bool(given["dead_letter"]),
        "resources": _resources(given["resources"]),
        "executor_options": None if given["executor_options"] is None else _headers(given["executor_options"]),
        "finished_at": given["finished_at"] if state.terminal else None,  # else of its last attempt
        "rerun": given["rerun"] == 1,
        "payload": given["payload"] if given["payload"] is not None else values.get((task_id, "payload")),
        "result_text": result if result is not None else values.get((task_id, "result")),
    }
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


def unknown(tx: Tx, task_id: int, *, taken: bool) -> UnknownTaskError:
    """What to raise for an id that names no task, or (``taken``) another one than the caller was given it for."""
    epochs = tx.run(_EPOCHS, id=int(task_id)).fetchall()
    if epochs:
        when = rfc3339(epochs[0].since, exact=False)
        return UnknownTaskError(task_id, f"a failover or a restore, noticed at {when}, may have lost it")
    return UnknownTaskError(
        task_id, "a failover or a restore has lost it, and another task has its id" if taken else None
    )


_EPOCHS = "SELECT since FROM schedd_store WHERE epoch > 1 AND first_id > :id ORDER BY epoch LIMIT 1"


def get_tasks(tx: Tx, ids: Sequence[int]) -> list[TaskRecord]:
    """The tasks with these ids, in this order; those that are not there are left out."""
    sql = f"SELECT {_NAMES} FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()}"
    rows = tx.run(sql, ids=bind_rows(ids)).fetchall()
    values = _side_values(tx, rows)
    found = {row.id: _record(row, values) for row in rows}
    return [found[i] for i in ids if i in found]


def _one(tx: Tx, task_id: int) -> sa.Row[Any] | None:
    if not 0 < task_id <= _BIGGEST:
        return None
    sql = f"SELECT {_NAMES} FROM schedd_tasks t WHERE t.id = :id"
    return tx.run(sql, id=task_id).first()


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
    broken: Callable[[str], object] | None = None,
) -> tuple[list[TaskRecord], int | None]:
    """A page of tasks, newest first, and the cursor of the next page (None: there is none).

    ``correlation`` also finds the task that has this id and no correlation of its own. ``since`` and ``until``: created
    at or after, and before, these instants, in microseconds. ``worker``: that holds them. ``broken``: called with each
    row that cannot be read, which is left out.

    Raises BrokenRowError for such a row without ``broken``.
    """
    equal = {"key": key, "subject": subject, "worker": worker}
    bound: dict[str, Any] = {name: value for name, value in equal.items() if value is not None}
    conditions = [f"t.{name} = :{name}" for name in bound]
    for name, given in (("kind", kind), ("queue", queue)):
        if given is not None:
            several = {f"{name}{i}": one for i, one in enumerate([given] if isinstance(given, str) else given)}
            conditions.append(f"t.{name} IN ({', '.join(f':{one}' for one in several)})")
            bound |= several
    if until is not None:
        conditions.append("t.created_at < :until")
        bound["until"] = until
    if correlation is not None:
        conditions.append(
            "t.id IN (SELECT id FROM schedd_tasks WHERE correlation = :correlation "
            "UNION ALL SELECT id FROM schedd_tasks WHERE id = :own AND correlation IS NULL)"
        )
        bound |= {"correlation": correlation, "own": as_id(correlation)}
    if message_type is not None:
        conditions.append("(t.message_type = :type OR (t.message_type IS NULL AND t.kind = :type))")
        bound["type"] = message_type
    if since is not None:
        conditions += ["t.created_at >= :since", "t.id >= :first"]
        bound |= {"since": since, "first": first_id(tx, since - _CREATED_SLACK)}
    codes = None if states is None else sorted({state.code for state in states})
    bound |= {"limit": limit + 1, "cursor": _BIGGEST if cursor is None else cursor}
    narrow = any(value is not None for value in (key, subject, correlation))
    page = page_of(tx, conditions, codes, bound, narrow=narrow)
    sql = f"SELECT {_NAMES} FROM schedd_tasks t JOIN ({page}) p ON p.id = t.id ORDER BY t.id DESC"
    rows = tx.run(sql, **bound).fetchall()
    shown = rows[:limit]
    values = _side_values(tx, shown)
    records = []
    for row in shown:
        try:
            records.append(_record(row, values))
        except BrokenRowError as error:
            if broken is None:
                raise
            broken(str(error))
    return records, shown[-1].id if len(rows) > limit else None


def as_id(text: str) -> int:
    """The task id that a correlation may be; -1 if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


# Each partial index by the clause that it was made with, which SQLite wants to see word for word.
_GROUPS = (
    (f"t.state = {st.WAITING}", (0,)),
    (f"{claimable('t')}", (1, 2, 3)),
    (f"{held('t')}", (4, 5)),
    (f"t.state = {st.SUCCESS}", (6,)),
    (f"t.state >= {st.FAILED}", (7, 8, 9, 10)),
)


def page_of(tx: Tx, conditions: list[str], codes: list[int] | None, bound: Mapping[str, Any], *, narrow: bool) -> str:
    """The SELECT of a page's ids: down the primary key, or by an index where that would walk far for little.

    ``bound``: its parameters, with ``limit`` and ``cursor``.
    ``id + 0`` keeps the planners from walking the primary key.
    """
    chosen: list[str] = []
    if codes is not None:
        in_codes = f"t.state IN ({', '.join(map(str, codes)) or 'NULL'})"
        conditions = [*conditions, in_codes]
        chosen = [f"{clause} AND {in_codes}" for clause, group in _GROUPS if set(codes) & set(group)]
    if narrow:
        where = " AND ".join([*conditions, "t.id + 0 < :cursor"])
        return f"SELECT t.id FROM schedd_tasks t WHERE {where} ORDER BY t.id + 0 DESC LIMIT :limit"
    if chosen and _are_sorted(tx, chosen, conditions, bound):
        where = " AND ".join([*conditions, "t.id + 0 < :cursor"])
        found = " UNION ALL ".join(f"SELECT t.id FROM schedd_tasks t WHERE {c} AND {where}" for c in chosen)
        return f"SELECT f.id FROM ({found}) f ORDER BY f.id + 0 DESC LIMIT :limit"
    where = " AND ".join([*conditions, "t.id < :cursor"])
    return f"SELECT t.id FROM schedd_tasks t WHERE {where} ORDER BY t.id DESC LIMIT :limit"


def _are_sorted(tx: Tx, chosen: list[str], conditions: list[str], bound: Mapping[str, Any]) -> bool:
    """Whether the tasks in the states asked for are to be sorted, and not met on the way down the ids."""
    if _are_fewer(tx, chosen, _FEW):
        return True
    newest = tx.run("SELECT max(id) FROM schedd_tasks WHERE id < :cursor", cursor=bound["cursor"]).scalar() or 0
    where = " AND ".join([*conditions, "t.id < :cursor", "t.id > :near"])
    page = f"SELECT t.id FROM schedd_tasks t WHERE {where} ORDER BY t.id DESC LIMIT :limit"
    met = tx.run(f"SELECT count(*) FROM ({page}) f", **bound, near=newest - _NEAR).scalar_one()
    return bool(met < bound["limit"]) and _are_fewer(tx, chosen, _MAX_SORTED)


def _are_fewer(tx: Tx, clauses: list[str], number: int) -> bool:
    seen = 0
    for clause in clauses:
        some = f"SELECT 1 AS one FROM schedd_tasks t WHERE {clause} LIMIT {number - seen}"
        seen += tx.run(f"SELECT count(*) FROM ({some}) f").scalar_one()
        if seen >= number:
            return False
    return True


def first_id(tx: Tx, since: int) -> int:
    """About the first id created at or after ``since``: a search by halves, as ids grow with time."""
    # Two statements: asked for both at once, SQLite walks the table.
    low = tx.run("SELECT min(id) FROM schedd_tasks").scalar() or 0
    high = tx.run("SELECT max(id) FROM schedd_tasks").scalar() or 0
    at = "SELECT created_at FROM schedd_tasks WHERE id >= :id ORDER BY id LIMIT 1"
    while low < high:
        middle = (low + high) // 2
        created = tx.run(at, id=middle).scalar()
        if created is not None and created < since:  # None: the last ones were removed since
            low = middle + 1
        else:
            high = middle
    return int(low)


def removed_at(tx: Tx, task_id: int) -> int | None:
    """When retention removed a task whose end it remembers (microseconds); None if it does not."""
    found: int | None = tx.run(
        "SELECT removed_at FROM schedd_outcomes WHERE task_id = :id", id=min(task_id, _BIGGEST)
    ).scalar()
    return found


def ends(tx: Tx, ids: Sequence[int]) -> dict[int, TaskState | None]:
    """The terminal state of each task, None while it lives; of removed ones as recorded.

    Raises UnknownTaskError.
    """
    wanted = [int(i) for i in dict.fromkeys(ids) if 0 < i <= _BIGGEST]
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

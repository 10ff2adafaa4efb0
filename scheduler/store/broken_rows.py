"""Rows that no version of schedd wrote: found, named, and read as far as they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import InvalidScheduleError, SchedulerError, shown_as
from scheduler.model.capacity import Capacity
from scheduler.model.outcome import AttemptEnd
from scheduler.model.placement import PlacementState
from scheduler.model.priority import Priority
from scheduler.model.spec import TaskSpec
from scheduler.model.state import Otherwise, TaskState, When
from scheduler.store.db.tx import Tx

UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, msgspec.MsgspecError)
"""What comes of decoding such a row."""

_MAX_ROWS = 100  # of one table and fault
_OWNERS = {  # by whose name and by which column a row is called
    "schedd_tasks": ("task", "id"),
    "schedd_attempts": ("task", "task_id"),
    "schedd_edges": ("task", "child"),
    "schedd_placements": ("task", "task_id"),
    "schedd_outcomes": ("task", "task_id"),
    "schedd_workers": ("worker", "id"),
    "schedd_kinds": ("kind", "name"),
    "schedd_schedules": ("schedule", "name"),
    "schedd_events": ("event", "name"),
}
_OF_TASKS = frozenset({"schedd_tasks", "schedd_attempts", "schedd_edges", "schedd_outcomes"})  # which grow with them
_CODES = (
    ("schedd_tasks", "state", len(TaskState), "state {} is unknown"),
    ("schedd_tasks", "priority", len(Priority), "priority {} is unknown"),
    ("schedd_outcomes", "state", len(TaskState), "the remembered state {} is unknown"),
    ("schedd_attempts", "outcome", len(AttemptEnd), "the outcome {} of an attempt is unknown"),
    ("schedd_edges", "on_end", len(When), "an edge waits for the unknown end {}"),
    ("schedd_edges", "otherwise", len(Otherwise), "an edge has the unknown otherwise {}"),
    ("schedd_workers", "state", 4, "state {} is unknown"),
    ("schedd_placements", "state", len(PlacementState), "the state {} of a placement is unknown"),
)


def _recurrence(text: str) -> object:
    from scheduler.model.recurrence import Recurrence

    return Recurrence.from_json(text)


_OBJECTS = (("schedd_tasks", "headers"), ("schedd_tasks", "retry"))  # JSON objects in a table too long to decode here
_TEXTS: tuple[tuple[str, str, Callable[[str], object]], ...] = (
    ("schedd_kinds", "options", lambda text: msgspec.json.decode(text, type=dict[str, Any])),
    ("schedd_kinds", "schema", lambda text: msgspec.json.decode(text, type=dict[str, Any])),
    ("schedd_workers", "queues", lambda text: msgspec.json.decode(text, type=list[str])),
    ("schedd_workers", "pools", lambda text: msgspec.json.decode(text, type=Capacity)),
    ("schedd_schedules", "recurrence", _recurrence),
    ("schedd_schedules", "options", lambda text: msgspec.json.decode(text, type=dict[str, Any])),
    ("schedd_schedules", "graph", lambda text: msgspec.json.decode(text, type=list[TaskSpec])),
)


@shown_as(SchedulerError)
class BrokenRowError(SchedulerError):
    """A row that cannot be read; the text names it."""


class Broken(NamedTuple):
    """A broken row. ``task``: the id of the task that it is about, if it is about one."""

    text: str
    task: int | None = None


def state_name(code: int) -> str:
    """The name of a stored state, also of one that no version of schedd knows."""
    return TaskState.from_code(code).value if code in range(len(TaskState)) else f"unknown ({code})"


def options_of(text: str) -> dict[str, Any]:
    """A kind's published options; none for a text that no version of schedd wrote."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def numbers_of(table: str) -> list[str]:
    """The columns of the table that hold whole numbers, which SQLite does not enforce."""
    import sqlalchemy as sa

    from scheduler.store.schema import metadata  # which takes a command a while to make

    return [c.name for c in metadata.tables[table].columns if isinstance(c.type, sa.Integer)]


def broken_rows(tx: Tx, since: int | None = None) -> list[Broken]:
    """The rows that cannot be read, some of each kind. ``since``: of no task with an id below it; None: of all."""
    found: list[Broken] = []
    for table in _OWNERS:
        faults = _faults(tx, table)
        if not faults or not _rows(tx, table, "NULL", " OR ".join(f"({where})" for _, where, _ in faults), since, 1):
            continue
        for column, where, text in faults:
            found += [_named(table, k, text.format(value)) for k, value in _rows(tx, table, column, where, since)]
    for table, column, decode in _TEXTS:
        for key, value in _rows(tx, table, column, f"{column} IS NOT NULL", most=None):
            try:
                decode(value)
            except Exception as error:  # whatever an unreadable text brings
                found.append(_named(table, key, f"{column} cannot be read ({error})"))
    return found


def _faults(tx: Tx, table: str) -> list[tuple[str, str, str]]:
    """What a row of this table may have: the column, the condition, and how it is called."""
    found = [(c, f"{c} < 0 OR {c} >= {count}", text) for name, c, count, text in _CODES if name == table]
    found += [(c, f"{c} NOT LIKE '{{%}}'", f"{c} cannot be read") for name, c in _OBJECTS if name == table]
    if tx.dialect.name == "sqlite":
        odd = "typeof({}) NOT IN ('integer', 'null')"
        found += [(c, odd.format(c), f"{c} is no number") for c in numbers_of(table)]
    return found


def _rows(
    tx: Tx, table: str, column: str, where: str, since: int | None = None, most: int | None = _MAX_ROWS
) -> list[tuple[Any, Any]]:
    owner = _OWNERS[table][1]
    limit = "" if most is None else f" LIMIT {most}"
    least = f"{owner} >= {since} AND " if since is not None and table in _OF_TASKS else ""
    rows = tx.run(f"SELECT {owner}, {column} FROM {table} WHERE {least}({where}) ORDER BY 1{limit}")
    return [(row[0], row[1]) for row in rows]


def _named(table: str, key: Any, text: str) -> Broken:
    owner = _OWNERS[table][0]
    return Broken(f"{owner} {key}: {text}", key if owner == "task" and isinstance(key, int) else None)


def unreadable(name: str, why: object) -> InvalidScheduleError:
    """What to raise of a schedule whose row cannot be read."""
    return InvalidScheduleError(f"schedule {name!r} cannot be read: {why}; register it anew, or delete it")

"""The runs of a schedule: the tasks that one fire time makes, which fire times have run, and which runs go on.

A schedule makes one task for each fire time, or, if its row has a ``graph``, several with edges between them. The tasks
of one run have the run's name in their key, and those of a graph have it as their correlation.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from scheduler.model.catchup import Fire, jitter_of
from scheduler.model.recurrence import Recurrence
from scheduler.model.retry import MAX_COUNT
from scheduler.model.spec import EdgeSpec, TaskSpec
from scheduler.model.state import FIRST_TERMINAL
from scheduler.model.times import to_datetime
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import exists, same

if TYPE_CHECKING:
    import sqlalchemy as sa

GRAPH = "(graph)"  # the kind of a schedule that makes graphs: no name of a kind
_OF_SLOT = f"t.schedule = j.name AND {same('t.slot', 'j.slot')}"


class ScheduleRow(Protocol):
    """The columns of a schedule that its runs are made of."""

    @property
    def name(self) -> str: ...
    @property
    def payload(self) -> str: ...
    @property
    def options(self) -> str: ...
    @property
    def graph(self) -> str | None: ...
    @property
    def recurrence(self) -> str: ...
    @property
    def jitter(self) -> int: ...


def decode_graph(text: str) -> list[TaskSpec]:
    """The tasks of a stored graph; their keys are their names in it. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=list[TaskSpec])


def encode_graph(tasks: Sequence[TaskSpec]) -> str:
    """A graph as its schedule stores it."""
    return msgspec.json.encode(tasks).decode()


def template_of(row: ScheduleRow | sa.Row[Any]) -> list[TaskSpec]:
    """The tasks of each run of the schedule. Raises msgspec.MsgspecError."""
    if row.graph is not None:
        return decode_graph(row.graph)
    spec = msgspec.json.decode(row.options, type=TaskSpec)
    spec.payload = row.payload
    return [spec]


def slot_key(name: str, slot: int) -> str:
    """The name of a fire time's run: ``name@2026-01-31T02:30:00Z``."""
    return f"{name}@{to_datetime(slot).isoformat().replace('+00:00', 'Z')}"


def specs_of_run(
    row: ScheduleRow | sa.Row[Any],
    template: Sequence[TaskSpec],
    fire: Fire,
    first: int,
    *,
    at: int | None = None,
    causation: str | None = None,
) -> list[TaskSpec]:
    """The tasks of the run of a fire time. ``first``: the position of the run's first task in its batch.

    ``at``: due at this instant, instead of at the fire time and the schedule's jitter.
    """
    run = slot_key(row.name, fire.slot)
    common = {
        "run_at": fire.slot + jitter_of(row.name, fire.slot, row.jitter) if at is None else at,
        "conflict": "keep",
        "schedule": row.name,
        "slot": fire.slot,
        "slot_tz": Recurrence.from_json(row.recurrence).tz or None,
        "missed": None if fire.missed is None else min(fire.missed, MAX_COUNT),
        "missed_since": fire.missed_since,
    }
    if causation is not None:
        common["causation"] = causation
    if row.graph is None:
        return [msgspec.structs.replace(template[0], delay=0, key=run, **common)]
    return _graph(template, run, first, common)


def specs_by_hand(row: ScheduleRow | sa.Row[Any], template: Sequence[TaskSpec]) -> list[TaskSpec]:
    """The tasks of a run that belongs to no fire time, due at once."""
    if row.graph is None:
        return [msgspec.structs.replace(template[0], key=None, run_at=0, delay=0, schedule=row.name)]
    run = f"{row.name}+{secrets.token_hex(6)}"
    return _graph(template, run, 0, {"run_at": 0, "conflict": "keep", "schedule": row.name})


def _graph(template: Sequence[TaskSpec], run: str, first: int, common: dict[str, Any]) -> list[TaskSpec]:
    return [
        msgspec.structs.replace(
            spec,
            key=f"{run}/{spec.key}",
            correlation=run,
            edges=[EdgeSpec(first + edge.parent, edge.when, edge.otherwise, local=True) for edge in spec.edges],
            **common,
        )
        for spec in template
    ]


def have_run(tx: Tx, slots: list[tuple[str, int]]) -> set[tuple[str, int]]:
    """Fire times (schedule, time) that have tasks already, whatever became of them, or whose tasks retention has
    removed: neither a trigger before the time nor a clock that jumps back makes them run again."""
    if not slots:
        return set()
    stored, removed = (
        exists("t.slot", f"FROM {table} t WHERE {_OF_SLOT}") for table in ("schedd_tasks", "schedd_outcomes")
    )
    rows = tx.run(
        f"SELECT j.name, j.slot FROM {tx.dialect.rows({'name': str, 'slot': int})} j WHERE {stored} OR {removed}",
        rows=bind_rows(slots),
    )
    return {(row[0], row[1]) for row in rows}


class _LastRun(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def last_task(self) -> int | None: ...
    @property
    def last_slot(self) -> int | None: ...


def still_going(tx: Tx, rows: Collection[_LastRun | sa.Row[Any]]) -> set[str]:
    """The names of those schedules whose last run has a task that has not ended."""
    asked = [(row.name, row.last_task, row.last_slot or 0) for row in rows if row.last_task is not None]
    if not asked:
        return set()
    found = tx.run(
        f"SELECT j.name FROM {tx.dialect.rows({'name': str, 'task': int, 'slot': int})} j WHERE "
        f"EXISTS (SELECT 1 FROM schedd_tasks t WHERE t.id = j.task AND t.state < {FIRST_TERMINAL}) OR "
        + exists(
            "t.slot",
            f"FROM schedd_tasks t WHERE {_OF_SLOT} AND t.state < {FIRST_TERMINAL}",
        ),
        rows=bind_rows(asked),
    )
    return {row[0] for row in found}


def last_ends(tx: Tx, rows: Collection[_LastRun | sa.Row[Any]]) -> dict[str, int]:
    """When the last runs of these schedules ended, by name: the latest end of their tasks, in microseconds."""
    asked = [(row.name, row.last_slot) for row in rows if row.last_slot is not None]
    if not asked:
        return {}
    found = tx.run(
        f"SELECT j.name, (SELECT max(t.finished_at) FROM schedd_tasks t WHERE {_OF_SLOT}) AS ended "
        f"FROM {tx.dialect.rows({'name': str, 'slot': int})} j",
        rows=bind_rows(asked),
    )
    return {row.name: row.ended for row in found if row.ended is not None}

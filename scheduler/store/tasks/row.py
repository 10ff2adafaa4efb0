"""The row of a new task, and the state that its edges give it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import UnknownDependencyError
from scheduler.model.lanes import placed_lane
from scheduler.model.policy import first_look
from scheduler.model.spec import EdgeSpec, TaskSpec
from scheduler.model.state import (
    SCHEDULED,
    WAITING,
    EdgeVerdict,
    Otherwise,
    TaskState,
    When,
    edge_verdict,
    satisfied_mask,
)
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.graph.parents import broken_text, removed_text
from scheduler.store.tasks.attempts import INLINE
from scheduler.store.tasks.claim import HAS_PARENTS, RARE

_DECIDED: dict[str, type] = {  # columns whose values are decided here
    "state": int,
    "run_at": int,
    "unmet": int,
    "dead_letter": int,
    "created_at": int,
    "finished_at": int,
    "payload": str,
    "extras": int,
    "held_key": str,
    "error": str,
    "error_class": str,
    "ended_by": int,
    "expires_at": int,
    "check_at": int,
    "lane": str,  # with its executor's mark
}
# No columns: they decide.
_NOT_STORED = ("delay", "conflict", "unique_states", "debounce", "edges", "parent_names")
# Columns with a caller's values as they are.
_GIVEN: dict[str, type] = {
    name: str if annotation.startswith("str") else int
    for name, annotation in TaskSpec.__annotations__.items()
    if name not in _DECIDED and name not in _NOT_STORED
}
_given_of = attrgetter(*_GIVEN)
NEW = (*_DECIDED, *_GIVEN)
COLUMNS: dict[str, type] = {"id": int, **_DECIDED, **_GIVEN}
EDGE_COLUMNS: dict[str, type] = {"parent": int, "child": int, "on_end": int, "otherwise": int, "ok": int}
_CODES = {
    when: {other: (on_end, otherwise, satisfied_mask(when, other)) for otherwise, other in enumerate(Otherwise)}
    for on_end, when in enumerate(When)
}
_RARE = tuple(name for name in RARE if name in TaskSpec.__struct_fields__)
_rare_of = attrgetter(*_RARE)
_NOTHING_RARE = (None,) * len(_RARE)
# Of a task without edges, whose caller has set only what it is to do, and when and where.
_USUAL_DECIDED = ("state", "run_at", "unmet", "dead_letter", "created_at", "payload", "extras", "lane")
_USUAL_OF_SPEC = tuple(f.name for f in msgspec.structs.fields(TaskSpec) if f.name in _GIVEN and f.default is not None)
_usual_given_of = attrgetter(*_USUAL_OF_SPEC)
USUAL_GIVEN = tuple(name in {*_USUAL_DECIDED, *_USUAL_OF_SPEC} for name in NEW)
_UNUSUAL = tuple(field.name for field in msgspec.structs.fields(TaskSpec) if field.default is None)
_unusual_of = attrgetter(*_UNUSUAL)
_NOTHING_UNUSUAL = (None,) * len(_UNUSUAL)


class TaskEnd(NamedTuple):
    """The end of a task in the transaction that stores it: an edge was broken already."""

    state: TaskState
    error: str
    parent: int


class Placed(NamedTuple):
    """The effect of a task's edges: how many are open, and its end if they end it at once."""

    unmet: int = 0
    end: TaskEnd | None = None

    @property
    def state(self) -> int:
        if self.end is not None:
            return self.end.state.code
        return WAITING if self.unmet else SCHEDULED


class Parents:
    """The parents' ends, None while they live; ``removed``: parents whose row is gone."""

    def __init__(self) -> None:
        self.ends: dict[int, TaskState | None] = {}
        self.removed: set[int] = set()

    def place(self, edges: Iterable[EdgeSpec]) -> Placed:
        """Judge a new task's edges. The first that fails it is named, else the first that skips it."""
        unmet = 0
        broken: dict[EdgeVerdict, TaskEnd] = {}
        ends = self.ends
        for edge in edges:
            state = ends.get(edge.parent)
            if state is None:
                unmet += 1
                continue
            verdict = edge_verdict(state, edge.when, edge.otherwise)
            if verdict is EdgeVerdict.WAIT and edge.parent not in self.removed:
                unmet += 1
            elif verdict is EdgeVerdict.WAIT:
                broken.setdefault(EdgeVerdict.FAIL, TaskEnd(TaskState.FAILED, removed_text(edge.parent), edge.parent))
            elif verdict in (EdgeVerdict.FAIL, EdgeVerdict.SKIP):
                ended = TaskState.FAILED if verdict is EdgeVerdict.FAIL else TaskState.SKIPPED
                broken.setdefault(verdict, TaskEnd(ended, broken_text([(edge.parent, state)], ended), edge.parent))
        return Placed(unmet, broken.get(EdgeVerdict.FAIL) or broken.get(EdgeVerdict.SKIP))


def read_parents(tx: Tx, ids: Sequence[int], *, known: bool = False) -> Parents:
    """How each of these tasks ended, if it has; holds the rows as they are until the transaction ends.

    An engine that wants to finish one of them passes it over until then, so a parent cannot end unseen between this
    read and the commit of the edge. Raises UnknownDependencyError for an id that never was; ``known``: they were there
    once, so an id without a record was removed, and counts as failed.
    """
    found = Parents()
    for task_id, code in tx.rows(
        f"SELECT t.id, t.state FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()} ORDER BY t.id {tx.dialect.share}",
        ids=bind_rows(ids),
    ):
        state = TaskState.from_code(code)
        found.ends[task_id] = state if state.terminal else None
    gone = [i for i in ids if i not in found.ends]
    if gone:
        for task_id, code in tx.rows(
            f"SELECT task_id, state FROM schedd_outcomes WHERE task_id IN {tx.dialect.ids()}", ids=bind_rows(gone)
        ):
            found.ends[task_id] = TaskState.from_code(code)
        unknown = [i for i in gone if i not in found.ends]
        if unknown and not known:
            raise UnknownDependencyError(unknown)
        found.ends |= dict.fromkeys(unknown, TaskState.FAILED)
        found.removed.update(gone)
    return found


def values_of(spec: TaskSpec, now: int, placed: Placed, made: int | None = None) -> tuple[Any, ...]:
    """The values of :data:`NEW`. ``made``: when it was asked for, if not now."""
    unmet, end = placed
    made = now if made is None else made
    run_at = now + spec.delay
    if spec.run_at > run_at:
        run_at = spec.run_at
    expires_at = look_at = None
    if spec.max_duration is not None or spec.max_delay is not None:
        expires_at = None if spec.max_duration is None else made + spec.max_duration
        look_at = None if end else first_look(now, run_at, expires_at, spec.max_delay)
    return (
        placed.state if unmet or end else SCHEDULED,
        run_at,
        unmet,
        int(spec.dead_letter),
        made,  # created_at
        now if end else None,  # finished_at
        spec.payload if len(spec.payload) <= INLINE else None,
        int(_rare_of(spec) != _NOTHING_RARE) | (HAS_PARENTS if spec.edges else 0),  # extras
        spec.key if end is None else None,  # held_key
        end.error if end else None,
        "DependencyFailed" if end else None,
        end.parent if end else None,
        expires_at,
        look_at,  # check_at
        spec.lane if spec.executor is None else placed_lane(spec.executor, spec.lane),
        *_given_of(spec),
    )


def usual_values_of(spec: TaskSpec, now: int) -> list[Any] | None:
    """Of :func:`values_of` a task without edges those that are not None, in a fourth of the time; None if they are
    others than ``USUAL_GIVEN`` says."""
    if _unusual_of(spec) != _NOTHING_UNUSUAL or spec.max_attempts is None or len(spec.payload) > INLINE:
        return None
    return [
        SCHEDULED,
        max(now + spec.delay, spec.run_at),
        0,  # unmet
        int(spec.dead_letter),
        now,  # created_at
        spec.payload,
        0,  # extras
        spec.lane,
        *_usual_given_of(spec),
    ]


def row_of(spec: TaskSpec, now: int, placed: Placed, made: int | None = None) -> dict[str, Any]:
    """:func:`values_of` by their names."""
    return dict(zip(NEW, values_of(spec, now, placed, made), strict=True))


def edge_row(edge: EdgeSpec, child: int) -> tuple[int, int, int, int, int]:
    """An edge as :func:`insert_edges` takes it."""
    return edge.parent, child, *_CODES[edge.when][edge.otherwise]


def insert_edges(tx: Tx, edges: Sequence[tuple[int, int, int, int, int]]) -> None:
    """Store edges: rows (parent, child, when, otherwise, ok). One that is there already stays as it is."""
    names = ", ".join(EDGE_COLUMNS)
    source = tx.dialect.rows(EDGE_COLUMNS)
    tx.rows(
        f"INSERT INTO schedd_edges ({names}) SELECT {names} FROM {source} j WHERE true "
        "ON CONFLICT (parent, child) DO NOTHING",
        rows=bind_rows(edges),
    )


def insert_values(tx: Tx, rows: Sequence[tuple[int, str, str]]) -> None:
    """Store side values of new tasks: rows (task id, name, value)."""
    source = tx.dialect.rows({"task_id": int, "name": str, "value": str})
    tx.rows(
        f"INSERT INTO schedd_task_values (task_id, name, value) SELECT task_id, name, value FROM {source} j",
        rows=bind_rows(rows),
    )

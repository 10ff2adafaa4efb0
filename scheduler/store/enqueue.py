"""Storing new tasks with their edges, in the caller's transaction or ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from scheduler.errors import ConfigError, DuplicateKeyError, UnknownDependencyError
from scheduler.model import state as st
from scheduler.model.graph import batch_order
from scheduler.model.policy import first_look
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.state import Otherwise, TaskState, Verdict, When, judge, satisfied_mask
from scheduler.store.claim import RARE
from scheduler.store.dialect import Dialect, bind_rows, dialect_of, prepared

INLINE = 1024  # longer values go to schedd_task_values, so that claim and finish do not rewrite them
_WHENS = {when: code for code, when in enumerate(st.When)}
_OTHERWISES = {otherwise: code for code, otherwise in enumerate(st.Otherwise)}

_COLUMNS: dict[str, type] = {
    "id": int,
    "state": int,
    "queue": str,
    "lane": str,
    "pool": int,
    "run_at": int,
    "kind": str,
    "unmet": int,
    "max_attempts": int,
    "retry": str,
    "timeout": int,
    "dead_letter": int,
    "created_at": int,
    "finished_at": int,
    "payload": str,
    "extras": int,
    "payload_ref": str,
    "schema_version": int,
    "message_type": str,
    "correlation": str,
    "causation": str,
    "subject": str,
    "sequence": int,
    "headers": str,
    "key": str,
    "held_key": str,
    "key_retention": int,
    "schedule": str,
    "slot": int,
    "missed": int,
    "missed_since": int,
    "result_ttl": int,
    "error": str,
    "error_class": str,
    "ended_by": int,
    "max_duration": int,
    "max_delay": int,
    "expires_at": int,
    "check_at": int,
}
_RARE = tuple(name for name in RARE if name in TaskSpec.__struct_fields__)
_NAMES = ", ".join(_COLUMNS)
_ONE_NAMES = ", ".join(n for n in _COLUMNS if n != "id")
_ONE = f"INSERT INTO schedd_tasks ({_ONE_NAMES}) VALUES ({', '.join(f':{n}' for n in _COLUMNS if n != 'id')})"
_KEYED = (
    f"INSERT INTO schedd_tasks ({_NAMES}) VALUES ({', '.join(f':{n}' for n in _COLUMNS)}) "
    "ON CONFLICT (kind, held_key) WHERE held_key IS NOT NULL DO NOTHING RETURNING id"
)
_EDGE_COLUMNS: dict[str, type] = {"parent": int, "child": int, "on_end": int, "otherwise": int, "ok": int}


class _End:
    """How a task ended in the very transaction that stores it: an edge was broken already."""

    __slots__ = ("error", "parent", "state")

    def __init__(self, state: TaskState, error: str, parent: int) -> None:
        self.state = state
        self.error = error
        self.parent = parent


def enqueue(connection: sa.Connection, specs: Sequence[TaskSpec], now: int, *, ours: bool) -> list[TaskId]:
    """Store the tasks in order; all or none, as the transaction ends.

    ``ours``: the transaction was begun by the store and so holds SQLite's write lock already. Raises CycleError,
    DuplicateKeyError, UnknownDependencyError.
    """
    dialect = dialect_of(connection)
    if not ours and dialect.name == "sqlite":
        # The parents must be read under the write lock, or one could finish between the reading and the commit.
        connection.execute(prepared("UPDATE schedd_tasks SET state = state WHERE id = -1"))
    if len(specs) == 1 and not specs[0].edges and specs[0].key is None:
        return [_insert_one(connection, specs[0], now)]
    return _Batch(connection, dialect, specs, now).store()


def callers_connection(given: Any) -> sa.Connection:
    """The Connection behind what a caller passed as ``connection=``. Raises ConfigError."""
    if isinstance(given, Session):
        given.flush()
        given = given.connection()
    if not isinstance(given, sa.Connection):
        raise ConfigError(f"connection= takes a SQLAlchemy Connection or Session, not {type(given).__name__}")
    if given.dialect.name not in ("sqlite", "postgresql"):
        raise ConfigError(f"connection= is to {given.dialect.name}; schedd lives in SQLite or PostgreSQL")
    return given


def _insert_one(connection: sa.Connection, spec: TaskSpec, now: int) -> TaskId:
    values = _row(spec, now)
    task_id = connection.execute(prepared(_ONE + " RETURNING id"), values).scalar_one()
    if values["payload"] is None:
        _insert_values(connection, [(task_id, "payload", spec.payload)])
    return TaskId(task_id)


def _row(spec: TaskSpec, now: int, unmet: int = 0, end: _End | None = None) -> dict[str, Any]:
    if end is not None:
        state = end.state.code
    else:
        state = st.WAITING if unmet else st.SCHEDULED
    run_at = max(spec.run_at, now + spec.delay)
    expires_at = None if spec.max_duration is None else now + spec.max_duration
    return {
        "state": state,
        "queue": spec.queue,
        "lane": spec.lane,
        "pool": spec.pool,
        "run_at": run_at,
        "kind": spec.kind,
        "unmet": unmet,
        "max_attempts": spec.max_attempts,
        "retry": spec.retry,
        "timeout": spec.timeout,
        "dead_letter": int(spec.dead_letter),
        "created_at": now,
        "finished_at": now if end else None,
        "payload": spec.payload if len(spec.payload) <= INLINE else None,
        "extras": int(any(getattr(spec, name) is not None for name in _RARE)),
        "payload_ref": spec.payload_ref,
        "schema_version": spec.schema_version,
        "message_type": spec.message_type,
        "correlation": spec.correlation,
        "causation": spec.causation,
        "subject": spec.subject,
        "sequence": spec.sequence,
        "headers": spec.headers,
        "key": spec.key,
        "held_key": spec.key if end is None else None,
        "key_retention": spec.key_retention,
        "schedule": spec.schedule,
        "slot": spec.slot,
        "missed": spec.missed,
        "missed_since": spec.missed_since,
        "result_ttl": spec.result_ttl,
        "error": end.error if end else None,
        "error_class": "DependencyFailed" if end else None,
        "ended_by": end.parent if end else None,
        "max_duration": spec.max_duration,
        "max_delay": spec.max_delay,
        "expires_at": expires_at,
        "check_at": None if end else first_look(now, run_at, expires_at, spec.max_delay),
    }


def _insert_values(connection: sa.Connection, rows: Sequence[tuple[int, str, str]]) -> None:
    source = dialect_of(connection).rows({"task_id": int, "name": str, "value": str})
    connection.execute(
        prepared(f"INSERT INTO schedd_task_values (task_id, name, value) SELECT task_id, name, value FROM {source} j"),
        {"rows": bind_rows(rows)},
    )


class _Batch:
    """One call of :func:`enqueue` with edges, keys or many tasks."""

    def __init__(self, connection: sa.Connection, dialect: Dialect, specs: Sequence[TaskSpec], now: int) -> None:
        self.connection = connection
        self.dialect = dialect
        self.specs = specs
        self.now = now
        self.ids: list[TaskId] = [TaskId(0)] * len(specs)
        self.ends: dict[int, TaskState | None] = {}  # task id -> its terminal state, None while it lives
        self.rows: list[list[Any]] = []
        self.values: list[tuple[int, str, str]] = []
        self.edges: list[tuple[int, int, int, int, int]] = []

    def store(self) -> list[TaskId]:
        parents = [[e.parent for e in spec.edges if e.local] for spec in self.specs]
        order = batch_order(parents, [f"{spec.kind}#{i}" for i, spec in enumerate(self.specs)])
        # Parents are held before ids are drawn and keys taken: the order of locks is the same for everybody.
        self._read_parents()
        reserved = self.dialect.reserve_ids(self.connection, len(self.specs))
        for position in self._by_key(order):
            self._place(position, reserved[position])
        self._flush()
        return self.ids

    def _by_key(self, order: Sequence[int]) -> list[int]:
        """Keyed tasks first, by key, where no parent in the batch has to come before: so that two batches that take
        the same keys do not wait for each other."""
        first = [i for i, s in enumerate(self.specs) if s.key is not None and not any(e.local for e in s.edges)]
        first.sort(key=lambda i: (self.specs[i].kind, self.specs[i].key or "", i))
        taken = set(first)
        return first + [i for i in order if i not in taken]

    def _read_parents(self) -> None:
        wanted = sorted({e.parent for spec in self.specs for e in spec.edges if not e.local})
        if not wanted:
            return
        self.ends.update(read_parents(self.connection, self.dialect, wanted))

    def _place(self, position: int, new_id: int) -> None:
        spec = self.specs[position]
        unmet, end = 0, None
        edges: list[tuple[int, int, int, int, int]] = []
        named: dict[int, tuple[When, Otherwise]] = {}
        for edge in spec.edges:
            parent = int(self.ids[edge.parent]) if edge.local else edge.parent
            conditions = edge.when, edge.otherwise
            if named.setdefault(parent, conditions) != conditions:
                raise ConfigError(f"depend_on names task {parent} twice (by its key) with different conditions")
            if len(named) == len(edges):
                continue  # the same task again, by another builder with its key
            state = self.ends.get(parent)
            verdict = None if state is None else judge(state, edge.when, edge.otherwise)
            if verdict is None or verdict is Verdict.WAIT:
                unmet += 1
            elif verdict is not Verdict.SATISFIED and (end is None or verdict is Verdict.FAIL):
                assert state is not None
                ended = TaskState.FAILED if verdict is Verdict.FAIL else TaskState.SKIPPED
                end = _End(ended, broken_text([(parent, state)], ended), parent)
            edges.append(
                (
                    parent,
                    new_id,
                    _WHENS[edge.when],
                    _OTHERWISES[edge.otherwise],
                    satisfied_mask(edge.when, edge.otherwise),
                )
            )
        row = _row(spec, self.now, unmet, end) | {"id": new_id}
        if spec.key is not None:
            holder = self._insert_keyed(spec, row)
            if holder is not None:
                self.ids[position] = TaskId(holder[0], created=False)
                self.ends[holder[0]] = holder[1]
                return
        if spec.key is None or end is not None:
            self.rows.append([row[name] for name in _COLUMNS])
        if row["payload"] is None:
            self.values.append((new_id, "payload", spec.payload))
        self.ids[position] = TaskId(new_id)
        self.ends[new_id] = end.state if end else None
        self.edges += edges

    def _insert_keyed(self, spec: TaskSpec, row: dict[str, Any]) -> tuple[int, TaskState | None] | None:
        """Insert under the key, or return (id, end) of the task that holds it.

        A task that its edges ended takes no key, and is left for the caller to insert if nobody holds it.
        """
        assert spec.key is not None
        held = {"kind": spec.kind, "key": spec.key, "now": self.now}
        # A success that is retained no longer gives its key up here, in the transaction that takes it.
        self.connection.execute(
            prepared(
                "UPDATE schedd_tasks SET held_key = NULL WHERE kind = :kind AND held_key = :key "
                f"AND state = {st.SUCCESS} AND key_until <= :now"
            ),
            held,
        )
        takes = row["held_key"] is not None
        # Others of this batch may depend on the holder: it must not end unseen, as in read_parents.
        share = self.dialect.share if len(self.specs) > 1 else ""
        look = f"SELECT t.id, t.state FROM schedd_tasks t WHERE t.kind = :kind AND t.held_key = :key {share}"
        while True:
            if takes and self.connection.execute(prepared(_KEYED), row).first() is not None:
                return None
            found = self.connection.execute(prepared(look), held).first()
            if found is not None:
                break
            if not takes:
                return None
            # The holder ended between the two statements, each of which has its own view on PostgreSQL: once more.
        if spec.conflict == "reject":
            raise DuplicateKeyError(spec.kind, spec.key, found.id)
        state = TaskState.from_code(found.state)
        return found.id, state if state.terminal else None

    def _flush(self) -> None:
        if self.rows:
            source = self.dialect.rows(_COLUMNS)
            self.connection.execute(
                prepared(f"INSERT INTO schedd_tasks ({_NAMES}) SELECT {_NAMES} FROM {source} j"),
                {"rows": bind_rows(self.rows)},
            )
        if self.values:
            _insert_values(self.connection, self.values)
        if self.edges:
            insert_edges(self.connection, self.edges)


def insert_edges(connection: sa.Connection, edges: Sequence[tuple[int, int, int, int, int]]) -> None:
    """Rows (parent, child, when, otherwise, ok)."""
    names = ", ".join(_EDGE_COLUMNS)
    source = dialect_of(connection).rows(_EDGE_COLUMNS)
    connection.execute(
        prepared(f"INSERT INTO schedd_edges ({names}) SELECT {names} FROM {source} j"),
        {"rows": bind_rows(edges)},
    )


def read_parents(connection: sa.Connection, dialect: Dialect, ids: Sequence[int]) -> dict[int, TaskState | None]:
    """The terminal state of each id, None while it lives; holds the rows as they are until the transaction ends.

    An engine that wants to finish one of them passes it over until then, so a parent cannot end unseen between this
    read and the commit of the edge. Raises UnknownDependencyError for an id that never was.
    """
    ends: dict[int, TaskState | None] = {}
    for row in connection.execute(
        prepared(
            f"SELECT t.id, t.state FROM schedd_tasks t WHERE t.id IN {dialect.ids()} ORDER BY t.id {dialect.share}"
        ),
        {"ids": bind_rows(ids)},
    ):
        state = TaskState.from_code(row.state)
        ends[row.id] = state if state.terminal else None
    gone = [i for i in ids if i not in ends]
    if gone:
        for row in connection.execute(
            prepared(f"SELECT task_id, state FROM schedd_outcomes WHERE task_id IN {dialect.ids()}"),
            {"ids": bind_rows(gone)},
        ):
            ends[row.task_id] = TaskState.from_code(row.state)
        unknown = [i for i in gone if i not in ends]
        if unknown:
            raise UnknownDependencyError(unknown)
    return ends


def broken_text(parents: Sequence[tuple[int, TaskState]], ended: TaskState) -> str:
    """The sentence recorded on a task that its parents' ends ended."""
    named = ", ".join(f"task {parent} ended {state}" for parent, state in parents)
    return f"{'not run' if ended is TaskState.FAILED else 'skipped'}: {named}"

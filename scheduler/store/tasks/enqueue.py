"""Stores new tasks with their edges, in the caller's transaction or the store's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from itertools import compress
from operator import itemgetter
from typing import Any

import msgspec

from scheduler.errors import ConfigError, DuplicateKeyError
from scheduler.model.graph import batch_order
from scheduler.model.parent_names import with_names
from scheduler.model.spec import EdgeSpec, TaskId, TaskSpec
from scheduler.model.state import HELD, Otherwise, TaskState, When
from scheduler.store.db.database import Database
from scheduler.store.db.dialect import Dialect, bind_rows
from scheduler.store.db.django_connection import is_django, on_django
from scheduler.store.db.lazy import sa
from scheduler.store.db.statements import SQL_TYPES, Across, Notice, insert
from scheduler.store.db.tx import Tx
from scheduler.store.graph import debug_log, sizes
from scheduler.store.graph.cycles import lock_graph, refuse_cycle
from scheduler.store.graph.release import release
from scheduler.store.tasks import keys
from scheduler.store.tasks.attempts import INLINE
from scheduler.store.tasks.keys import KeyHolder
from scheduler.store.tasks.replace import debounced, defer_replacement, replace_now
from scheduler.store.tasks.row import (
    COLUMNS,
    EDGE_COLUMNS,
    NEW,
    USUAL_GIVEN,
    Parents,
    Placed,
    edge_row,
    insert_values,
    read_parents,
    row_of,
    usual_values_of,
    values_of,
)

_NAMES = ", ".join(COLUMNS)
_COLUMNS, _EDGE_COLUMNS = tuple(COLUMNS.items()), tuple(EDGE_COLUMNS.items())
_UNLESS_HELD = "ON CONFLICT (kind, held_key) WHERE held_key IS NOT NULL DO NOTHING RETURNING id"
_KEYED = f"INSERT INTO schedd_tasks ({_NAMES}) VALUES ({', '.join(f':{n}' for n in COLUMNS)}) {_UNLESS_HELD}"
_PLACED = Placed()
_created: Callable[[int], TaskId] = partial(int.__new__, TaskId)  # as TaskId() does, without a Python call
_CHUNK = 1024  # rows that are handed to the database at once
_PAYLOAD = NEW.index("payload")
# What a task's edges decide.
_DECIDED = ("state", "unmet", "finished_at", "held_key", "error", "error_class", "ended_by", "headers")
_decided_of = itemgetter(*(NEW.index(name) for name in _DECIDED))
_DECIDED_COLUMNS = {"id": int} | {name: COLUMNS[name] for name in _DECIDED}
_DECIDE = (
    f"UPDATE schedd_tasks SET {', '.join(f'{name} = j.{name}' for name in _DECIDED)} "
    "FROM {rows} j WHERE schedd_tasks.id = j.id"
)


def enqueue(tx: Tx, specs: Sequence[TaskSpec]) -> list[TaskId]:
    """Store the tasks in order; all or none, as the transaction ends.

    Raises CycleError, DuplicateKeyError, UnknownDependencyError.
    """
    if not specs:
        return []
    if len(specs) == 1 and _stands_alone(specs[0]):
        made = _insert_one(tx, specs[0])
        debug_log.scheduled(made, specs[0].kind)
        return [made]
    hold_writes(tx)
    # A replaced task's cycle is found once its edges are there; callers may catch that and commit the rest.
    undone = not tx.ours and any(spec.conflict == "replace" for spec in specs)
    with tx.connection.begin_nested() if undone else nullcontext():
        ids = _Batch(tx, specs).store()
    if debug_log.wanted():
        debug_log.stored(tx, ids)
    return ids


def _stands_alone(spec: TaskSpec) -> bool:
    """Whether it can be stored without reading or locking anything first."""
    return not spec.edges and spec.key is None


def is_one_row(spec: TaskSpec) -> bool:
    """Whether to store it is one statement."""
    return _stands_alone(spec) and len(spec.payload) <= INLINE


def insert_alone(database: Database, spec: TaskSpec) -> TaskId:
    """SQLite: store a task that is one row."""

    def row() -> tuple[str, list[Any]]:
        given, values = given_of(spec, database.now())
        return _listed_insert_of(given, "?"), values

    made = _created(database.insert_alone(row))
    debug_log.scheduled(made, spec.kind)
    return made


def enqueue_alone(database: Database, spec: TaskSpec, notice: Notice | None) -> TaskId:
    """PostgreSQL: store a task that is one row, and notify once it is committed, in one round trip."""
    now = 0

    def row() -> tuple[str, list[Any]]:
        nonlocal now
        now = database.now()
        given, values = given_of(spec, now)
        return _listed_insert_of(given, "$"), values

    made = database.insert_on_server(row, notice)
    assert made is not None
    debug_log.scheduled(made, spec.kind)
    return _created(made).at(now)


def hold_writes(tx: Tx) -> None:
    """Take SQLite's write lock in a caller's transaction: what is read from here on stays so until it commits."""
    if not tx.ours and tx.dialect.name == "sqlite":
        tx.rows("UPDATE schedd_tasks SET state = state WHERE id = -1")


@contextmanager
def callers_connection(given: Any, *, reads: bool = False) -> Iterator[sa.Connection]:
    """The Connection behind what a caller passed as ``connection=``. ``reads``: only. Raises ConfigError."""
    if is_django(given):
        with on_django(given, reads=reads) as theirs:
            yield theirs
        return
    if not isinstance(given, sa.Connection):
        from sqlalchemy.orm import Session, scoped_session  # slow, and only a program that has a Session needs it

        if isinstance(given, scoped_session):  # such as Flask-SQLAlchemy's db.session
            given = given()
        if isinstance(given, Session):
            given.flush()
            given = given.connection()
    if not isinstance(given, sa.Connection):
        hint = "; schedule_async() and `async with` take that one" if hasattr(given, "run_sync") else ""
        raise ConfigError(
            f"connection= takes a SQLAlchemy Connection or Session, or Django's connection, not "
            f"{type(given).__name__}{hint}"
        )
    if given.dialect.name not in ("sqlite", "postgresql"):
        raise ConfigError(f"connection= is to {given.dialect.name}; schedd lives in SQLite or PostgreSQL")
    yield given


def _insert_one(tx: Tx, spec: TaskSpec) -> TaskId:
    given, values = given_of(spec, tx.now)
    names, one = _insert_of(given)
    named = dict(zip(names, values, strict=True))
    ((task_id,),) = tx.rows(one, **named)
    if "payload" not in named:
        insert_values(tx, [(task_id, "payload", spec.payload)])
    made = TaskId(task_id)
    return made.at(tx.now) if tx.dialect.name == "postgresql" else made


def given_of(spec: TaskSpec, now: int) -> tuple[tuple[bool, ...], list[Any]]:
    """Which columns of :data:`NEW` have a value, and these values.

    Binding a NULL is slow in SQLite's driver: it searches for an adapter.
    """
    usual = usual_values_of(spec, now)
    if usual is not None:
        return USUAL_GIVEN, usual
    values = values_of(spec, now, _PLACED)
    return tuple([value is not None for value in values]), [value for value in values if value is not None]


@lru_cache(maxsize=64)
def _insert_of(given: tuple[bool, ...]) -> tuple[tuple[str, ...], str]:
    """The columns' names, and the statement that takes their values by these."""
    names = tuple(compress(NEW, given))
    marks = ", ".join(f":{name}" for name in names)
    return names, f"INSERT INTO schedd_tasks ({', '.join(names)}) VALUES ({marks}) RETURNING id"


@lru_cache(maxsize=64)
def _listed_insert_of(given: tuple[bool, ...], mark: str) -> str:
    """The same for values in their order: SQLite's driver (``?``) knows the new id without RETURNING."""
    names = list(compress(NEW, given))
    into = f"INSERT INTO schedd_tasks ({', '.join(names)}) VALUES"
    if mark == "?":
        return f"{into} ({', '.join('?' * len(names))})"
    return f"{into} ({', '.join(f'${i + 1}' for i in range(len(names)))}) RETURNING id"


@lru_cache(maxsize=64)
def _keyed_insert(dialect: Dialect, varying: tuple[str, ...], constant: tuple[str, ...]) -> str:
    """:data:`_KEYED` for many rows. The ``constant`` columns hold the same value in all of them."""
    picked = ", ".join([*varying, *(f"CAST(:{name} AS {SQL_TYPES[COLUMNS[name]]})" for name in constant)])
    return (
        f"INSERT INTO schedd_tasks ({', '.join([*varying, *constant])}) "
        f"SELECT {picked} FROM {dialect.rows({name: COLUMNS[name] for name in varying})} j WHERE true {_UNLESS_HELD}"
    )


class _Batch:
    """One call of :func:`enqueue` with edges, keys or many tasks.

    Every transaction takes its locks in one order: parents by id, then keys in theirs. So a task whose parents are in
    the batch takes its key before it is known whether it waits for them.
    """

    def __init__(self, tx: Tx, specs: Sequence[TaskSpec]) -> None:
        self.tx = tx
        self.specs = specs
        self.ids: list[TaskId] = [TaskId(0)] * len(specs)
        self.parents = Parents()
        self.holders: dict[int, KeyHolder] = {}  # position -> the task that holds its key
        self.keyed: set[int] = set()  # positions that were stored as they took their key
        self.again: set[int] = set()  # ids that another position of the batch gives another set
        self.reserved: dict[int, int] = {}
        self.rows: list[Any] = []  # one row's values after the other's, as of the edges
        self.decided: list[list[Any]] = []
        self.values: list[tuple[int, str, str]] = []
        self.edges: list[int] = []
        self.replaced: dict[int, tuple[KeyHolder, TaskSpec, Placed]] = {}  # by id: of several sets only the last counts

    def store(self) -> list[TaskId]:
        if all(map(_stands_alone, self.specs)):
            new = self.tx.dialect.reserve_ids(self.tx, len(self.specs))
            self.ids = (
                [self._made(new_id) for new_id in new]
                if self.tx.dialect.name == "postgresql"
                else list(map(_created, new))
            )
            self._flush(self._rows_alone(new))
            return self.ids
        local = [[e.parent for e in spec.edges if e.local] for spec in self.specs]
        order = batch_order(local, lambda i: f"{self.specs[i].kind}#{i}")
        if any(spec.conflict == "replace" for spec in self.specs) and any(spec.edges for spec in self.specs):
            lock_graph(self.tx)
        wanted = sorted({e.parent for spec in self.specs for e in spec.edges if not e.local})
        if wanted:
            self.parents = read_parents(self.tx, wanted)
        sizes.mark(self.tx, self.specs)
        self._reserve_ids()
        keyed = [
            (spec.kind, spec.key, rank, i) for rank, i in enumerate(order) if (spec := self.specs[i]).key is not None
        ]
        for position in self._take_free_keys([position for *_, position in sorted(keyed)]):
            self._take_key(position)
        self.again = {holder.id for i, holder in self.holders.items() if self.specs[i].conflict == "replace"}
        # One with a key may ask for an id when it is placed, which is not possible while rows are sent.
        self._flush(list(self._rows_placed(order)) if keyed else self._rows_placed(order))
        for holder, spec, placed in self.replaced.values():
            self._replace(holder, spec, placed)
        for holder, spec, _ in self.replaced.values():
            if spec.edges:
                refuse_cycle(self.tx, holder.id, [edge.parent for edge in spec.edges])
        # Once all edges to those that end at once are there, those of other new sets, too.
        ended = [(i, p.end.state) for i, (h, _, p) in self.replaced.items() if p.end and h.state not in HELD]
        if ended:
            release(self.tx, ended)
        return self.ids

    def _made(self, new_id: int) -> TaskId:
        """The id of one without a key: what has a key may be replaced, and its time with it."""
        made = _created(new_id)
        return made.at(self.tx.now) if self.tx.dialect.name == "postgresql" else made

    def _rows_alone(self, new: Sequence[int]) -> Iterator[list[Any]]:
        for at in range(0, len(self.specs), _CHUNK):
            for new_id, spec in zip(new[at : at + _CHUNK], self.specs[at : at + _CHUNK], strict=True):
                self._add(new_id, spec, values_of(spec, self.tx.now, _PLACED))
            yield self.rows
            self.rows = []

    def _rows_placed(self, order: Sequence[int]) -> Iterator[list[Any]]:
        for at in range(0, len(order), _CHUNK):
            for position in order[at : at + _CHUNK]:
                self._place(position)
            if self.rows:
                yield self.rows
                self.rows = []

    def _reserve_ids(self) -> None:
        """Ids for those that will be new, in creation order; a lone key is looked for first, and draws its own."""
        new: list[int] = []
        held: dict[tuple[str, str], TaskState] = {}
        asked = {(spec.kind, spec.key) for spec in self.specs if spec.key is not None}
        if asked:
            if len(self.specs) == 1:
                return
            held = keys.holders(self.tx, asked)
        seen: set[tuple[str, str]] = set()
        for i, spec in enumerate(self.specs):
            if spec.key is not None:
                name = spec.kind, spec.key
                state = held.get(name)
                if name in seen or (state is not None and not (state.terminal and spec.conflict == "replace")):
                    continue
                seen.add(name)
            new.append(i)
        if new:
            self.reserved = dict(zip(new, self.tx.dialect.reserve_ids(self.tx, len(new)), strict=True))

    def _new_id(self, position: int) -> int:
        reserved = self.reserved.pop(position, None)
        return self.tx.dialect.reserve_ids(self.tx, 1)[0] if reserved is None else reserved

    def _take_free_keys(self, positions: Sequence[int]) -> Sequence[int]:
        """Store the tasks under their keys, by one statement, if no key had a holder and no task has edges.

        Returns the positions that are still to take their keys, in the same order.
        """
        if len(positions) < 2 or any(i not in self.reserved or self.specs[i].edges for i in positions):
            return positions
        for at in range(0, len(positions), _CHUNK):
            flat: list[Any] = []
            for i in positions[at : at + _CHUNK]:
                flat.append(self.reserved[i])
                flat += values_of(self.specs[i], self.tx.now, _PLACED)
            across = Across(_COLUMNS, flat)
            stored = self.tx.rows(
                _keyed_insert(self.tx.dialect, tuple(across.varying), tuple(across.constant)),
                **across.constant,
                rows=bind_rows(list(zip(*across.varying.values(), strict=True))),
            )
            taken = {row[0] for row in stored}
            for i in positions[at : at + _CHUNK]:
                if self.reserved[i] in taken:
                    self.ids[i] = TaskId(self.reserved.pop(i))
                    self.keyed.add(i)
        return [i for i in positions if i not in self.keyed]

    def _take_key(self, position: int) -> None:
        """Store the task under its key, or note the key's holder.

        A task whose edges are broken takes no key. Of one whose parents are in the batch that is not known yet.
        """
        spec = self.specs[position]
        assert spec.key is not None
        placed = Placed()
        self._name_parents(spec)  # not all have their ids yet; that there are headers must be known
        if not any(edge.local for edge in spec.edges):
            placed = self.parents.place(spec.edges)
        lock = self.tx.dialect.lock if spec.conflict == "replace" or spec.unique_states is not None else ""
        if not lock and len(self.specs) > 1:
            lock = (
                self.tx.dialect.share
            )  # other tasks may depend on the holder: it must not end unseen, as in read_parents
        row: dict[str, Any] | None = None
        while True:
            holder = keys.holder_of(self.tx, spec.kind, spec.key, lock)
            if holder is not None and not keys.keeps_out(holder, spec.unique_states):
                keys.release_early(self.tx, holder.id)
                holder = None
            if holder is not None:
                if spec.conflict == "reject":
                    raise DuplicateKeyError(spec.kind, spec.key, holder.id)
                if spec.conflict == "keep" or not holder.state.terminal:
                    self.holders[position] = holder
                    return
                keys.release_ended(self.tx, holder.id)
            if placed.end is not None:
                return
            if row is None:
                row = row_of(spec, self.tx.now, placed) | {"id": self._new_id(position)}
            if self.tx.rows(_KEYED, **row):
                self.ids[position] = TaskId(row["id"])
                self.keyed.add(position)
                return
            # One whose retention is over is in the way, or the holder came between two statements: each has its own
            # view on PostgreSQL.
            keys.release_expired(self.tx, spec.kind, spec.key)

    def _place(self, position: int) -> None:
        """Decide by its edges what becomes of the task; all its parents in the batch are placed."""
        spec = self.specs[position]
        holder = self.holders.get(position)
        if holder is not None:
            self.ids[position] = TaskId(holder.id, created=False)
            if spec.conflict != "replace":
                self.parents.ends.setdefault(holder.id, holder.state if holder.state.terminal else None)
                return
        edges: Sequence[EdgeSpec] = self._resolved(spec) if spec.edges else ()
        self._name_parents(spec)
        placed = self.parents.place(edges) if edges else _PLACED
        if holder is not None:
            self.replaced[holder.id] = holder, msgspec.structs.replace(spec, edges=edges), placed
            self.parents.ends[holder.id] = None  # if it ends at once, what waits for it is judged then
            return
        if position in self.keyed and self.ids[position] in self.again:
            self.parents.ends[self.ids[position]] = None  # as above; what this set says never counts
            return
        values = values_of(spec, self.tx.now, placed)
        if position not in self.keyed:
            new_id = self._new_id(position)
            self.ids[position] = TaskId(new_id) if spec.key is not None else self._made(new_id)
            self._add(new_id, spec, values)
        else:
            new_id = int(self.ids[position])
            if any(edge.local for edge in spec.edges):
                self.decided.append([new_id, *_decided_of(values)])
            if values[_PAYLOAD] is None:
                self.values.append((new_id, "payload", spec.payload))
        self.parents.ends[new_id] = placed.end.state if placed.end else None
        for edge in edges:
            self.edges += edge_row(edge, new_id)

    def _add(self, new_id: int, spec: TaskSpec, values: tuple[Any, ...]) -> None:
        self.rows.append(new_id)
        self.rows += values
        if values[_PAYLOAD] is None:
            self.values.append((new_id, "payload", spec.payload))

    def _name_parents(self, spec: TaskSpec) -> None:
        if spec.parent_names is not None:
            parents = [int(self.ids[edge.parent]) if edge.local else edge.parent for edge in spec.edges]
            names = {name: parents[at] for name, at in spec.parent_names.items()}
            spec.headers = with_names(spec.headers, names)

    def _resolved(self, spec: TaskSpec) -> list[EdgeSpec]:
        """Its edges with the ids of their parents; each parent once, whatever builders stood for it."""
        ids = self.ids
        edges = [EdgeSpec(int(ids[e.parent]) if e.local else e.parent, e.when, e.otherwise) for e in spec.edges]
        if not self.holders:
            return edges  # two builders stand for one task only where a key does
        named: dict[int, tuple[When, Otherwise]] = {}
        for edge in edges:
            parent = edge.parent
            conditions = edge.when, edge.otherwise
            if named.setdefault(parent, conditions) != conditions:
                raise ConfigError(f"depend_on names task {parent} twice (by its key) with different conditions")
        return [EdgeSpec(parent, *conditions) for parent, conditions in named.items()]

    def _flush(self, chunks: Iterable[list[Any]]) -> None:
        insert(self.tx, "schedd_tasks", _COLUMNS, chunks)
        if self.decided:
            source = self.tx.dialect.rows(_DECIDED_COLUMNS)
            self.tx.rows(_DECIDE.format(rows=source), rows=bind_rows(self.decided))
        if self.values:
            insert_values(self.tx, self.values)
        if self.edges:
            insert(self.tx, "schedd_edges", _EDGE_COLUMNS, [self.edges])

    def _replace(self, holder: KeyHolder, spec: TaskSpec, placed: Placed) -> None:
        if holder.state in HELD:
            defer_replacement(self.tx, holder.id, spec)
        else:
            spec, made = debounced(self.tx, holder, spec)
            replace_now(self.tx, holder.id, spec, placed, made=made)

"""Chooses tasks for a change of many: by kind, queue, state, envelope, fields of the payload, and age."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.state import TaskState
from scheduler.ports import SECOND
from scheduler.store.audit import ranges
from scheduler.store.db.tx import Tx
from scheduler.store.read.paging import BIGGEST, Asked, Led, as_id, first_id, led_by, page_of

_MISSING = object()
_SLACK = 600 * SECOND  # ids and creation times may be this much out of step


class Row(NamedTuple):
    """A chosen task."""

    id: int
    kind: str
    state: TaskState


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks. Each condition that is given must hold.

    ``payload``: field -> value; ``a.b`` is field b of object a. ``before`` and ``since``: stored before, or at or
    after, this instant; ``ended_before`` and ``ended_since``: ended before it, or at or after it (microseconds).
    ``correlation`` also means the task that has this id and no correlation of its own; ``message_type`` is the kind
    where none was given. ``ids``: one of these; ``up_to``: none with a higher id.
    """

    ids: tuple[int, ...] = ()
    up_to: int | None = None
    kinds: tuple[str, ...] = ()
    queue: str | None = None
    states: tuple[TaskState, ...] = ()
    key: str | None = None
    correlation: str | None = None
    subject: str | None = None
    message_type: str | None = None
    error_class: str | None = None
    fingerprint: str | None = None
    payload: Mapping[str, Any] = {}
    before: int | None = None
    since: int | None = None
    ended_before: int | None = None
    ended_since: int | None = None

    def aged(self, now: int, older_than: int | None, newer_than: int | None, *, ended: bool) -> TaskFilter:
        """With two ages: since tasks ended, for verbs on what has ended; else since they were stored."""
        before = None if older_than is None else now - older_than
        since = None if newer_than is None else now - newer_than
        if ended:
            return msgspec.structs.replace(self, ended_before=before, ended_since=since)
        return msgspec.structs.replace(self, before=before, since=since)

    @property
    def empty(self) -> bool:
        """Whether it would choose every task, but for those that come later."""
        return not self.chosen().keys() - {"up_to"}

    def chosen(self) -> dict[str, Any]:
        """What it chooses by, for the audit."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        given["kind"] = self.kinds[0] if len(self.kinds) == 1 else list(given.pop("kinds"))
        given["status"] = [state.value for state in given.pop("states")]
        given["ids"] = None if not self.ids else ranges(self.ids)
        return {name: value for name, value in given.items() if value is not None and value not in ([], {})}

    @property
    def led(self) -> Led | None:
        """The condition whose index leads to what it chooses."""
        return led_by(key=self.key, correlation=self.correlation, subject=self.subject)

    def where(self, base: str | None = None, *, led: bool = False) -> tuple[str, dict[str, Any]]:
        """The condition on ``t``, but for the payload, and what it binds. ``base``: a condition in front of it;
        ``led``: without :attr:`led`."""
        names = ("queue", "key", "subject", "error_class", "fingerprint")
        leading = self.led if led else None
        equal = {name: getattr(self, name) for name in names if leading is None or name != leading.column}
        bound: dict[str, Any] = {name: value for name, value in equal.items() if value is not None}
        parts = [*([] if base is None else [base]), *(f"t.{name} = :{name}" for name in bound)]
        if self.kinds:
            kinds = {f"kind{number}": name for number, name in enumerate(self.kinds)}
            parts.append(f"t.kind IN ({', '.join(f':{name}' for name in kinds)})")
            bound |= kinds
        if self.states:
            parts.append(f"t.state IN ({', '.join(str(state.code) for state in self.states)})")
        if self.correlation is not None and (leading is None or leading.column != "correlation"):
            parts.append("(t.correlation = :correlation OR (t.id = :own AND t.correlation IS NULL))")
            bound |= {"correlation": self.correlation, "own": as_id(self.correlation)}
        if self.message_type is not None:
            parts.append("(t.message_type = :type OR (t.message_type IS NULL AND t.kind = :type))")
            bound["type"] = self.message_type
        for name, condition in (
            ("before", "t.created_at < :before"),
            ("since", "t.created_at >= :since"),
            ("ended_before", "t.finished_at < :ended_before"),
            ("ended_since", "t.finished_at >= :ended_since"),
            ("up_to", "t.id <= :up_to"),
        ):
            if getattr(self, name) is not None:
                parts.append(condition)
                bound[name] = getattr(self, name)
        return " AND ".join(parts or ["true"]), bound

    def fits(self, payload: str | None) -> bool:
        """Whether a payload has the fields that are asked for."""
        if not self.payload:
            return True
        try:
            found = msgspec.json.decode(payload or "null")
        except (msgspec.MsgspecError, RecursionError):
            return False  # a text of the type's own, without fields
        return all(_same(_at(found, path), value) for path, value in self.payload.items())


def _at(value: Any, path: str) -> Any:
    if isinstance(value, dict) and path in value:
        return value[path]
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _same(found: Any, wanted: Any) -> bool:
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def chosen_tasks(tx: Tx, wanted: TaskFilter, below: int | None, limit: int) -> tuple[list[Row], int | None]:
    """Up to ``limit`` tasks, the newest first, with ids under ``below``; and from where to go on, None at the end.

    The newest first: a task is mostly newer than what it waits for. With conditions on the payload there may be fewer,
    or none, although there are more further down.
    """
    if wanted.ids:
        return _named_tasks(tx, wanted, below, limit)
    where, bound = wanted.where(led=True)
    if wanted.up_to is not None:
        below = min(BIGGEST if below is None else below, wanted.up_to + 1)
    if wanted.before is not None:
        below = min(BIGGEST if below is None else below, first_id(tx, wanted.before + _SLACK) + 1)
    codes = sorted({state.code for state in wanted.states}) or None
    queues = None if wanted.queue is None else [wanted.queue]
    asked = Asked([where], bound, codes, wanted.led, wanted.kinds, queues)
    page, bound = page_of(tx, asked, BIGGEST if below is None else below, limit)
    rows = _read(tx, wanted, f"JOIN ({page}) p ON p.id = t.id", bound)
    return _fitting(wanted, rows), rows[-1][0] if len(rows) == limit else None


def _named_tasks(tx: Tx, wanted: TaskFilter, below: int | None, limit: int) -> tuple[list[Row], int | None]:
    """:func:`chosen_tasks` among those whose ids the filter names."""
    ids = sorted({i for i in wanted.ids if below is None or i < below}, reverse=True)
    page = ids[:limit]
    where, bound = wanted.where(tx.dialect.among("t.id"))
    rows = _read(tx, wanted, f"WHERE {where}", bound | {"ids": tx.dialect.bind_ids(page)}) if page else []
    return _fitting(wanted, rows), page[-1] if len(ids) > limit else None


def _read(tx: Tx, wanted: TaskFilter, chosen: str, bound: dict[str, Any]) -> Sequence[Any]:
    texts, more = "NULL", ""
    if wanted.payload:
        texts = "coalesce(t.payload, v.value)"
        more = "LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'payload'"
    joined = f"{chosen} {more}" if chosen.startswith("JOIN") else f"{more} {chosen}"
    sql = f"SELECT t.id, t.kind, t.state, {texts} FROM schedd_tasks t {joined} ORDER BY t.id DESC"
    return tx.run(sql, **bound).fetchall()


def _fitting(wanted: TaskFilter, rows: Sequence[Any]) -> list[Row]:
    return [Row(row[0], row[1], TaskState.from_code(row[2])) for row in rows if wanted.fits(row[3])]


def highest_id(tx: Tx) -> int:
    """The highest id of a stored task; 0 if there is none."""
    return int(tx.run("SELECT coalesce(max(id), 0) FROM schedd_tasks").scalar_one())


def still(tx: Tx, ids: Sequence[int], states: Collection[TaskState]) -> list[int]:
    """Those of these tasks that are in one of these states now, in the order of their ids."""
    codes = ", ".join(str(state.code) for state in states)
    sql = f"SELECT t.id FROM schedd_tasks t WHERE {tx.dialect.among('t.id')} AND t.state IN ({codes}) ORDER BY t.id"
    return [row[0] for row in tx.rows(sql, ids=tx.dialect.bind_ids(ids))]

"""Chooses tasks for a change of many."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from scheduler.model.state import TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.store.db.tx import Tx
from scheduler.store.read.paging import BIGGEST, page_of
from scheduler.store.read.where import asked, codes, where


class Row(NamedTuple):
    """A chosen task."""

    id: int
    kind: str
    state: TaskState


def chosen_tasks(tx: Tx, wanted: TaskFilter, below: int | None, limit: int) -> tuple[list[Row], int | None]:
    """Up to ``limit`` tasks, the newest first, with ids under ``below``; and from where to go on, None at the end.

    The newest first: a task is mostly newer than what it waits for. With conditions on the payload there may be fewer,
    or none, although there are more further down.
    """
    if wanted.ids is not None:
        return _named_tasks(tx, wanted, below, limit)
    page, bound = page_of(tx, asked(tx, wanted), BIGGEST if below is None else below, limit)
    rows = _read(tx, wanted, f"JOIN ({page}) p ON p.id = t.id", bound)
    return _fitting(wanted, rows), rows[-1][0] if len(rows) == limit else None


def _named_tasks(tx: Tx, wanted: TaskFilter, below: int | None, limit: int) -> tuple[list[Row], int | None]:
    """:func:`chosen_tasks` among those whose ids the filter names."""
    ids = sorted((i for i in wanted.ids or () if below is None or i < below), reverse=True)
    page, states = ids[:limit], codes(wanted)
    among = [tx.dialect.among("t.id")]
    if states is not None:
        among.append(f"t.state IN ({', '.join(map(str, states)) or 'NULL'})")
    found = where(wanted)
    bound = found.bound | {"ids": tx.dialect.bind_ids(page)}
    rows = _read(tx, wanted, f"WHERE {found.sql(*among)}", bound) if page else []
    return _fitting(wanted, rows), page[-1] if len(ids) > limit else None


def _read(tx: Tx, wanted: TaskFilter, chosen: str, bound: dict[str, Any]) -> Sequence[Any]:
    texts, more = "NULL", ""
    if wanted.of("payload"):
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

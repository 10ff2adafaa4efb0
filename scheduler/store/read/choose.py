"""Chooses tasks for a change of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from scheduler.model.state import FAILED, TERMINAL, TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.store.db.tx import Tx
from scheduler.store.read.paging import BIGGEST, page_of
from scheduler.store.read.where import asked, codes, where

_UNSUCCESSFUL = TERMINAL - {TaskState.SUCCESS}
_FAILED = frozenset({TaskState.FAILED, TaskState.DEAD})
_BY_THEMSELVES = "t.ended_by IS NULL"  # a task that a parent's end ended comes back with that parent


class ChosenTask(NamedTuple):
    """A chosen task."""

    id: int
    kind: str
    state: TaskState


def chosen_tasks(tx: Tx, wanted: TaskFilter, below: int | None, limit: int) -> tuple[list[ChosenTask], int | None]:
    """Up to ``limit`` tasks, the newest first, with ids under ``below``; and from where to go on, None at the end.

    The newest first: a task is mostly newer than what it waits for. With conditions on the payload there may be fewer,
    or none, although there are more further down.
    """
    if wanted.ids is not None:
        return _named_tasks(tx, wanted, below, limit)
    page, bound = page_of(tx, asked(tx, wanted), BIGGEST if below is None else below, limit)
    rows = _read(tx, wanted, f"JOIN ({page}) p ON p.id = t.id", bound)
    return _fitting(wanted, rows), rows[-1][0] if len(rows) == limit else None


def _named_tasks(tx: Tx, wanted: TaskFilter, below: int | None, limit: int) -> tuple[list[ChosenTask], int | None]:
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


def _fitting(wanted: TaskFilter, rows: Sequence[Any]) -> list[ChosenTask]:
    return [ChosenTask(row[0], row[1], TaskState.from_code(row[2])) for row in rows if wanted.fits(row[3])]


class Ended(NamedTuple):
    """A page of ended tasks; ``last``: where the next one begins; ``more``: whether there may be one."""

    rows: list[ChosenTask]
    last: tuple[int, int]
    more: bool


def ended_tasks(tx: Tx, wanted: TaskFilter, limit: int, after: tuple[int, int] = (0, 0)) -> Ended:
    """The next ``limit`` chosen tasks that ended without success behind ``after`` (ended at, id), in that order; or
    fewer: conditions on the payload come last.

    Tasks that failed or died by themselves, if the filter names no states.
    """
    found, states = where(wanted), wanted.states
    bound, base = found.bound, [_BY_THEMSELVES] if states is None else []
    codes = sorted(state.code for state in (_FAILED if states is None else states & _UNSUCCESSFUL))
    if not codes:
        return Ended([], after, False)
    if (ids := wanted.ids) is not None:
        base.append(tx.dialect.among("t.id"))
        bound["ids"] = tx.dialect.bind_ids(sorted(ids))
    text = "NULL"
    if wanted.of("payload"):
        text = "(SELECT v.value FROM schedd_task_values v WHERE v.task_id = t.id AND v.name = 'payload')"
        text = f"coalesce(t.payload, {text})"
    # Each state from where its index has the end of the last page: of all together each page would sort the rest.
    pages = " UNION ALL ".join(
        f"SELECT p{code}.id FROM (SELECT t.id, t.finished_at FROM schedd_tasks t WHERE t.state >= {FAILED} "
        f"AND t.state = {code} AND {found.sql(*base)} AND t.finished_at >= :at AND (t.finished_at > :at OR t.id > :id) "
        f"ORDER BY t.finished_at, t.id LIMIT :limit) p{code}"
        for code in codes
    )
    rows = tx.run(
        f"SELECT t.id, t.finished_at, t.kind, t.state, {text} FROM ({pages}) f JOIN schedd_tasks t ON t.id = f.id "
        f"WHERE t.state >= {FAILED} ORDER BY t.finished_at, t.id LIMIT :limit",
        **(bound | {"at": after[0], "id": after[1], "limit": limit}),
    ).fetchall()
    fitting = [ChosenTask(row[0], row[2], TaskState.from_code(row[3])) for row in rows if wanted.fits(row[4])]
    return Ended(fitting, (rows[-1][1], rows[-1][0]) if rows else after, len(rows) >= limit)


def highest_id(tx: Tx) -> int:
    """The highest id of a stored task; 0 if there is none."""
    return int(tx.run("SELECT coalesce(max(id), 0) FROM schedd_tasks").scalar_one())

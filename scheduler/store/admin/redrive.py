"""Retries many failed tasks at once, chosen by their envelopes, up to a limit."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.errors import DuplicateKeyError
from scheduler.model import state as st
from scheduler.model.state import TERMINAL, TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.store import audit
from scheduler.store.db.tx import Tx
from scheduler.store.read.choose import Row, still
from scheduler.store.read.where import where
from scheduler.store.tasks.control import reopen

UNSUCCESSFUL = TERMINAL - {TaskState.SUCCESS}
_FAILED = frozenset({TaskState.FAILED, TaskState.DEAD})
_BY_THEMSELVES = "t.ended_by IS NULL"  # a task that a parent's end ended comes back with that parent


class Redriven(NamedTuple):
    """``ids``: what runs again; ``conflicts``: id -> the task that has its key, also of what would have been revived
    with those; ``last``: where the next batch begins; ``more``: whether there may be one; ``rows``: those that run
    again, as they were."""

    ids: list[int]
    conflicts: dict[int, int]
    last: tuple[int, int]
    more: bool
    rows: list[Row]


def redrive(
    tx: Tx, wanted: TaskFilter, *, limit: int, downstream: bool = True, after: tuple[int, int] = (0, 0)
) -> Redriven:
    """Retry up to ``limit`` ended tasks, the oldest first, beginning behind ``after`` (ended at, id).

    Those that failed or died by themselves, if ``wanted`` names no states. Each has its whole budget again. One whose
    key another task holds, or has completed since, is left as it is: its message was sent anew. Skips rows that another
    transaction is changing.
    """
    found = choose(tx, wanted, limit, after, tx.dialect.skip_locked)
    done: list[Row] = []
    conflicts: dict[int, int] = {}
    for row in found.rows:
        if wanted.states is not None and done and not still(tx, [row.id], TERMINAL):
            continue  # it came back with another one
        try:
            left = reopen(tx, row.id, downstream=downstream)
        except DuplicateKeyError as error:
            conflicts[row.id] = error.existing_id
            continue
        conflicts |= {task_id: other.id for task_id, other in left.items()}
        done.append(row)
    audit.record(tx, "retry", tasks=[row.id for row in done], downstream=None if downstream else False)
    return Redriven([row.id for row in done], conflicts, found.last, found.more, done)


class Found(NamedTuple):
    """A page of ended tasks; ``last`` and ``more`` as in :class:`Redriven`."""

    rows: list[Row]
    last: tuple[int, int]
    more: bool


def choose(tx: Tx, wanted: TaskFilter, limit: int, after: tuple[int, int] = (0, 0), lock: str = "") -> Found:
    """The next ``limit`` tasks that :func:`redrive` would retry, or fewer: conditions on the payload come last."""
    found, states = where(wanted), wanted.states
    bound, base = found.bound, [_BY_THEMSELVES] if states is None else []
    codes = sorted(state.code for state in (_FAILED if states is None else states & UNSUCCESSFUL))
    if not codes:
        return Found([], after, False)
    if (ids := wanted.ids) is not None:
        base.append(tx.dialect.among("t.id"))
        bound["ids"] = tx.dialect.bind_ids(sorted(ids))
    text = "NULL"
    if wanted.of("payload"):
        text = "(SELECT v.value FROM schedd_task_values v WHERE v.task_id = t.id AND v.name = 'payload')"
        text = f"coalesce(t.payload, {text})"
    # Each state from where its index has the end of the last page: of all together each page would sort the rest.
    pages = " UNION ALL ".join(
        f"SELECT p{code}.id FROM (SELECT t.id, t.finished_at FROM schedd_tasks t WHERE t.state >= {st.FAILED} "
        f"AND t.state = {code} AND {found.sql(*base)} AND t.finished_at >= :at AND (t.finished_at > :at OR t.id > :id) "
        f"ORDER BY t.finished_at, t.id LIMIT :limit) p{code}"
        for code in codes
    )
    rows = tx.run(
        f"SELECT t.id, t.finished_at, t.kind, t.state, {text} FROM ({pages}) f JOIN schedd_tasks t ON t.id = f.id "
        f"WHERE t.state >= {st.FAILED} ORDER BY t.finished_at, t.id LIMIT :limit {lock}",
        **(bound | {"at": after[0], "id": after[1], "limit": limit}),
    ).fetchall()
    fitting = [Row(row[0], row[2], TaskState.from_code(row[3])) for row in rows if wanted.fits(row[4])]
    return Found(fitting, (rows[-1][1], rows[-1][0]) if rows else after, len(rows) >= limit)

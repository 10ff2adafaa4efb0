"""Reads the audit: who changed what, when, through which door, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.store.db.tx import Tx

if TYPE_CHECKING:
    import sqlalchemy as sa


class AuditRecord(NamedTuple):
    """One change. ``at``: microseconds. ``task_id`` or ``subject``: what it was about. ``bulk``: the same for all rows
    of one change of many tasks, which ``filter`` chose. ``before``, ``after``: what the change replaced, and by what.
    """

    id: int
    task_id: int | None
    at: int
    actor: str | None
    action: str
    detail: dict[str, Any]
    via: str = "python"
    reason: str | None = None
    subject: str | None = None
    bulk: str | None = None
    filter: dict[str, Any] | None = None
    before: Any = None
    after: Any = None

    @property
    def about(self) -> str | None:
        """``task 12``, ``queue mail``."""
        return f"task {self.task_id}" if self.task_id is not None else self.subject


class AuditFilter(NamedTuple):
    """Which entries. ``subject``: whole, or the word that it begins with (``schedule``). ``action``: likewise.
    ``since``, ``until``: microseconds, the second is left out."""

    task_id: int | None = None
    action: str | None = None
    actor: str | None = None
    subject: str | None = None
    via: str | None = None
    bulk: str | None = None
    since: int | None = None
    until: int | None = None


_CONDITIONS = {
    "task_id": "task_id = :task_id",
    "action": "(action = :action OR substr(action, 1, length(CAST(:action AS text)) + 1) = :action || ' ')",
    "actor": "actor = :actor",
    "subject": "(subject = :subject OR substr(subject, 1, length(CAST(:subject AS text)) + 1) = :subject || ' ')",
    "via": "via = :via",
    "bulk": "bulk = :bulk",
    "since": "at >= :since",
    "until": "at < :until",
}
_ROW = "SELECT id, task_id, at, actor, action, detail, via, reason, subject, bulk FROM schedd_audit"


def entries(tx: Tx, wanted: AuditFilter, limit: int, cursor: int | None = None) -> tuple[list[AuditRecord], int | None]:
    """Up to ``limit`` entries, the newest first, older than entry ``cursor``; and the cursor of the next page."""
    bound: dict[str, Any] = {name: value for name, value in wanted._asdict().items() if value is not None}
    where = [_CONDITIONS[name] for name in bound]
    if cursor is not None:
        where.append("id < :cursor")
        bound["cursor"] = cursor
    text = f"{_ROW} WHERE {' AND '.join(where)}" if where else _ROW
    rows = tx.run(f"{text} ORDER BY id DESC LIMIT :limit", **(bound | {"limit": limit + 1})).fetchall()
    found = [_entry(row) for row in rows[:limit]]
    return found, found[-1].id if len(rows) > limit else None


def of_task(tx: Tx, task_id: int, limit: int = 1000) -> list[AuditRecord]:
    """The newest ``limit`` entries of one task, in the order in which they were made."""
    return entries(tx, AuditFilter(task_id=task_id), limit)[0][::-1]


_DEAD_LETTERS = f"{_ROW} WHERE action IN ('replay', 'copy', 'copied', 'purge') ORDER BY id DESC LIMIT :limit"


def of_dead_letters(tx: Tx, limit: int) -> list[AuditRecord]:
    """The newest ``limit`` replays, copies and purges, in the order in which they were made."""
    rows = tx.run(_DEAD_LETTERS, limit=limit).fetchall()
    return [_entry(row) for row in reversed(rows)]


def last(tx: Tx, task_id: int, action: str) -> AuditRecord | None:
    """The newest entry of this action on a task."""
    return last_of(tx, [task_id], action).get(task_id)


def last_of(tx: Tx, ids: Sequence[int], action: str) -> dict[int, AuditRecord]:
    """The newest entry of this action on each of these tasks that has one."""
    newest = f"{tx.dialect.among('task_id')} AND action = :action GROUP BY task_id"
    sql = f"{_ROW} WHERE id IN (SELECT max(id) FROM schedd_audit WHERE {newest})"
    found = tx.run(sql, ids=tx.dialect.bind_ids(ids), action=action)
    return {row.task_id: _entry(row) for row in found}


def by(entry: AuditRecord) -> str:
    """``by alice: wrong customer``."""
    actor = f"by {entry.actor}" if entry.actor is not None else "by an unknown user"
    return actor if entry.reason is None else f"{actor}: {entry.reason}"


def _entry(row: sa.Row[Any]) -> AuditRecord:
    detail = {} if row.detail is None else msgspec.json.decode(row.detail)
    chosen, before, after = (detail.pop(name, None) for name in ("filter", "before", "after"))
    return AuditRecord(
        *(row.id, row.task_id, row.at, row.actor, row.action, detail),
        *(row.via, row.reason, row.subject, row.bulk, chosen, before, after),
    )

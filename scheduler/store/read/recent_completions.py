"""Which tasks have ended since the last look, each found once, in whatever order their transactions committed.

``finished_at`` says when a handler ended, or when the transaction that ended a task began; it is seen only once that
has committed. So a look begins well before the last one, and knows what it has found; it begins before the oldest
transaction that was open then, which may commit an end of that time (PostgreSQL; SQLite has one writer, and nothing is
committed meanwhile); and it looks by their ids after tasks that were running, whose ends a worker may record at any
time later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from scheduler.model.state import CANCELLED, DEAD, FAILED, FIRST_TERMINAL, SKIPPED, SUCCESS
from scheduler.ports import SECOND
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import HELD

OVERLAP = 10 * SECOND  # that a look begins before the last one: what clocks of workers may differ
_ENDED = (
    f"SELECT id, finished_at FROM schedd_tasks WHERE state = {SUCCESS} AND kept_until IS NULL "
    "AND finished_at >= :low{of}",
    *(
        f"SELECT id, finished_at FROM schedd_tasks WHERE state >= {FAILED} AND state = {state} "
        "AND finished_at >= :low{of}"
        for state in (FAILED, DEAD, CANCELLED, SKIPPED)
    ),
)
_HELD = f"SELECT id FROM schedd_tasks WHERE {HELD}"
_THESE = f"SELECT id, finished_at FROM schedd_tasks WHERE state >= {FIRST_TERMINAL} AND id IN "
_OPEN = (
    "SELECT CAST(extract(epoch FROM min(xact_start)) * 1000000 AS bigint) FROM pg_stat_activity "
    "WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
)
_NEWEST = "SELECT max(at) FROM ({}) AS newest".format(
    " UNION ALL ".join(
        (
            f"SELECT max(finished_at) AS at FROM schedd_tasks WHERE state = {SUCCESS} AND kept_until IS NULL",
            *(
                f"SELECT max(finished_at) FROM schedd_tasks WHERE state >= {FAILED} AND state = {state}"
                for state in (FAILED, DEAD, CANCELLED, SKIPPED)
            ),
        )
    )
)
End = tuple[int, int]  # when (microseconds), and the task's id


class Wanted(NamedTuple):
    """The tasks to read. ``correlation`` also means the task that has this id and no correlation of its own."""

    kind: str | None = None
    correlation: str | None = None

    def where(self) -> tuple[str, dict[str, Any]]:
        """The condition, beginning with AND, and what it binds."""
        sql, bound = "", dict[str, Any]()
        if self.kind is not None:
            sql, bound = " AND kind = :kind", {"kind": self.kind}
        if self.correlation is not None:
            text = self.correlation
            own = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
            sql += " AND (correlation = :correlation OR (correlation IS NULL AND id = :own))"
            bound |= {"correlation": text, "own": own}
        return sql, bound


class EndsReader:
    """Finds ends for one subscription. For one thread."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._low = 0  # what ended before this, and was not running at the last look, has been found
        self._seen: set[End] = set()
        self._held: set[int] = set()

    def begin(self, tx: Tx) -> None:
        """All that has ended by now is of no interest."""
        self._low = _next_low(tx)
        self._held = self._read_held(tx)
        self._seen = set(self._read(tx))

    def look(self, tx: Tx) -> list[End]:
        """What has ended since the last look, in the order of the ends."""
        following = _next_low(tx)  # before the ends are read: what commits meanwhile is looked for again
        held = self._read_held(tx)
        found = set(self._read(tx))
        new = (found | set(self._gone(tx, self._held - held))) - self._seen
        self._held, self._low = held, max(self._low, following)
        self._seen = {one for one in self._seen | found if one[0] >= self._low}
        return sorted(new)

    def _read(self, tx: Tx) -> Iterable[End]:
        of, bound = self._wanted.where()
        sql = " UNION ALL ".join(part.format(of=of) for part in _ENDED)
        return [(row.finished_at, row.id) for row in tx.run(sql, low=self._low, **bound)]

    def _read_held(self, tx: Tx) -> set[int]:
        of, bound = self._wanted.where()
        return {row.id for row in tx.run(_HELD + of, **bound)}

    def _gone(self, tx: Tx, ids: set[int]) -> list[End]:
        """Those of these that have ended: their workers may have recorded it long after."""
        if not ids:
            return []
        rows = tx.run(_THESE + tx.dialect.ids(), ids=bind_rows(sorted(ids)))
        return [(row.finished_at, row.id) for row in rows]


def _next_low(tx: Tx) -> int:
    """From which instant on ends may still be committed, but for those that workers record late (microseconds)."""
    if tx.dialect.name == "sqlite":
        newest = tx.run(_NEWEST).scalar()  # a writer that is at work has begun after the last one committed
        return min(tx.now, newest or 0) - OVERLAP
    oldest = tx.run(_OPEN).scalar()
    return min(tx.now, tx.now if oldest is None else int(oldest)) - OVERLAP

"""Numbers of ended attempts: counts and histograms by minute, which retention rolls up into hours and days."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.rollup import DAY, HOUR, MINUTE, Cell
from scheduler.ports import SECOND
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

MINUTES_KEPT = 6 * HOUR  # seconds that minutes stay minutes
HOURS_KEPT = 14 * DAY

_SPANS = (MINUTE, HOUR, DAY)
_STEPS = ((MINUTE, HOUR, MINUTES_KEPT), (HOUR, DAY, HOURS_KEPT))  # span, into which it goes, how long it stays
_FIRST = "SELECT " + ", ".join(f"(SELECT min(at) FROM schedd_rollups WHERE span = {span})" for span in _SPANS)

_KEY = "span, at, kind, queue, outcome, measure, bucket"
_COLUMNS = {
    "span": int,
    "at": int,
    "kind": str,
    "queue": str,
    "outcome": int,
    "measure": int,
    "bucket": int,
    "number": int,
    "total": int,
}
_NAMES = ", ".join(_COLUMNS)
_ADD = (
    f"ON CONFLICT ({_KEY}) DO UPDATE SET number = schedd_rollups.number + excluded.number, "
    "total = schedd_rollups.total + excluded.total"
)
_COARSER = (
    f"INSERT INTO schedd_rollups ({_NAMES}) SELECT :into, at - at % :length, kind, queue, outcome, measure, bucket, "
    "sum(number), sum(total) FROM {source} WHERE span = :span AND at < :before "
    f"GROUP BY 2, kind, queue, outcome, measure, bucket ORDER BY 2, kind, queue, outcome, measure, bucket {_ADD}"
)
_DELETE = "DELETE FROM schedd_rollups WHERE span = :span AND at < :before"
# Another worker that rolls up the same rows waits for them, and finds none.
_COARSER_PG = f"WITH gone AS ({_DELETE} RETURNING *) {_COARSER.format(source='gone')}"
_COARSER_SQLITE = _COARSER.format(source="schedd_rollups")


def add(tx: Tx, cells: Sequence[Cell]) -> None:
    """Add counts to what is stored, in one statement. ``cells``: in the order of their keys."""
    sql = f"INSERT INTO schedd_rollups ({_NAMES}) SELECT {_NAMES} FROM {tx.dialect.rows(_COLUMNS)} j WHERE true {_ADD}"
    tx.run(sql, rows=bind_rows(cells))


def compact(tx: Tx, kept: int) -> bool:
    """Roll up an hour of old minutes and a day of old hours; remove days older than ``kept`` (microseconds).

    True: there is more.
    """
    first_of = tx.run(_FIRST).one()
    more = False
    for first, (span, into, stay) in zip(first_of, _STEPS, strict=False):
        until = floor(tx.now - stay * SECOND, into)
        if first is None or first >= until:
            continue
        before = floor(first, into) + into * SECOND
        bound = {"span": span, "before": before}
        coarser = {**bound, "into": into, "length": into * SECOND}
        if tx.dialect.name == "sqlite":
            tx.run(_COARSER_SQLITE, **coarser)
            tx.run(_DELETE, **bound)
        else:
            tx.run(_COARSER_PG, **coarser)
        more |= before < until
    for first, span in zip(first_of, _SPANS, strict=True):
        if first is not None and first < tx.now - kept:
            tx.run(_DELETE, span=span, before=tx.now - kept)
    return more


def floor(at: int, span: int) -> int:
    """The start of the minute, hour or day (UTC; ``span`` seconds) in which an instant lies, in microseconds."""
    return at - at % (span * SECOND)

"""Numbers of ended attempts: counts and histograms by minute, which retention rolls up into hours and days; and how
long kinds usually run by them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import DAY, HOUR, MINUTE, Cell, Histogram, Measure
from scheduler.ports import SECOND
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

if TYPE_CHECKING:
    from scheduler.model.critical_path import Expected

MINUTES_KEPT = 6 * HOUR  # seconds that minutes stay minutes
HOURS_KEPT = 14 * DAY
DAY_US = DAY * SECOND
LOOKED_BACK = 7 * DAY_US  # how far back usual times are read
FINISHED = (AttemptEnd.SUCCEEDED, AttemptEnd.FAILED, AttemptEnd.RETRIED, AttemptEnd.DEAD)

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


def window(now: int, since: int, until: int) -> tuple[int, int]:
    """The time whose numbers are there: widened to whole minutes, or to the hours or days that old ones are kept in."""

    def span_at(at: int) -> int:
        if at >= floor(now - MINUTES_KEPT * SECOND, HOUR):
            return MINUTE
        return HOUR if at >= floor(now - HOURS_KEPT * SECOND, DAY) else DAY

    end = floor(until - 1, span_at(until)) + span_at(until) * SECOND
    return floor(since, span_at(since)), min(max(until, now), end)


def expected(tx: Tx, kinds: Collection[str]) -> dict[str, Expected]:
    """How long the attempts of these kinds took in the last day; of a kind without any, in the last seven.

    Reads rollups only, those of a day where that is enough.
    """
    usual = _expected(tx, DAY_US, kinds)
    missing = [kind for kind in kinds if kind not in usual]
    return usual | _expected(tx, LOOKED_BACK, missing) if missing else usual


_RUNS = (
    "SELECT kind, bucket, sum(number), sum(total) FROM schedd_rollups "
    f"WHERE span IN ({MINUTE}, {HOUR}, {DAY}) AND at >= :since AND measure = {int(Measure.RUN)} "
    f"AND outcome IN ({', '.join(str(end.code) for end in FINISHED)}) AND kind IN {{kinds}} GROUP BY kind, bucket"
)


def _expected(tx: Tx, back: int, kinds: Collection[str]) -> dict[str, Expected]:
    from scheduler.model.critical_path import Expected

    since, _ = window(tx.now, tx.now - back, tx.now)
    source = f"(SELECT kind FROM {tx.dialect.rows({'kind': str})} j)"
    found: dict[str, Histogram] = {}
    rows = tx.run(_RUNS.format(kinds=source), since=since, rows=bind_rows([(kind,) for kind in sorted(set(kinds))]))
    for kind, bucket, number, total in rows:
        found.setdefault(kind, Histogram()).add(bucket, int(number), int(total))
    usual = {}
    for kind, spans in found.items():
        p50, p90 = spans.percentile(50), spans.percentile(90)
        if p50 is not None and p90 is not None:
            usual[kind] = Expected(round(p50 * SECOND), round(p90 * SECOND))
    return usual

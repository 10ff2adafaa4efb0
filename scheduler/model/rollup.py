"""Counts how attempts ended, how long they ran and waited, and reads percentiles from such counts. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from operator import attrgetter, itemgetter, sub
from typing import Any, NamedTuple

from scheduler.model.outcome import AttemptEnd, OutcomeColumns
from scheduler.ports import SECOND

MINUTE, HOUR, DAY = 60, 3_600, 86_400  # seconds: the spans of rollups


def _bounds() -> tuple[int, ...]:
    """Upper bounds in microseconds: nine a decade, then the usual minutes and hours.

    All buckets that OpenTelemetry advises for durations are among them, so a metric adds them up.
    """
    short = [100, 250, 500]
    decades = [round(step * 1000 * 10**power) for power in range(4) for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5)]
    tens = (10, 15, 20, 25, 30, 40, 50, 60, 75, 90, 120, 150, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700, 3600)
    long = (5400, 7200, 10_800, 14_400, 21_600, 28_800, 43_200, 86_400, 172_800, 604_800)
    return (*short, *decades, *(seconds * SECOND for seconds in (*tens, *long)))


BOUNDS = _bounds()


class Measure(IntEnum):
    """What a histogram is of. Stored: append, never reorder."""

    RUN = 0
    WAIT = 1  # from when nothing but a worker was missing to the start of the handler


class Cell(NamedTuple):
    """One bucket of a rollup: ``number`` attempts whose ``measure`` came to ``total`` microseconds.

    ``at``: the start of the minute, hour or day (microseconds), ``span`` seconds long. ``outcome``: as
    ``AttemptEnd.code``.
    """

    span: int
    at: int
    kind: str
    queue: str
    outcome: int
    measure: int
    bucket: int
    number: int
    total: int


RollupKey = tuple[int, str, str, int, int, int]  # at, kind, queue, outcome, measure, bucket
_CLAIMED = attrgetter("claimed")


def bucket_of(us: int) -> int:
    """The bucket of a span: the first whose bound it does not exceed."""
    return bisect_left(BOUNDS, us)


class RollupCounter:
    """Counts in plain integers what a worker has recorded since :meth:`take`. Not for several threads.

    ``group`` reads (kind, queue, bits) of a claimed task, where a bit above 1 says that it depends on others; ``due``
    when it was due (microseconds). Most batches are successes of one kind: such a one costs a few calls in C for each
    of its columns, and no loop in Python.
    """

    def __init__(self, group: itemgetter[Any], due: itemgetter[Any]) -> None:
        self._group = group
        self._due = due
        self._counts: dict[RollupKey, list[int]] = {}
        self._unwritten: dict[RollupKey, list[int]] = {}  # handed over, or put back
        # Takes what is counted over as well, by calling take_counts(); None: nothing does.
        self.hand_over: Callable[[Callable[[], dict[RollupKey, list[int]]]], None] | None = None

    def __bool__(self) -> bool:
        return bool(self._counts or self._unwritten)

    def add_successes(self, now: int, attempts: Sequence[Any], ends: OutcomeColumns, runs: list[int]) -> None:
        """Count started attempts that all succeeded. ``runs``: how long each ran; ``now``: microseconds."""
        claimed = list(map(_CLAIMED, attempts))
        groups = list(map(self._group, claimed))
        if groups.count(groups[0]) < len(groups):
            self.add(now, attempts, ends, (), {})
            return
        at, code = now - now % (MINUTE * SECOND), AttemptEnd.SUCCEEDED.code
        kind, queue, parents = groups[0]
        self._spread(at, kind, queue, code, Measure.RUN, runs)
        if parents <= 1:
            waits = list(map(sub, ends.started_at, map(self._due, claimed)))  # pyright: ignore[reportArgumentType]
            self._spread(at, kind, queue, code, Measure.WAIT, waits)

    def add(
        self,
        now: int,
        attempts: Sequence[Any],
        ends: OutcomeColumns,
        lost: Collection[tuple[int, int]],
        overridden: Mapping[int, AttemptEnd],
    ) -> None:
        """Count attempts that were started, whatever their ends.

        ``lost``: (task id, claim) of those that were not recorded; ``overridden``: the end that was recorded instead.
        """
        at = now - now % (MINUTE * SECOND)
        groups: dict[tuple[str, str, AttemptEnd], tuple[list[int], list[int]]] = {}
        claimed = list(map(_CLAIMED, attempts))
        rows = zip(
            *(map(self._group, claimed), map(self._due, claimed)),
            *(ends.task_ids, ends.claims, ends.ends, ends.started_at, ends.finished_at),
            strict=True,
        )
        for (kind, queue, parents), due, task_id, claim, end, started, finished in rows:
            if started is None or (lost and (task_id, claim) in lost):
                continue
            key = (kind, queue, overridden.get(task_id, end) if overridden else end)
            runs, waits = groups.get(key) or groups.setdefault(key, ([], []))
            runs.append(finished - started)
            if parents <= 1:
                waits.append(started - due)
        for (kind, queue, end), (runs, waits) in groups.items():
            self._spread(at, kind, queue, end.code, Measure.RUN, runs)
            if waits:
                self._spread(at, kind, queue, end.code, Measure.WAIT, waits)

    def add_taken(self, now: int, kind: str, queue: str, end: AttemptEnd, ran: int) -> None:
        """Count an attempt that was taken from its worker, after ``ran`` microseconds at most."""
        at, ran = now - now % (MINUTE * SECOND), max(0, ran)
        _count(self._counts, (at, kind, queue, end.code, Measure.RUN, bucket_of(ran)), 1, ran)

    def _spread(self, at: int, kind: str, queue: str, outcome: int, measure: Measure, values: list[int]) -> None:
        """Count values in their buckets. They are sorted in place if they do not fall into one bucket."""
        least, most = min(values), max(values)
        if least < 0:  # the clock went back
            values = [max(0, value) for value in values]
            least, most = 0, max(0, most)
        bucket, last = bisect_left(BOUNDS, least), bisect_left(BOUNDS, most)
        if bucket == last:
            _count(self._counts, (at, kind, queue, outcome, measure, bucket), len(values), sum(values))
            return
        values.sort()
        begin = 0
        while begin < len(values):
            bucket = bisect_left(BOUNDS, values[begin])
            end = bisect_right(values, BOUNDS[bucket], begin) if bucket < len(BOUNDS) else len(values)
            part = values[begin:end]
            _count(self._counts, (at, kind, queue, outcome, measure, bucket), len(part), sum(part))
            begin = end

    def pending(self) -> dict[RollupKey, list[int]]:
        """A copy of what :meth:`take_counts` would return. From any thread."""
        return self._counts.copy()

    def take_counts(self) -> dict[RollupKey, list[int]]:
        """What was counted since the last call. It stays to be written, see :meth:`take`."""
        counts, self._counts = self._counts, {}
        for key, (number, total) in counts.items():
            _count(self._unwritten, key, number, total)
        return counts

    def take(self) -> list[Cell]:
        """Everything to be written, in the order of the table's key, so that workers lock rows in one order; forget
        it."""
        if self.hand_over is None:
            self.take_counts()
        else:
            self.hand_over(self.take_counts)
        counts, self._unwritten = self._unwritten, {}
        return [Cell(MINUTE, *key, *counted) for key, counted in sorted(counts.items())]

    def put_back(self, cells: Iterable[Cell]) -> None:
        """Keep what could not be written, for the next :meth:`take`."""
        for cell in cells:
            _count(self._unwritten, cell[1:7], cell.number, cell.total)


def _count(counts: dict[RollupKey, list[int]], key: RollupKey, number: int, total: int) -> None:
    found = counts.get(key)
    if found is None:
        counts[key] = [number, total]
    else:
        found[0] += number
        found[1] += total


class Histogram:
    """A histogram of spans, by the buckets of :data:`BOUNDS`."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0  # microseconds
        self.buckets: dict[int, int] = {}

    def add(self, bucket: int, count: int, total: int) -> None:
        """Add ``count`` spans of one bucket that come to ``total`` microseconds."""
        self.count += count
        self.total += total
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def mean(self) -> float | None:
        """Seconds; None without a span."""
        return self.total / self.count / SECOND if self.count else None

    def percentile(self, percent: float) -> float | None:
        """Seconds below which ``percent`` of the spans are, None without a span.

        The bucket with that rank is exact; within it spans are taken to be spread evenly.
        """
        if not self.count:
            return None
        rank, below = self.count * percent / 100, 0
        for bucket in sorted(self.buckets):
            inside = self.buckets[bucket]
            if below + inside >= rank:
                if bucket >= len(BOUNDS):
                    return BOUNDS[-1] / SECOND
                low = BOUNDS[bucket - 1] if bucket else 0
                return (low + (BOUNDS[bucket] - low) * max(0.0, rank - below) / inside) / SECOND
            below += inside
        return BOUNDS[-1] / SECOND  # unreachable but for rounding

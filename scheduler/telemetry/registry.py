"""The registry: one worker's metrics as plain integers that the engine's loop owns. Other threads read them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from operator import add
from typing import Any

from scheduler.errors import StoreReplacedError, StoreUnavailableError
from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import Measure, RollupCounter, RollupKey
from scheduler.ports import SECOND
from scheduler.store.db.errors import StoreError
from scheduler.telemetry import metrics
from scheduler.telemetry.metrics import BUCKET_OF_ROLLUP, BUCKETS, Distribution, Family, Metric, Sample, bucket_of

MAX_PAIRS = 1_000  # of a kind and a queue that are kept: a program may have a queue for each of its users
IDLE_FORGET_S = 86_400.0  # after which a kind and queue without an attempt are forgotten
_LOST = AttemptEnd.LOST.code
_BUCKET_COUNT = len(BUCKETS) + 1
_OUTCOMES = {end.code: end.value.replace(" ", "_") for end in AttemptEnd}


class Buckets:
    """One histogram as plain integers. ``total``: microseconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKET_COUNT
        self.total = 0

    def observe(self, us: int) -> None:
        """Count a span in microseconds."""
        self.counts[bucket_of(us)] += 1
        self.total += us

    def read(self, *labels: str) -> Distribution:
        """It as a value of a metric."""
        return Distribution(labels, tuple(self.counts), self.total / SECOND)


class _Pair:
    """What is counted of one kind in one queue."""

    __slots__ = ("outcomes", "run", "used_at", "wait")

    def __init__(self) -> None:
        self.outcomes: dict[int, int] = {}
        self.run = Buckets()
        self.wait = Buckets()
        self.used_at = 0.0  # monotonic

    def add(self, outcome: int, measure: int, bucket: int, number: int, total: int) -> None:
        buckets = self.wait
        if measure == Measure.RUN:
            buckets = self.run
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + number
            if outcome == _LOST:  # nobody knows how long it ran
                return
        buckets.counts[BUCKET_OF_ROLLUP[bucket]] += number
        buckets.total += total

    def plus(self, other: _Pair) -> _Pair:
        both = _Pair()
        both.outcomes = {
            code: self.outcomes.get(code, 0) + other.outcomes.get(code, 0)
            for code in self.outcomes.keys() | other.outcomes.keys()
        }
        for mine, one, two in ((both.run, self.run, other.run), (both.wait, self.wait, other.wait)):
            mine.counts, mine.total = list(map(add, one.counts, two.counts)), one.total + two.total
        return both


class MetricsRegistry:
    """The metrics of one worker.

    The engine's loop alone changes the public counters, without a lock. :meth:`snapshot` may be called from any thread.
    Numbers of attempts are not counted here: ``rollups`` counts them, and hands them over when they are written.
    """

    def __init__(self, monotonic: Callable[[], float], rollups: RollupCounter | None = None) -> None:
        self.dead_letters: dict[str, int] = {}  # by kind
        self.cap_waits: dict[str, int] = {}  # by kind
        self.rate_waits: dict[str, int] = {}  # by kind
        self.store_errors: dict[str, int] = dict.fromkeys(metrics.ERROR_CLASSES, 0)
        self.leases_lost = self.reclaimed = self.timeouts = self.direct_starts = 0
        self.cycles = Buckets()
        self.gauges: Callable[[], Iterable[Family]] = tuple  # what is read when asked for: slots, the loop's age
        self.kinds: Callable[[], Iterable[str]] = tuple  # that this worker serves
        self._monotonic = monotonic
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._lock = threading.Lock()  # held while numbers of attempts change hands
        self._pending: Callable[[], Mapping[RollupKey, Any]] = dict  # those that were not handed over yet
        if rollups is not None:
            self._pending, rollups.hand_over = rollups.pending, self._absorb

    def _absorb(self, take: Callable[[], Mapping[RollupKey, Any]]) -> None:
        """Take over numbers of attempts: ``take`` removes them from where ``_pending`` reads, and returns them."""
        with self._lock:
            now, counts = self._monotonic(), take()
            self._add(self._pairs, counts, now)
            if len(self._pairs) > MAX_PAIRS or any(now - p.used_at > IDLE_FORGET_S for p in self._pairs.values()):
                newest = sorted(self._pairs.items(), key=lambda item: -item[1].used_at)[:MAX_PAIRS]
                self._pairs = {key: pair for key, pair in newest if now - pair.used_at <= IDLE_FORGET_S}

    @staticmethod
    def _add(pairs: dict[tuple[str, str], _Pair], counts: Mapping[RollupKey, Any], now: float) -> None:
        for (_, kind, queue, outcome, measure, bucket), (number, total) in counts.items():
            pair = pairs.get((kind, queue))
            if pair is None:
                pair = pairs[kind, queue] = _Pair()
            pair.add(outcome, measure, bucket, number, total)
            pair.used_at = now

    def count_error(self, error: Exception) -> None:
        """Count an error that a round of the loop, or a job in it, met."""
        if isinstance(error, StoreReplacedError):
            name = "replaced"
        elif isinstance(error, StoreError):
            by_class = (("collided", error.collided), ("locked", error.locked), ("refused", not error.heals))
            name = next((name for name, fits in by_class if fits), "unavailable")
        else:
            name = "unavailable" if isinstance(error, StoreUnavailableError) else "unexpected"
        self.store_errors[name] += 1

    def count_waits(self, capped: Iterable[str], rated: Iterable[str]) -> None:
        """Count a cycle that left due tasks of these kinds waiting, for a cap or for a rate."""
        for kinds, counts in ((capped, self.cap_waits), (rated, self.rate_waits)):
            for kind in kinds:
                counts[kind] = counts.get(kind, 0) + 1

    def snapshot(self) -> list[Family]:
        """All metrics with their present values, in the order of ``WORKER_METRICS``. From any thread."""
        fresh: dict[tuple[str, str], _Pair] = {}
        with self._lock:
            self._add(fresh, self._pending(), 0.0)
            pairs = {key: pair.plus(fresh.pop(key, _Pair())) for key, pair in self._pairs.items()}
        pairs |= fresh
        found = {family.metric: family for family in (*self._attempts(pairs), *self._counters(), *self.gauges())}
        return [found.get(metric, Family(metric)) for metric in metrics.WORKER_METRICS]

    @staticmethod
    def _attempts(pairs: Mapping[tuple[str, str], _Pair]) -> list[Family]:
        rows = sorted(pairs.items())
        return [
            Family(
                metrics.ATTEMPTS,
                [
                    Sample((*key, _OUTCOMES[code]), number)
                    for key, pair in rows
                    for code, number in sorted(pair.outcomes.items())
                ],
            ),
            Family(metrics.ATTEMPT_DURATION, (), [pair.run.read(*key) for key, pair in rows]),
            Family(metrics.QUEUE_WAIT, (), [pair.wait.read(*key) for key, pair in rows]),
        ]

    def _counters(self) -> list[Family]:
        served = dict.fromkeys(self.kinds(), 0)  # a counter that begins at 1 hides its first step from rate()

        def by(metric: Metric, counts: Mapping[str, int]) -> Family:
            return Family(metric, [Sample((label,), number) for label, number in sorted(counts.items())])

        def one(metric: Metric, number: int) -> Family:
            return Family(metric, [Sample((), number)])

        return [
            by(metrics.DEAD_LETTERS_MADE, served | self.dead_letters),
            by(metrics.CAP_WAITS, dict(self.cap_waits)),
            by(metrics.RATE_WAITS, dict(self.rate_waits)),
            by(metrics.STORE_ERRORS, dict(self.store_errors)),
            one(metrics.LEASES_LOST, self.leases_lost),
            one(metrics.RECLAIMED, self.reclaimed),
            one(metrics.TIMEOUTS, self.timeouts),
            one(metrics.DIRECT_STARTS, self.direct_starts),
            Family(metrics.CYCLE_DURATION, (), [self.cycles.read()]),
        ]

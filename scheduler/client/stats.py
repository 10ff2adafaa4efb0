"""``jobs.stats``: how often attempts ended how, and how long they ran and waited."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from scheduler.client.info import info
from scheduler.client.threads import in_thread
from scheduler.errors import ConfigError
from scheduler.model.names import check_whole
from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import Histogram
from scheduler.model.times import instant_us, span_us, to_datetime
from scheduler.operations.filter import check_filters
from scheduler.ports import SECOND
from scheduler.store.db.database import Database
from scheduler.store.read.history import failed_attempts
from scheduler.store.read.stats import Numbers, StatsRecord, stats

MAX_FAILURES = 10_000


class Spread(msgspec.Struct, frozen=True):
    """How long something took, over ``count`` attempts: mean and percentiles in seconds, None of no attempt.

    A percentile is read from a histogram: its bucket is exact, its place within that is not. From 1 ms to 12 hours it
    is off by less than half of itself.
    """

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class KindStats(msgspec.Struct, frozen=True):
    """The numbers of a kind. ``kind`` None: of all together.

    ``outcomes``: how many attempts ended so (succeeded, retried, dead, …). ``throughput``: ended attempts a second.
    ``failure_rate``: the share that failed, or None. ``run``: from a handler's start to its end, of attempts that
    succeeded or failed. ``wait``: from when only a worker was missing to the start, of tasks that depend on no other.
    """

    kind: str | None
    attempts: int
    outcomes: dict[str, int]
    throughput: float
    failure_rate: float | None
    run: Spread
    wait: Spread


class Stats(msgspec.Struct, frozen=True):
    """The numbers of a time: of all, and of each kind that ran, the most frequent first."""

    since: datetime
    until: datetime
    total: KindStats
    kinds: list[KindStats]


class AttemptFailure(msgspec.Struct, frozen=True):
    """An attempt that failed. ``outcome``: failed, retried or dead; ``worker`` is ``host:pid``."""

    task_id: int
    kind: str
    claim: int
    number: int
    worker: str
    started_at: datetime | None
    finished_at: datetime
    outcome: AttemptEnd
    error: str | None
    error_class: str | None
    fingerprint: str | None


def make_stats(record: StatsRecord) -> Stats:
    """Stored numbers as programs see them."""
    seconds = max(1e-6, (record.until - record.since) / SECOND)
    return Stats(
        to_datetime(record.since),
        to_datetime(record.until),
        _kind_stats(None, record.total, seconds),
        [_kind_stats(kind, numbers, seconds) for kind, numbers in record.kinds.items()],
    )


def _kind_stats(kind: str | None, numbers: Numbers, seconds: float) -> KindStats:
    outcomes = {end.value: number for end, number in sorted(numbers.outcomes.items(), key=lambda item: item[0].code)}
    return KindStats(
        kind,
        numbers.attempts,
        outcomes,
        numbers.attempts / seconds,
        numbers.failure_rate,
        _spread(numbers.run),
        _spread(numbers.wait),
    )


def _spread(histogram: Histogram) -> Spread:
    return Spread(histogram.count, histogram.mean, *map(histogram.percentile, (50, 95, 99)))


class StatsOperations:
    """The part of the Scheduler that reads numbers. Needs ``database``."""

    database: Database

    def _write_own_numbers(self) -> None:
        raise NotImplementedError

    def stats(
        self,
        kind: str | None = None,
        *,
        queue: str | None = None,
        since: datetime | timedelta | float = timedelta(hours=1),
        until: datetime | None = None,
    ) -> Stats:
        """How many attempts ended how, how many a second, and how long they ran and waited.

        ``since``: an aware datetime, or how long ago (a timedelta or seconds); ``until``: an aware datetime, by default
        now. The time is widened to whole minutes; six hours back to whole hours, two weeks back to whole days (UTC).
        Workers write their numbers every third of a lease, so those of the last ten seconds may be missing.
        Raises ConfigError, InvalidScheduleError for a naive datetime, StoreUnavailableError.
        """
        check_filters(kind=kind, queue=queue)
        now = self.database.now()
        begin = (
            instant_us(since, "since") if isinstance(since, datetime) else now - span_us(since, "since", positive=True)
        )
        end = now if until is None else instant_us(until, "until")
        if end <= begin:
            raise ConfigError("until must be after since")
        self._write_own_numbers()
        with self.database.read() as tx:
            found = stats(tx.at(now), begin, end, kind=kind, queue=queue)
        return make_stats(found)

    def failures(
        self,
        kind: str | None = None,
        *,
        since: datetime | timedelta | float = timedelta(hours=1),
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[AttemptFailure]:
        """The attempts that failed, the latest first, also those that were retried since; of tasks that are stored.

        ``since``: an aware datetime, or how long ago (a timedelta or seconds); ``until``: an aware datetime, by default
        now. Raises ConfigError, InvalidScheduleError for a naive datetime, StoreUnavailableError.
        """
        check_filters(kind=kind)
        check_whole(limit, "limit", 1, MAX_FAILURES)
        self.database.look()  # opening reads the server's clock
        now = self.database.now()
        begin = (
            instant_us(since, "since") if isinstance(since, datetime) else now - span_us(since, "since", positive=True)
        )
        end = now + 1 if until is None else instant_us(until, "until")
        with self.database.read() as tx:
            found = failed_attempts(tx, begin, end, limit, kind)
        return [info(AttemptFailure, one) for one in found]

    stats_async = in_thread(stats)
    failures_async = in_thread(failures)

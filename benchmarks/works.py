"""What is measured: each work with its size, how often, and what it has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SQLITE, POSTGRESQL, REDIS = "sqlite", "postgresql", "redis"


@dataclass(frozen=True)
class Bar:
    """``who`` reaches ``bound``: at least, or at most; by itself, or its ratio by another one's of the same round.

    ``by``: a contender, or "every peer". ``measure``: "" for rates, else as in the value a contender gives, with
    p50 and p99 for lists of milliseconds.
    """

    bound: float
    by: str = ""
    who: str = "schedd"
    measure: str = ""
    most: bool = False

    def __str__(self) -> str:
        sign = "≤" if self.most else "≥"
        return f"{self.measure} {sign} {self.bound:,g}{f' × {self.by}' if self.by else ''}".strip()


@dataclass(frozen=True, eq=False)
class Work:
    """``size``: in tasks, calls or seconds. ``rounds``: of how many measured rounds it takes part at most."""

    name: str
    size: int
    bars: Mapping[str, tuple[Bar, ...]]
    unit: str = "/s"
    quick: int = 0
    rounds: int = 99
    warms_up: bool = True
    stored: int = 0  # rows in the database that is copied for it
    smaller: Mapping[str, int] = field(default_factory=dict)  # for contenders that would take too long

    def size_for(self, who: str, *, quick: bool) -> int:
        own = self.smaller.get(who.partition(",")[0], self.size)
        return min(own, self.quick) if quick and self.quick else own


def _both(*bars: Bar) -> dict[str, tuple[Bar, ...]]:
    return {SQLITE: bars, POSTGRESQL: bars}


_ASYNC = Bar(0.6, "schedd", who="schedd, async")
_ROLLUPS = Bar(0.98, "schedd, no rollups")  # what counting how attempts end, run and wait may cost
_METRICS = Bar(0.98, "schedd", who="schedd, metrics")  # what metrics for Prometheus may cost beside that
_OTEL = Bar(0.98, "schedd", who="schedd, otel")  # what tracing may cost that traces nothing
_ALERTS = Bar(0.95, "schedd", who="schedd, alerts")  # one evaluation, due each 15 s, within a drain of a second
_RAW = Bar(0.6, "raw")
_HALF = Bar(0.5, "raw")
_BEHIND = tuple(
    Bar(0.9, "schedd, empty", who=f"schedd, {what}") for what in ("pending elsewhere", "finished", "far-future")
)


def _callers(bound: float, where: str = "") -> Bar:
    return Bar(bound, f"raw, 8 callers{where}", who=f"schedd, 8 callers{where}")


def _fleet(two: float, three: float) -> tuple[Bar, ...]:
    return (
        Bar(two, "schedd, 1 daemon", who="schedd, 2 daemons"),
        Bar(three, "schedd, 1 daemon", who="schedd, 3 daemons"),
    )


WORKS = {
    work.name: work
    for work in (
        Work(
            "drain",
            30_000,
            {
                SQLITE: (Bar(40_000), _RAW, _ASYNC, _ROLLUPS, _METRICS, _OTEL, _ALERTS),
                POSTGRESQL: (Bar(1.4, "pgqueuer"), _RAW, _ASYNC, _ROLLUPS, _METRICS, _OTEL, _ALERTS),
            },
            quick=5_000,
            smaller={
                "huey": 3_000,
                "dbos": 500,
                "procrastinate": 1_000,
                "oban": 6_000,
                "absurd": 1_500,
                "celery": 2_000,
                "rq": 500,
                "pgqueuer": 20_000,
            },
        ),
        Work(
            "dag 5,000",
            5_000,
            {SQLITE: (Bar(25_000), _RAW), POSTGRESQL: (Bar(10_000), _RAW)},
            quick=2_000,
        ),
        Work(
            "dag 100,000",
            100_000,
            {SQLITE: (Bar(25_000), _RAW), POSTGRESQL: (Bar(10_000), _RAW)},
            quick=5_000,
            rounds=2,
            warms_up=False,
        ),
        Work(
            "enqueue",
            2_000,
            {SQLITE: (Bar(1.0, "huey"), _RAW), POSTGRESQL: (Bar(1.0, "every peer"),)},
            quick=500,
            smaller={"dbos": 300, "rq": 500},
        ),
        Work(
            "enqueue beside a drain",
            40_000,
            {
                SQLITE: (Bar(50, measure="p99", most=True), Bar(0, measure="failed", most=True)),
                POSTGRESQL: (Bar(20, measure="p99", most=True), Bar(0, measure="failed", most=True)),
            },
            unit="ms",
            quick=15_000,
        ),
        Work("batch", 10_000, _both(Bar(60_000), _HALF), quick=2_000),
        Work("batch of edges", 10_000, _both(Bar(25_000), _HALF), quick=2_000),
        Work(
            "start",
            200,  # of 100 the p99 is the slowest alone
            {
                database: (
                    Bar(0.8, "every peer", measure="p50", most=True),
                    Bar(1.0, "every peer", measure="p99", most=True),
                )
                for database in (SQLITE, POSTGRESQL)
            },
            unit="ms",
            quick=30,
        ),
        Work("backlog", 30_000, _both(*_BEHIND), quick=5_000, rounds=3, warms_up=False, stored=1_000_000),
        Work(
            "restart",
            20_000,
            _both(Bar(1.0, measure="first", most=True), Bar(100, measure="memory", most=True)),
            unit="",
            quick=2_000,
            rounds=2,
            warms_up=False,
            stored=1_000_000,
        ),
        Work(
            "fleet",
            40_000,
            {SQLITE: _fleet(0.8, 0.8), POSTGRESQL: _fleet(1.0, 0.9)},
            quick=5_000,
            rounds=3,
            warms_up=False,
        ),
        Work(
            "callers",
            2,
            {
                SQLITE: (),
                POSTGRESQL: (
                    _callers(0.8),
                    _callers(0.8, ", slow disk"),
                    Bar(0.75, "raw, 1 caller", who="schedd, 1 caller"),
                ),
            },
            quick=1,
            rounds=2,
            warms_up=False,
        ),
        Work(
            "callers' transactions",
            2,
            {SQLITE: (), POSTGRESQL: (_callers(0.85), _callers(0.85, ", slow disk"))},
            quick=1,
            rounds=2,
            warms_up=False,
        ),
        Work("callers' batches", 2, _both(_callers(0.5)), quick=1, rounds=2, warms_up=False),
        Work(
            "callers with limits",
            2,
            _both(*(Bar(0.9, "schedd, plain", who=f"schedd, {what}") for what in ("concurrency keys", "cap", "rate"))),
            quick=1,
            rounds=2,
            warms_up=False,
        ),
        Work("callers beside daemons", 5, _both(), unit="", quick=2, rounds=2, warms_up=False),
        Work("idle", 10, _both(Bar(0.5, most=True)), unit="% CPU", quick=3, rounds=1, warms_up=False),
    )
}
QUICK_STORED = 30_000
MEANINGS = {
    "drain": "no-op tasks stored before, until the last outcome is committed; schedd in threads, as asyncio Tasks, or "
    "without rollups, with metrics, with tracing on at ratio 0, with alerts on, evaluated once in it",
    "dag 5,000": "the same as a graph: layers of 100, three parents each in the layer above",
    "dag 100,000": "the same, larger",
    "enqueue": "one task a transaction, one after the other, by one caller",
    "enqueue beside a drain": "each such call in another process, without a pause, while 40,000 tasks drain",
    "batch": "10,000 tasks stored together, builders included",
    "batch of edges": "the same as a graph, three parents each",
    "start": "from the call in another process to the first line of the handler; one call in 20 ms: the worker is idle",
    "backlog": "drain beside a million tasks: none, of a queue that is not served, succeeded, due in a year",
    "restart": "a million due: from the end of the imports to the first handler; most memory while 20,000 of them run",
    "fleet": "drain by one, two and three daemons, by the database's times",
    "callers": "one task a transaction, one after the other, by so many processes at once; all of them together; "
    "slow disk: each commit flushes for 15 ms and more (commit_delay)",
    "callers' transactions": "a row of the caller's and a task in the caller's own transaction; raw: the row alone; "
    "slow disk as above",
    "callers' batches": "100 tasks a transaction, by so many processes at once",
    "callers with limits": "8 callers one by one: with a key each, with concurrency keys, of a capped and a rated kind",
    "callers beside daemons": "8 callers one by one: tasks stored a second, and ended by the daemons meanwhile",
    "idle": "a daemon with nothing to do, its child processes included, over 10 s",
}

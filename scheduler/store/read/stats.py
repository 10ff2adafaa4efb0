"""How often attempts ended how, and how long they ran and waited, over a time: read from the rollups."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import DAY, HOUR, MINUTE, Histogram, Measure
from scheduler.store.db.tx import Tx
from scheduler.store.rollups import FINISHED, window

FAILURES = (*FINISHED[1:], AttemptEnd.LOST)
_READ = (
    "SELECT kind, outcome, measure, bucket, sum(number) AS number, sum(total) AS total FROM schedd_rollups "
    f"WHERE span IN ({MINUTE}, {HOUR}, {DAY}) AND at >= :since AND at < :until"
)


class Numbers:
    """The numbers of a kind, or of several."""

    def __init__(self) -> None:
        self.outcomes: dict[AttemptEnd, int] = {}
        self.run = Histogram()  # of attempts that succeeded or failed
        self.wait = Histogram()

    def add(self, outcome: AttemptEnd, measure: int, bucket: int, number: int, total: int) -> None:
        """Add one bucket of the rollups."""
        if measure == Measure.RUN:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + number
            if outcome in FINISHED:
                self.run.add(bucket, number, total)
        elif measure == Measure.WAIT:
            self.wait.add(bucket, number, total)

    @property
    def attempts(self) -> int:
        """How many attempts have ended, however they did."""
        return sum(self.outcomes.values())

    @property
    def failure_rate(self) -> float | None:
        """The share of failures among the attempts that succeeded, failed or were lost; None if there are none."""
        failed = sum(self.outcomes.get(end, 0) for end in FAILURES)
        finished = failed + self.outcomes.get(AttemptEnd.SUCCEEDED, 0)
        return failed / finished if finished else None


class StatsRecord(NamedTuple):
    """The numbers of a time (microseconds): of all, and by kind, the most frequent first."""

    since: int
    until: int
    total: Numbers
    kinds: dict[str, Numbers]


def stats(tx: Tx, since: int, until: int, *, kind: str | None = None, queue: str | None = None) -> StatsRecord:
    """The numbers from ``since`` to ``until`` (microseconds). Reads rollups only, however many tasks there are."""
    since, until = window(tx.now, since, until)
    sql, bound = _READ, {"since": since, "until": until}
    asked = {name: value for name, value in (("kind", kind), ("queue", queue)) if value is not None}
    for name in asked:
        sql += f" AND {name} = :{name}"
    rows = tx.run(f"{sql} GROUP BY kind, outcome, measure, bucket", **(bound | asked))
    total, found = Numbers(), dict[str, Numbers]()
    for row in rows:
        end = AttemptEnd.from_code(row.outcome)
        for numbers in (total, found.setdefault(row.kind, Numbers())):
            numbers.add(end, row.measure, row.bucket, int(row.number), int(row.total))
    ordered = sorted(found.items(), key=lambda item: (-item[1].attempts, item[0]))
    return StatsRecord(since, until, total, dict(ordered))

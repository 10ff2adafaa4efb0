"""How many attempts ended in each minute: for a chart, from the rollups."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import MINUTE, Measure
from scheduler.ports import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.read.stats import FAILURES
from scheduler.store.rollups import MINUTES_KEPT, floor

_READ = (
    "SELECT at, outcome, sum(number) AS number FROM schedd_rollups "
    f"WHERE span = {MINUTE} AND at >= :since AND at <= :now AND measure = {int(Measure.RUN)} GROUP BY at, outcome"
)


class Minute(NamedTuple):
    """The attempts that ended in a minute. ``at``: its beginning in microseconds."""

    at: int
    succeeded: int
    failed: int
    other: int


def minutes(tx: Tx, count: int = 60) -> list[Minute]:
    """The last minutes, the present one last; at most as many as are kept as minutes."""
    count = min(count, MINUTES_KEPT // MINUTE)
    length = MINUTE * SECOND
    present = floor(tx.now, MINUTE)
    found: dict[int, list[int]] = {present - length * back: [0, 0, 0] for back in reversed(range(count))}
    failures = {end.code for end in FAILURES}
    for at, outcome, number in tx.run(_READ, since=present - length * (count - 1), now=present):
        if at in found:
            place = 0 if outcome == AttemptEnd.SUCCEEDED.code else 1 if outcome in failures else 2
            found[at][place] += int(number)
    return [Minute(at, *numbers) for at, numbers in found.items()]

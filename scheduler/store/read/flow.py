"""How fast tasks come into a queue and leave it, and when its backlog is worked off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.lanes import kind_of
from scheduler.model.rollup import MINUTE
from scheduler.model.texts import counted, rfc3339, span_text
from scheduler.ports import SECOND
from scheduler.store import pauses
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE
from scheduler.store.read.alert_facts import departures
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.rollups import floor
from scheduler.store.tasks.claim import LaneHead

WINDOW = 10 * MINUTE * SECOND  # that rates are taken over, at most
_SHORTEST = 2 * MINUTE * SECOND  # from then on a backlog has rates
_QUEUES = 5  # that are looked at, the oldest backlogs first
_MAX_READY = 50_000  # tasks of a queue that are looked at
_MORE = 1.02  # out over in, from which on a backlog is worked off

# The tasks ready now that came due within the window: the ones that left in it had been due for longer.
_READY = (
    "SELECT count(*) AS number, coalesce(sum(CASE WHEN run_at > :since THEN 1 ELSE 0 END), 0) AS came FROM "
    f"(SELECT run_at FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND run_at <= :now LIMIT {_MAX_READY}) r"
)


class Flow(NamedTuple):
    """The backlog of a queue. ``since``: its oldest task is ready, microseconds; ``arriving``, ``leaving``: tasks a
    second. ``drained_in``: microseconds until it is worked off at these rates; None: never. ``capped``: there are more
    tasks than were looked at, and how many arrive is at least what is said."""

    queue: str
    number: int
    since: int
    arriving: float
    leaving: float
    drained_in: int | None
    capped: bool = False

    def describe(self) -> str:
        """A sentence with all of it."""
        return (
            f"queue {self.queue}: {self._rates()}, the oldest since {rfc3339(self.since, exact=False)}; {self._end()}"
        )

    def prospect(self) -> str:
        """How it goes and when it ends, for a sentence that has named the queue and its oldest task."""
        return f"{self._rates()}; {self._end()}"

    def _rates(self) -> str:
        number = f"{self.number} tasks or more" if self.capped else counted(self.number, "task")
        arriving = f"{_rate(self.arriving)}{' or more' if self.capped else ''}"
        return f"{number} ready, {arriving} in, {_rate(self.leaving)} out a second"

    def _end(self) -> str:
        if self.drained_in is None:
            return f"it never drains at that rate{', and grows' if self.arriving > self.leaving else ''}"
        return f"it drains in about {span_text(self.drained_in)}"


class Leaving:
    """How fast tasks leave the queues: the counts by minute are read once for each window."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._found: dict[int, dict[str, int]] = {}

    def queues(self) -> list[str]:
        """Those that tasks have left lately."""
        return list(self._since(WINDOW)[1])

    def rate(self, queue: str, window: int = WINDOW) -> float:
        """Tasks a second, since the minute in which the window begins."""
        begin, left = self._since(window)
        return left.get(queue, 0) * SECOND / (self._tx.now - begin)

    def _since(self, window: int) -> tuple[int, dict[str, int]]:
        begin = floor(self._tx.now - window, MINUTE)
        if begin not in self._found:
            self._found[begin] = departures(self._tx, window)
        return begin, self._found[begin]


def window_of(tx: Tx, since: int) -> int | None:
    """Over how long a backlog that is this old has rates of its own (microseconds); None: it is too young."""
    age = tx.now - since
    return min(WINDOW, age) if age >= _SHORTEST else None


def flows(tx: Tx, due: Sequence[LaneHead]) -> list[Flow]:
    """Of the queues whose backlog is some minutes old and held by no pause. ``due``: the lanes with a due task."""
    paused = pauses.records(tx)
    oldest: dict[str, int] = {}
    held: set[str] = set()
    for head in due:
        oldest[head.queue] = min(oldest.get(head.queue, head.run_at), head.run_at)
        if any(pause.holds(head.queue, kind_of(head.lane)) for pause in paused):
            held.add(head.queue)
    old = sorted((at, queue) for queue, at in oldest.items() if queue not in held and tx.now - at >= _SHORTEST)
    if not old:
        return []
    left = Leaving(tx)
    return [_flow(tx, queue, at, left) for at, queue in old[:_QUEUES]]


def flows_now(tx: Tx) -> list[Flow]:
    """The same, where nobody has read the lanes yet."""
    return flows(tx, [head for head in heads_of_queues(tx) if head.run_at <= tx.now])


def _flow(tx: Tx, queue: str, since: int, left: Leaving) -> Flow:
    window = min(WINDOW, tx.now - since)
    row = tx.run(_READY, queue=queue, now=tx.now, since=tx.now - window).one()
    arriving, leaving = row.came * SECOND / window, left.rate(queue, window)
    capped = row.number >= _MAX_READY
    drained = None
    if not capped and leaving > _MORE * arriving:
        drained = round(row.number / (leaving - arriving) * SECOND)
    return Flow(queue, int(row.number), since, arriving, leaving, drained, capped)


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"

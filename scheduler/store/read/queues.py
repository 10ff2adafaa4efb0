"""The queues: what waits in each, for how long, who serves it, what holds it back, how fast tasks come and go.

Costs hang on how many queues there are: of each the tasks are counted up to a bound, in the order of one index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.model.live_settings import QUEUE, shown
from scheduler.model.pauses import QUEUE as PAUSED
from scheduler.model.state import RETRY, RUNNING, SCHEDULED, SUSPENDED, WAITING
from scheduler.ports import SECOND
from scheduler.store import pauses, settings
from scheduler.store.db.tx import Tx
from scheduler.store.pauses import Pause
from scheduler.store.predicates import CLAIMABLE, HELD
from scheduler.store.read.flow import WINDOW, Leaving, window_of
from scheduler.store.read.names import claimable_queues
from scheduler.store.read.ready import REMEDIES, first_of, ready_since, unserved_reason
from scheduler.store.read.unserved import left_behind
from scheduler.store.read.workers import Fleet, fleet_of, workers
from scheduler.store.settings import StoredSetting
from scheduler.store.tasks.claim import LaneHead, lane_heads

if TYPE_CHECKING:
    import sqlalchemy as sa

MOST_QUEUES = 1_000  # that are listed, by name
_MOST = 10_000  # tasks of a queue that are looked at
_LEAST, _IN_ALL = 500, 200_000  # the same where there are many queues
_MAX_LANES = 200  # of a queue with more tasks than that
_STATES = 3  # that share an index: so many times as many tasks of it are looked at
_FIRST = 5  # tasks among which the one that has been ready for longest is looked for

_BOUNDED = (
    f"SELECT id, state, run_at FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue "
    "ORDER BY queue, priority, lane, run_at, id LIMIT :most"
)
_COUNT = (
    "SELECT CASE WHEN run_at <= :now THEN 1 ELSE 0 END AS due, state, count(*) AS n "
    f"FROM ({_BOUNDED}) b GROUP BY due, state"
)
_CAME = f"SELECT count(*) FROM ({_BOUNDED}) b WHERE run_at > :since AND run_at <= :now"
_OLDEST = (
    "SELECT t.id, t.kind, t.schema_version, t.queue, t.priority, t.lane, t.run_at FROM schedd_tasks t WHERE t.id IN "
    f"(SELECT id FROM ({_BOUNDED}) b ORDER BY run_at, id LIMIT {_FIRST}) ORDER BY t.run_at, t.id"
)
_OF_LANE = (
    f"FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND priority = :priority AND lane = :lane "
    "AND run_at {} :now ORDER BY run_at, id LIMIT :most"
)
_DUE_OF_LANE = (
    "SELECT count(*) AS n, coalesce(sum(CASE WHEN run_at > :since THEN 1 ELSE 0 END), 0) AS came FROM "
    f"(SELECT run_at {_OF_LANE.format('<=')}) d"
)
_LATER_OF_LANE = f"SELECT state, count(*) AS n FROM (SELECT state {_OF_LANE.format('>')}) d GROUP BY state"
_BY_STATE = (
    "SELECT queue, {0} AS state, count(*) AS n FROM (SELECT queue, state FROM schedd_tasks WHERE {1} LIMIT :most) g "
    "GROUP BY {2}"
)
_HELD = _BY_STATE.format("state", f"{HELD} ORDER BY worker, lane", "queue, state")
_WAITING = _BY_STATE.format(WAITING, f"state = {WAITING} ORDER BY id", "queue")
_NOT_DUE = (
    "SELECT queue, count(*) AS n, sum(CASE WHEN run_at > :now THEN 1 ELSE 0 END) AS later FROM (SELECT queue, run_at "
    f"FROM schedd_tasks WHERE state >= {RETRY} AND state <= {SUSPENDED} AND state = {{}} ORDER BY state "
    "LIMIT :most) g GROUP BY queue"
)
_WAITS = {SCHEDULED: "later", RETRY: "retry", SUSPENDED: "suspended"}  # of tasks that are not due


class QueueRecord(NamedTuple):
    """One queue. ``counts``: tasks that are ready (due, of whatever state), and of the others later (scheduled),
    retry, suspended; held (claimed or running), running, waiting (for other tasks).

    ``at_least``: the counts that may be higher. ``oldest``: since when a task is ready, microseconds. ``workers``:
    live ones that claim from it, and executors. ``unserved``: why none of them would run what has waited for longest;
    ``last``: which worker did. ``pause``: of the queue or of everything. ``arriving``, ``leaving``: tasks a second.
    """

    name: str
    counts: Counter[str]
    at_least: frozenset[str]
    oldest: int | None
    workers: tuple[str, ...]
    unserved: str | None
    last: str | None
    remedy: str | None
    pause: Pause | None
    limits: StoredSetting | None
    arriving: float
    leaving: float

    @property
    def max_concurrency(self) -> int | None:
        """How many tasks of it may be held at a time; None: any number."""
        found: int | None = self._limit("max_concurrency")
        return found

    @property
    def rate_limit(self) -> str | None:
        """How many may start in a time, such as ``100/min``; None: any number."""
        found: str | None = self._limit("rate_limit")
        return found

    def _limit(self, name: str) -> Any:
        return None if self.limits is None else shown(self.limits.value).get(name)

    @property
    def unserved_text(self) -> str | None:
        """A sentence of why nobody runs its tasks, who did last, and what to do."""
        if self.unserved is None:
            return None
        last = "" if self.last is None else f"; {self.last}"
        return f"queue {self.name}: {self.unserved}{last}. {self.remedy}"


class Queues(NamedTuple):
    """Queues by name; ``more``: there may be others."""

    rows: list[QueueRecord]
    more: bool


class _Backlog(NamedTuple):
    """What can be claimed of a queue. ``first``: tasks that wait for longest."""

    counts: Counter[str]
    at_least: frozenset[str]
    first: list[sa.Row[Any]]
    oldest: int | None
    came: int  # of the ready ones, within the window of the oldest


def queues(tx: Tx, limit: int = MOST_QUEUES, most: int = _MOST) -> Queues:
    """The queues of tasks that have not ended, of live workers, of pauses and limits, and those that tasks left lately.

    ``most``: tasks of each that are looked at.
    """
    found = workers(tx)
    fleet, left = fleet_of(tx, found), Leaving(tx)
    held, some_held = _by_state(tx, _HELD, most)
    waiting, some_waiting = _by_state(tx, _WAITING, most)
    not_due, some_not_due = _not_due(tx, most)
    paused = {one.name: one for one in pauses.records(tx) if one.scope == PAUSED}
    everything = pauses.of_everything(tx)
    limits = {one.name: one for one in settings.records(tx) if one.scope == QUEUE}
    claimable = claimable_queues(tx, limit + 1)
    served = {name for worker in found if worker.alive for name in worker.queues} - {"*"}
    names = sorted({*claimable, *held, *waiting, *served, *paused, *limits, *left.queues()})
    most = max(min(_LEAST, most), min(most, _IN_ALL // max(1, len(names))))
    rows = []
    for name in names[:limit]:
        backlog = _backlog(tx, name, most)
        counts, at_least = backlog.counts, set(backlog.at_least)
        for state in {"retry", "suspended"} & at_least:
            counts[state] = max(counts[state], not_due[state][name])
            if state not in some_not_due:
                at_least.discard(state)
        counts["held"], counts["running"] = sum(held.get(name, {}).values()), held.get(name, {}).get(RUNNING, 0)
        counts["waiting"] = sum(waiting.get(name, {}).values())
        at_least |= {"held", "running"} if some_held else set()
        at_least |= {"waiting"} if some_waiting else set()
        window = None if backlog.oldest is None else window_of(tx, backlog.oldest)
        if window is None:  # what came within the time has left, or is ready
            leaving = left.rate(name)
            arriving = leaving + counts["ready"] * SECOND / WINDOW
        else:
            leaving, arriving = left.rate(name, window), backlog.came * SECOND / window
        rows.append(
            QueueRecord(
                name,
                counts,
                frozenset(at_least),
                backlog.oldest,
                _serving(fleet, name),
                *_unserved(tx, fleet, backlog.first),
                everything or paused.get(name),
                limits.get(name),
                arriving,
                leaving,
            )
        )
    return Queues(rows, len(names) > limit)


def _by_state(tx: Tx, statement: str, most: int) -> tuple[dict[str, dict[int, int]], bool]:
    """Tasks by queue and state, and whether there may be more."""
    found: dict[str, dict[int, int]] = {}
    rows = tx.run(statement, most=most).fetchall()
    for row in rows:
        found.setdefault(row.queue, {})[row.state] = row.n
    return found, sum(row.n for row in rows) >= most


def _not_due(tx: Tx, most: int) -> tuple[dict[str, Counter[str]], frozenset[str]]:
    """Retries and suspended tasks by queue that are not due, and the states that may have more: a backlog of scheduled
    tasks, which are in one index with them, would hide them."""
    found: dict[str, Counter[str]] = {}
    some = set()
    for code in (RETRY, SUSPENDED):
        rows = tx.run(_NOT_DUE.format(code), most=most, now=tx.now).fetchall()
        found[_WAITS[code]] = Counter({row.queue: int(row.later or 0) for row in rows})
        if sum(row.n for row in rows) >= most:
            some.add(_WAITS[code])
    return found, frozenset(some)


def _backlog(tx: Tx, queue: str, most: int) -> _Backlog:
    rows = tx.run(_COUNT, queue=queue, now=tx.now, most=most).fetchall()
    if sum(row.n for row in rows) >= most:
        return _long_backlog(tx, queue, most)
    counts = Counter[str]()
    for row in rows:
        counts["ready" if row.due else _WAITS[row.state]] += row.n
    first = list(tx.run(_OLDEST, queue=queue, most=most)) if rows else []
    oldest = _oldest(tx, first)
    window = None if oldest is None else window_of(tx, oldest)
    came = 0
    if window is not None:
        bound = {"queue": queue, "now": tx.now, "since": tx.now - window, "most": most}
        came = tx.run(_CAME, **bound).scalar_one()
    return _Backlog(counts, frozenset(), first, oldest, int(came))


def _long_backlog(tx: Tx, queue: str, most: int) -> _Backlog:
    """The same lane by lane, so that tasks that are due much later hide none that is ready."""
    heads = [head for head in lane_heads(tx, LaneHead(queue, "", -1, 0), _MAX_LANES + 1) if head.queue == queue]
    cut, heads = len(heads) > _MAX_LANES, sorted(heads[:_MAX_LANES], key=lambda head: head.run_at)
    first = [row for row in (first_of(tx, head) for head in heads[:_FIRST]) if row is not None]
    oldest = _oldest(tx, first)
    window = None if oldest is None else window_of(tx, oldest)
    counts, came, later = Counter[str](), 0, 0
    for head in heads:
        bound = {"queue": queue, "priority": head.priority, "lane": head.lane, "now": tx.now}
        if head.run_at <= tx.now and counts["ready"] < most:
            since = tx.now - (window or 0)
            row = tx.run(_DUE_OF_LANE, **bound, since=since, most=most - counts["ready"]).one()
            counts["ready"] += row.n
            came += row.came
        if later < _STATES * most:
            for row in tx.run(_LATER_OF_LANE, **bound, most=_STATES * most - later):
                counts[_WAITS[row.state]] += row.n
                later += row.n
    at_least = {"ready"} if cut or counts["ready"] >= most else set()
    at_least |= set(_WAITS.values()) if cut or later >= _STATES * most else set()
    return _Backlog(counts, frozenset(at_least), first, oldest, came)


def _oldest(tx: Tx, first: Iterable[sa.Row[Any]]) -> int | None:
    """Since when one of these is ready, the earliest by their due times first."""
    found: int | None = None
    for row in first:
        if row.run_at > tx.now or (found is not None and row.run_at >= found):
            break
        since = ready_since(tx, row.id, row.run_at)
        found = since if found is None else min(found, since)
    return found


def _serving(fleet: Fleet, queue: str) -> tuple[str, ...]:
    able = [worker.label for worker in fleet.claiming if worker.serves_queue(queue)]
    executors = {one.name for one in (fleet.places(queue), fleet.starts_workers(queue)) if one is not None}
    return (*able, *(f"executor {name}" for name in sorted(executors)))


def _unserved(tx: Tx, fleet: Fleet, first: list[sa.Row[Any]]) -> tuple[str | None, str | None, str | None]:
    """Why no worker would run the task that has waited for longest, which worker did last, and what to do."""
    reason = unserved_reason(first[0], fleet) if first else None
    if reason is None:
        return None, None, None
    if reason.startswith("no live worker serves") or reason == fleet.no_worker:
        left = left_behind(tx, fleet, first[0].queue, first[0].kind)
        return reason, left.last, left.remedy
    return reason, None, REMEDIES["unserved"]

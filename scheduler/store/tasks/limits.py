"""Caps and rates of kinds, lanes and queues, over all workers.

A task is claimed only if each limit that it falls under has room: its kind's, its lane's, its queue's. They are looked
at in the claim's own transaction, under the lock of the kind's row, and of the queue's among the live settings: on
PostgreSQL one worker at a time claims of a limited kind or queue, and the others pass it over instead of waiting;
SQLite's one writer needs no lock. A cap counts the rows that are held, so a crash leaks nothing; a rate counts starts
(see ``model/rate.py``) in a small table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scheduler.model.lanes import (
    FAIR_LANE,
    LANE_SEPARATOR,
    PLACED_LANE,
    QUARANTINE_LANE,
    RANKED_LANE,
    SIZED_LANE,
    base_lane,
    is_weight,
    kind_of,
)
from scheduler.model.live_settings import KEY, KIND, QUEUE, WEIGHT, decode
from scheduler.model.rate import Rate
from scheduler.store.broken_rows import options_of
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

_NONE: Mapping[str, Any] = MappingProxyType({})
_LIVE = f"(SELECT s.value FROM schedd_settings s WHERE s.scope = '{KIND}' AND s.name = t.name)"


class Limit(NamedTuple):
    """``cap``: tasks held at a time; ``rate``: attempt starts; ``per_worker``: tasks that one worker holds."""

    cap: int | None = None
    rate: Rate | None = None
    per_worker: int | None = None

    @property
    def shared(self) -> bool:
        """Whether workers share it, so that it must be locked."""
        return self.cap is not None or self.rate is not None


class LimitPlace(NamedTuple):
    """What a limit is of. ``scope``: KIND, KEY (``name`` is the lane), or QUEUE."""

    scope: str
    name: str

    @property
    def lock(self) -> LimitPlace:
        """The place whose row is locked for it: a kind's for its lanes."""
        return LimitPlace(KIND, kind_of(self.name)) if self.scope == KEY else self

    @property
    def starts(self) -> str:
        """The name under which its starts are counted; no kind and no lane begins like that of a queue."""
        return f"{LANE_SEPARATOR}{self.name}" if self.scope == QUEUE else self.name


class Headroom(NamedTuple):
    """How many tasks may be claimed now under one limit.

    ``held``: tasks that count under its cap. ``starts``: how many attempts the rate permits. ``again``: when it permits
    one, ``now`` if at once.
    """

    limit: Limit
    held: int
    starts: int | None
    again: int

    @property
    def free(self) -> int | None:
        """How many more the cap permits; None: no cap."""
        return None if self.limit.cap is None else max(0, self.limit.cap - self.held)

    @property
    def most(self) -> int | None:
        """How many more the cap and the rate permit; None: no limit."""
        return min((n for n in (self.free, self.starts) if n is not None), default=None)


class KnownLimits:
    """The limits that hold. ``kinds``: a cap is that of each lane of the kind; ``keys``: what is set of single lanes,
    as it is stored, over that; ``queues``: over all kinds in the queue. ``weights``: set of fairness keys, by kind,
    empty for all of them, and key."""

    def __init__(
        self,
        kinds: Mapping[str, Limit] = _NONE,
        keys: Mapping[str, Mapping[str, Any]] = _NONE,
        queues: Mapping[str, Limit] = _NONE,
        weights: Mapping[tuple[str, str], float] = MappingProxyType({}),
    ) -> None:
        self.kinds = kinds
        self.keys = keys
        self.queues = queues
        self.weights = weights

    def __bool__(self) -> bool:
        return bool(self.kinds or self.queues)

    def concern(self, queue: str, kind: str) -> bool:
        """Whether some limit is of this queue or kind."""
        return kind in self.kinds or queue in self.queues

    def of(self, queue: str, lane: str) -> dict[LimitPlace, Limit]:
        """Each limit that tasks of this lane and queue fall under."""
        kind, found = kind_of(lane), {}
        limit = self.kinds.get(kind)
        if limit is not None:
            lane = base_lane(lane)
            found[LimitPlace(KIND, kind)] = limit._replace(cap=None)
            found[LimitPlace(KEY, lane)] = limit_of({"max_concurrency": limit.cap, **self.keys.get(lane, _NONE)})
        if queue in self.queues:
            found[LimitPlace(QUEUE, queue)] = self.queues[queue]
        return {place: limit for place, limit in found.items() if limit != _UNLIMITED}

    def rate(self, starts: str) -> Rate | None:
        """The rate whose starts are counted under this name."""
        if starts.startswith(LANE_SEPARATOR):
            return self.queues.get(starts[1:], _UNLIMITED).rate
        if LANE_SEPARATOR in starts:
            return limit_of(self.keys.get(starts, _NONE)).rate
        return self.kinds.get(starts, _UNLIMITED).rate

    def served(self, kind: Callable[[str], object], queue: Callable[[str], bool]) -> KnownLimits:
        """Those of these kinds and queues."""
        return KnownLimits(
            {name: limit for name, limit in self.kinds.items() if kind(name)},
            {lane: given for lane, given in self.keys.items() if kind(kind_of(lane))},
            {name: limit for name, limit in self.queues.items() if queue(name)},
            self.weights,
        )

    def as_locked(self, found: Mapping[LimitPlace, Limit]) -> KnownLimits:
        """With what these kinds and queues say now."""
        kinds, queues = (
            {**before, **{place.name: limit for place, limit in found.items() if place.scope == scope}}
            for scope, before in ((KIND, self.kinds), (QUEUE, self.queues))
        )
        return KnownLimits(kinds, self.keys, queues, self.weights)


_UNLIMITED = Limit()


def limit_of(given: Mapping[str, Any]) -> Limit:
    """The limits among a kind's published options, or what an operator has set."""
    rate = given.get("rate_limit")
    cap, per_worker = given.get("max_concurrency"), given.get("max_per_worker")
    return Limit(cap, None if rate is None else Rate(*rate), per_worker)


def known(tx: Tx) -> KnownLimits:
    """The limits that hold: as the newest of the workers' programs published them for their kinds, and as operators
    have set them."""
    rows = tx.rows(
        f"SELECT '{KIND}', t.name, t.options, {_LIVE} FROM schedd_kinds t "
        f"UNION ALL SELECT s.scope, s.name, NULL, s.value FROM schedd_settings s WHERE s.scope IN ('{KEY}', '{QUEUE}')"
    )
    keys = {name: decode(live) for scope, name, _, live in rows if scope == KEY}
    kinds = {
        name: limit_of({**options_of(declared), **decode(live)})
        for scope, name, declared, live in rows
        if scope == KIND
    }
    queues = {name: limit_of(decode(live)) for scope, name, _, live in rows if scope == QUEUE}
    with_keys = {kind_of(name) for name, given in keys.items() if given.keys() - {WEIGHT}}
    weights = {_key_of(name): float(given[WEIGHT]) for name, given in keys.items() if is_weight(given.get(WEIGHT))}
    return KnownLimits(
        {name: limit for name, limit in kinds.items() if limit != _UNLIMITED or name in with_keys},
        keys,
        {name: limit for name, limit in queues.items() if limit != _UNLIMITED},
        weights,
    )


def _key_of(name: str) -> tuple[str, str]:
    kind, _, key = name.partition(LANE_SEPARATOR)
    return kind, key


def lock(tx: Tx, places: Iterable[LimitPlace]) -> dict[LimitPlace, Limit]:
    """Lock these kinds and queues and return their limits as they are now.

    One is left out while another worker claims its tasks, or if its row is gone. Nothing is waited for, so that no
    order of locks can end in a deadlock.
    """
    names: dict[str, list[tuple[str]]] = {KIND: [], QUEUE: []}
    for place in sorted(set(places)):
        names[place.scope].append((place.name,))
    source, found = tx.dialect.rows({"name": str}), {}
    if names[KIND]:
        rows = tx.run(
            f"SELECT t.name, t.options, {_LIVE} AS live FROM {source} j JOIN schedd_kinds t ON t.name = j.name "
            f"ORDER BY t.name {tx.dialect.skip_locked}",
            rows=bind_rows(names[KIND]),
        )
        found = {LimitPlace(KIND, row.name): limit_of({**options_of(row.options), **decode(row.live)}) for row in rows}
    if names[QUEUE]:
        rows = tx.run(
            f"SELECT t.name, t.value FROM {source} j JOIN schedd_settings t ON t.scope = '{QUEUE}' AND t.name = j.name "
            f"ORDER BY t.name, t.scope {tx.dialect.skip_locked}",
            rows=bind_rows(names[QUEUE]),
        )
        found |= {LimitPlace(QUEUE, row.name): limit_of(decode(row.value)) for row in rows}
    return found


def headroom(tx: Tx, limits: Mapping[LimitPlace, Limit], *, locked: bool = True) -> dict[LimitPlace, Headroom]:
    """The headroom under each of these limits; not ``locked``: for display.

    In statements of their own, after the lock: on PostgreSQL only they see what the last holder has claimed.
    """
    capped = [place for place, limit in limits.items() if limit.cap is not None]
    by_key = [place.name for place in capped if place.scope == KEY]
    lanes = held(tx, by_key)
    queues = held_of_queues(tx, [place.name for place in capped if place.scope == QUEUE])
    made = {}
    for place, limit in limits.items():
        starts, again = None, tx.now
        if limit.rate is not None:
            if locked:
                _set_back(tx, place.starts, limit.rate)
            starts, again = remaining(tx, place.starts, limit.rate)
        number = (queues if place.scope == QUEUE else lanes).get(place.name, 0)
        made[place] = Headroom(limit, number, starts, again)
    return made


def read(tx: Tx, queue: str, lane: str) -> dict[LimitPlace, Headroom]:
    """The headroom of tasks of this lane and queue under each limit of theirs, without a lock, for display."""
    return headroom(tx, known(tx).of(queue, lane), locked=False)


# From one worker that holds something to the next, so that only rows of these lanes are read: the index is
# (worker, lane), and neither all workers there ever were nor all that they hold are walked.
_HOLDERS = """
WITH RECURSIVE w(id) AS (
  SELECT min(worker) FROM schedd_tasks WHERE state >= 4 AND state <= 5
  UNION ALL
  SELECT (SELECT min(n.worker) FROM schedd_tasks n WHERE n.state >= 4 AND n.state <= 5 AND n.worker > w.id)
  FROM w WHERE w.id IS NOT NULL
)
"""
_HOLDING = "SELECT id FROM w WHERE id IS NOT NULL"
# Tasks under one cap may be in lanes with marks, of which many are possible: from one such lane that a worker holds to
# the next. Lanes that begin with one mark stand side by side in the index, unless the database's collation passes over
# marks: then all lanes that workers hold are looked at.
_STARTS = (QUARANTINE_LANE, PLACED_LANE, RANKED_LANE, SIZED_LANE, FAIR_LANE)
_ORDERLY = " AND ".join(f"('{mark}b' < 'a') = ('{mark}a' < 'z')" for mark in _STARTS)
_HELD_LANES = "t.worker = {worker} AND t.state >= 4 AND t.state <= 5"
_HELD = f"""{_HOLDERS}, m(mark) AS (
  SELECT mark FROM ({" UNION ALL ".join(f"SELECT '{mark}' AS mark" for mark in _STARTS)}) s WHERE {_ORDERLY}
  UNION ALL SELECT '' WHERE NOT ({_ORDERLY})
), l(worker, mark, lane) AS (
  SELECT h.id, m.mark, (SELECT min(t.lane) FROM schedd_tasks t
    WHERE {_HELD_LANES.format(worker="h.id")} AND t.lane >= m.mark)
  FROM {{holding}} h CROSS JOIN m
  UNION ALL
  SELECT l.worker, l.mark, (SELECT min(t.lane) FROM schedd_tasks t
    WHERE {_HELD_LANES.format(worker="l.worker")} AND t.lane > l.lane)
  FROM l WHERE substr(l.lane, 1, length(l.mark)) = l.mark
)
SELECT l.lane, (SELECT count(*) FROM schedd_tasks t WHERE {_HELD_LANES.format(worker="l.worker")} AND t.lane = l.lane)
FROM l WHERE substr(l.lane, 1, length(l.mark)) = l.mark AND EXISTS (SELECT 1 FROM {{source}} j WHERE l.lane = j.lane
  OR l.lane = '{QUARANTINE_LANE}' || j.lane OR substr(l.lane, length(l.lane) - length(j.lane)) = :separator || j.lane)
UNION ALL
SELECT j.lane, (SELECT count(*) FROM schedd_tasks t WHERE {_HELD_LANES.format(worker="h.id")} AND t.lane = j.lane)
FROM {{holding}} h CROSS JOIN {{source}} j WHERE {_ORDERLY}
"""
# All that each worker holds is read, which slots bound; a queue in the index would cost each claim of any queue.
_HELD_OF_QUEUES = f"""{_HOLDERS}
SELECT j.queue, (SELECT count(*) FROM schedd_tasks t
  WHERE t.worker = h.id AND t.queue = j.queue AND t.state >= 4 AND t.state <= 5) AS n
FROM {{holding}} h CROSS JOIN {{source}} j
"""


def held(tx: Tx, lanes: Iterable[str]) -> dict[str, int]:
    """How many tasks are held in each of these lanes, whatever their marks: in quarantine, of executors, ranks and
    fairness keys."""
    asked = sorted(lanes)
    counted = dict.fromkeys(asked, 0)
    if asked:
        source, holding = tx.dialect.rows({"lane": str}), tx.dialect.few(_HOLDING, "id")
        sql = _HELD.format(source=source, holding=holding)
        for lane, number in tx.rows(sql, rows=bind_rows([(lane,) for lane in asked]), separator=LANE_SEPARATOR):
            if (base := base_lane(lane)) in counted:
                counted[base] += number
    return counted


def held_of_queues(tx: Tx, queues: Iterable[str]) -> dict[str, int]:
    """How many tasks are held of each of these queues."""
    asked = sorted(queues)
    counted = dict.fromkeys(asked, 0)
    if asked:
        source, holding = tx.dialect.rows({"queue": str}), tx.dialect.few(_HOLDING, "id")
        sql = _HELD_OF_QUEUES.format(source=source, holding=holding)
        for queue, number in tx.rows(sql, rows=bind_rows([(queue,) for queue in asked])):
            counted[queue] += number
    return counted


def remaining(tx: Tx, name: str, rate: Rate) -> tuple[int, int]:
    """How many attempts the rate permits now, and when it permits one: ``now`` if at once. ``name``: of the starts."""
    rows = tx.run(
        "SELECT until, starts FROM schedd_starts WHERE kind = :kind AND until > :before",
        kind=name,
        before=tx.now - rate.period,
    )
    counted = [(row.until, row.starts) for row in rows]
    return rate.left(counted, tx.now), rate.again(counted, tx.now)


def _set_back(tx: Tx, name: str, rate: Rate) -> None:
    """Move starts that lie ahead of the clock to now: it went back, and they would count too long."""
    latest = rate.until(tx.now, rate.max_start_window)
    bound = {"kind": name, "latest": latest}
    later = "FROM schedd_starts WHERE kind = :kind AND until > :latest"
    ahead = tx.run(f"SELECT sum(starts) {later}", **bound).scalar()
    if ahead is not None:
        tx.run(f"DELETE {later}", **bound)
        count(tx, name, rate, latest, int(ahead))


def count(tx: Tx, name: str, rate: Rate, until: int, starts: int) -> None:
    """Count attempts that may start until then, and forget what is too old to matter."""
    bound = {"kind": name, "until": until, "starts": starts, "before": tx.now - rate.period}
    for sql in (
        "DELETE FROM schedd_starts WHERE kind = :kind AND until <= :before",
        "INSERT INTO schedd_starts (kind, until, starts) VALUES (:kind, :until, :starts) "
        "ON CONFLICT (kind, until) DO UPDATE SET starts = schedd_starts.starts + excluded.starts",
    ):
        tx.run(sql, **bound)


def refund(tx: Tx, name: str, until: int, starts: int) -> None:
    """Refund starts of claims whose handlers never began, as their worker reports.

    Skips the refund while another worker claims under it: the rate is then stricter than needed.
    """
    tx.run(
        "UPDATE schedd_starts SET starts = CASE WHEN starts > :starts THEN starts - :starts ELSE 0 END "
        "WHERE (kind, until) IN (SELECT t.kind, t.until FROM schedd_starts t "
        f"WHERE t.kind = :kind AND t.until = :until {tx.dialect.skip_locked})",
        kind=name,
        until=until,
        starts=starts,
    )

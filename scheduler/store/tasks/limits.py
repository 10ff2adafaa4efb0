"""Caps and rates of kinds, over all workers.

Both are looked at in the claim's own transaction, under the lock of the kind's row: on PostgreSQL one worker at a time
claims of a capped kind, and the others pass it over instead of waiting; SQLite's one writer needs no lock. A cap
counts the rows that are held, so a crash leaks nothing; a rate counts starts (see ``model/rate.py``) in a small table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scheduler.model.live_settings import KEY, KIND, decode
from scheduler.model.rate import Rate
from scheduler.store.broken_rows import options_of
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import QUARANTINE_LANE, kind_of

_NONE: Mapping[str, int | None] = MappingProxyType({})
_LIVE = f"(SELECT s.value FROM schedd_settings s WHERE s.scope = '{KIND}' AND s.name = t.name)"


class Limit(NamedTuple):
    """A kind's limits. ``cap``: tasks held at a time in one lane; ``rate``: attempt starts; ``lanes``: caps of single
    lanes, which an operator has set."""

    cap: int | None
    rate: Rate | None
    lanes: Mapping[str, int | None] = MappingProxyType({})

    def of(self, lane: str) -> int | None:
        """The cap of this lane; None: it has none."""
        return self.lanes.get(lane, self.cap)

    @property
    def caps(self) -> bool:
        """Whether some lane has a cap."""
        return self.cap is not None or any(cap is not None for cap in self.lanes.values())


class Headroom(NamedTuple):
    """How many tasks of one kind may be claimed now.

    ``held``: by lane, of the lanes that were read. ``starts``: how many attempts the rate permits. ``again``: when it
    permits one, ``now`` if at once.
    """

    limit: Limit
    held: dict[str, int]
    starts: int | None
    again: int

    def of(self, lane: str) -> int | None:
        """How many more the cap permits in this lane; None: no cap. Raises KeyError for a lane not read."""
        cap = self.limit.of(lane)
        return None if cap is None else max(0, cap - self.held[lane])


def limit_of(
    options: Mapping[str, Any], live: str | None = None, lanes: Mapping[str, int | None] = _NONE
) -> Limit | None:
    """The limits among a kind's published options, with what an operator has set (``live``, JSON) over them, and the
    caps of single lanes; None if it has none."""
    given = {**options, **decode(live)}
    cap, rate = given.get("max_concurrency"), given.get("rate_limit")
    if cap is None and rate is None and not lanes:
        return None
    return Limit(cap, None if rate is None else Rate(*rate), lanes)


def known(tx: Tx) -> dict[str, Limit]:
    """The kinds with a cap or a rate: as the newest of the workers' programs published them, and as operators have set
    them."""
    rows = tx.rows(
        f"SELECT t.name, t.options, {_LIVE}, 0 FROM schedd_kinds t "
        f"UNION ALL SELECT s.name, NULL, s.value, 1 FROM schedd_settings s WHERE s.scope = '{KEY}'"
    )
    lanes = _caps_of_lanes((name, live) for name, _, live, of_key in rows if of_key)
    found = (
        (name, limit_of(options_of(options), live, lanes.get(name, _NONE)))
        for name, options, live, of_key in rows
        if not of_key
    )
    return {name: limit for name, limit in found if limit is not None}


def _caps_of_lanes(rows: Iterable[tuple[str, str]]) -> dict[str, dict[str, int | None]]:
    """The caps of single lanes, by kind, of rows (lane, value as JSON)."""
    found: dict[str, dict[str, int | None]] = {}
    for lane, value in rows:
        if "max_concurrency" in (given := decode(value)):
            found.setdefault(kind_of(lane), {})[lane] = given["max_concurrency"]
    return found


def base_lane(lane: str) -> str:
    """The lane whose cap counts this lane's tasks: a task in quarantine counts where it came from."""
    return lane.lstrip(QUARANTINE_LANE)


def lock(tx: Tx, lanes: Iterable[str], read: Mapping[str, Limit] = MappingProxyType({})) -> dict[str, Headroom]:
    """Lock the kinds of these lanes and return their headroom. ``read``: what :func:`known` said last.

    A kind is left out while another worker claims its tasks. Counts held tasks in these lanes only: see :func:`held`.
    """
    lanes = set(map(base_lane, lanes))
    names = bind_rows([(name,) for name in sorted({kind_of(lane) for lane in lanes})])
    source = tx.dialect.rows({"name": str})
    rows = tx.run(
        f"SELECT t.name, t.options, {_LIVE} AS live FROM {source} j JOIN schedd_kinds t ON t.name = j.name "
        f"ORDER BY t.name {tx.dialect.skip_locked}",
        rows=names,
    ).fetchall()
    # Statements of their own, after the lock: on PostgreSQL only they see what the last holder has claimed.
    limits = {
        row.name: limit_of(options_of(row.options), row.live, read[row.name].lanes if row.name in read else _NONE)
        or Limit(None, None)
        for row in rows
    }
    for name, limit in limits.items():
        if limit.rate is not None:
            _set_back(tx, name, limit.rate)
    return _rooms(tx, limits, lanes)


def read(tx: Tx, lane: str) -> Headroom | None:
    """The headroom of one lane's kind, without a lock, for display. None: it has no limits."""
    lane, kind = base_lane(lane), kind_of(lane)
    sql = f"SELECT t.options, {_LIVE} AS live FROM schedd_kinds t WHERE t.name = :name"
    row = tx.run(sql, name=kind).first()
    keys = tx.rows(f"SELECT name, value FROM schedd_settings WHERE scope = '{KEY}' AND name = :lane", lane=lane)
    caps = _caps_of_lanes((name, value) for name, value in keys).get(kind, _NONE)
    limit = None if row is None else limit_of(options_of(row.options), row.live, caps)
    return None if limit is None else _rooms(tx, {kind: limit}, [lane])[kind]


def _rooms(tx: Tx, limits: Mapping[str, Limit], lanes: Iterable[str]) -> dict[str, Headroom]:
    capped = [lane for lane in lanes if (limit := limits.get(kind_of(lane))) is not None and limit.of(lane) is not None]
    counted: dict[str, dict[str, int]] = {}
    for lane, number in held(tx, capped).items():
        counted.setdefault(kind_of(lane), {})[lane] = number
    made = {}
    for name, limit in limits.items():
        starts, again = (None, tx.now) if limit.rate is None else remaining(tx, name, limit.rate)
        made[name] = Headroom(limit, counted.get(name, {}), starts, again)
    return made


# From one worker that holds something to the next, so that only rows of these lanes are read: the index is
# (worker, lane), and neither all workers there ever were nor all that they hold are walked.
_HELD = """
WITH RECURSIVE w(id) AS (
  SELECT min(worker) FROM schedd_tasks WHERE state >= 4 AND state <= 5
  UNION ALL
  SELECT (SELECT min(n.worker) FROM schedd_tasks n WHERE n.state >= 4 AND n.state <= 5 AND n.worker > w.id)
  FROM w WHERE w.id IS NOT NULL
)
SELECT j.lane, (SELECT count(*) FROM schedd_tasks t
  WHERE t.worker = w.id AND t.lane = j.lane AND t.state >= 4 AND t.state <= 5) AS n
FROM w CROSS JOIN {source} j WHERE w.id IS NOT NULL
"""


def held(tx: Tx, lanes: Iterable[str]) -> dict[str, int]:
    """How many tasks are held in each of these lanes, with those in quarantine from there."""
    asked = sorted(lanes)
    if not asked:
        return {}
    sql = _HELD.format(source=tx.dialect.rows({"lane": str}))
    rows = tx.rows(sql, rows=bind_rows([(f"{sign}{lane}",) for lane in asked for sign in ("", QUARANTINE_LANE)]))
    counted = dict.fromkeys(asked, 0)
    for lane, number in rows:
        counted[base_lane(lane)] += number
    return counted


def remaining(tx: Tx, kind: str, rate: Rate) -> tuple[int, int]:
    """How many attempts the rate permits now, and when it permits one: ``now`` if at once."""
    rows = tx.run(
        "SELECT until, starts FROM schedd_starts WHERE kind = :kind AND until > :before",
        kind=kind,
        before=tx.now - rate.period,
    )
    counted = [(row.until, row.starts) for row in rows]
    return rate.left(counted, tx.now), rate.again(counted, tx.now)


def _set_back(tx: Tx, kind: str, rate: Rate) -> None:
    """Move starts that lie ahead of the clock to now: it went back, and they would count too long."""
    latest = rate.until(tx.now, rate.max_start_window)
    bound = {"kind": kind, "latest": latest}
    later = "FROM schedd_starts WHERE kind = :kind AND until > :latest"
    ahead = tx.run(f"SELECT sum(starts) {later}", **bound).scalar()
    if ahead is not None:
        tx.run(f"DELETE {later}", **bound)
        count(tx, kind, rate, latest, int(ahead))


def count(tx: Tx, kind: str, rate: Rate, until: int, starts: int) -> None:
    """Count attempts that may start until then, and forget what is too old to matter."""
    bound = {"kind": kind, "until": until, "starts": starts, "before": tx.now - rate.period}
    for sql in (
        "DELETE FROM schedd_starts WHERE kind = :kind AND until <= :before",
        "INSERT INTO schedd_starts (kind, until, starts) VALUES (:kind, :until, :starts) "
        "ON CONFLICT (kind, until) DO UPDATE SET starts = schedd_starts.starts + excluded.starts",
    ):
        tx.run(sql, **bound)


def refund(tx: Tx, kind: str, until: int, starts: int) -> None:
    """Refund starts of claims whose handlers never began, as their worker reports.

    Skips the refund while another worker locks the kind: the rate is then stricter than needed.
    """
    tx.run(
        "UPDATE schedd_starts SET starts = CASE WHEN starts > :starts THEN starts - :starts ELSE 0 END "
        "WHERE (kind, until) IN (SELECT t.kind, t.until FROM schedd_starts t "
        f"WHERE t.kind = :kind AND t.until = :until {tx.dialect.skip_locked})",
        kind=kind,
        until=until,
        starts=starts,
    )

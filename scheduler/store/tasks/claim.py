"""Finding and claiming work.

The ready index is (queue, priority, lane, run_at, id) over claimable rows; a lane is a kind or kind + concurrency key.
A dispatch cycle hops from lane to lane (a loose index scan) and reads only the heads. So it never walks rows of an
unserved queue, an unknown kind or a far future.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.model.lanes import RANKED_LANE, SIZED_LANE, delay_of, kind_of, parts_of, rank_of
from scheduler.model.state import CLAIMED, RUNNING, SUSPENDED, WAITING
from scheduler.model.worker_states import STOPPED
from scheduler.store.db.dialect import Dialect, PostgreSQL, SQLite, bind_rows, fence
from scheduler.store.db.identity import no_transaction
from scheduler.store.db.schema_version import KNOWN
from scheduler.store.db.statements import Columns, numbered, one_row, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, HELD, IS_HELD, claimable

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.store.tasks.ready_children import ReadyChildren

FEW, MANY_LANES = 4, 4  # tasks of a lane that are claimed with those of so many other lanes, on SQLite
HAS_RARE, HAS_PARENTS = 1, 2  # bits of ``extras``: a column of RARE is set; it waits, or has waited, for others


class LaneHead(NamedTuple):
    """The earliest claimable task of a lane and priority: its due time and id (0 if not asked for)."""

    queue: str
    lane: str
    priority: int
    run_at: int
    id: int = 0


class LaneClaim(NamedTuple):
    """Claim up to ``limit`` due tasks of this lane."""

    queue: str
    lane: str
    priority: int
    limit: int


class Within(NamedTuple):
    """Claim of a lane only tasks up to this schema_version, from one place (run_at, id) to another. ``ids``: theirs."""

    version: int
    from_at: int
    from_id: int
    to_at: int
    to_id: int
    ids: Sequence[int] = ()


class Claimed(NamedTuple):
    """All that running an attempt needs; (id, claim) with the worker is the fence."""

    id: int
    claim: int
    attempt: int
    attempt_base: int
    max_attempts: int | None
    retry: str | None
    timeout: int | None
    dead_letter: int
    payload: str | None
    schema_version: int
    key: str | None
    correlation: str | None
    created_at: int
    extras: int
    run_at: int
    queue: str
    lane: str
    priority: int
    kind: str
    claimed_at: int
    # rarely set, so a second statement reads them for the few tasks that have them: each column returned costs time
    payload_ref: str | None = None
    message_type: str | None = None
    causation: str | None = None
    subject: str | None = None
    sequence: int | None = None
    headers: str | None = None
    schedule: str | None = None
    slot: int | None = None
    slot_tz: str | None = None
    missed: int | None = None
    missed_since: int | None = None
    original_id: int | None = None
    max_duration: int | None = None
    expires_at: int | None = None
    epoch: int = 1  # of the store, in which the task was stored


LANE_OF = attrgetter("queue", "lane", "priority")  # of a head, a pick, or what was claimed
LANE_OF_CLAIMED = itemgetter(*map(Claimed._fields.index, ("queue", "lane", "priority")))  # in half the time
GROUP_OF = itemgetter(*(Claimed._fields.index(name) for name in ("kind", "queue", "extras")))  # in rollups
DUE_AT = itemgetter(Claimed._fields.index("run_at"))
RARE = tuple(name for name in Claimed._fields if name in Claimed._field_defaults and name != "epoch")
_USUAL = tuple(name for name in Claimed._fields if name not in Claimed._field_defaults)
_READERS: tuple[Callable[[bytes], Any], ...] = tuple(
    bytes.decode if "str" in str(Claimed.__annotations__[name]) else int for name in _USUAL
)
_NAMES = ", ".join(f"t.{name}" for name in _USUAL)
_RUN_AT = _USUAL.index("run_at")
_LANE_OF_ROW = itemgetter(*(_USUAL.index(name) for name in ("queue", "lane", "priority")))
# On SQLite each pick is a statement of its own, and knows them.
_KNOWN = ("queue", "lane", "priority", "kind", "claimed_at")
_GROWN = {"claim": "claim + 1", "attempt": f"attempt + CASE WHEN {{t}}state = {SUSPENDED} THEN 0 ELSE 1 END"}
_READ_COLUMNS = tuple(name for name in _USUAL if name not in _KNOWN)
READ_NAMES = ", ".join(f"{{t}}{_GROWN.get(name, name)}" for name in _READ_COLUMNS)  # as they are once it is claimed
_READ = len(_READ_COLUMNS)
_NOTHING_RARE = (*(None,) * len(RARE), 1)
_new = tuple.__new__  # faster than the named tuple's own constructor
# A suspended task goes on with the attempt it was in.
_SET = (
    f"state = {CLAIMED}, worker = :worker, claim = {{claim}}, claimed_at = :now, started_at = NULL, "
    f"attempt = {{t}}attempt + CASE WHEN {{t}}state = {SUSPENDED} THEN 0 ELSE 1 END"
)
_SET_SQLITE = _SET.format(t="", claim=SQLite.next_claim.format(t=""))
_SET_PG = _SET.format(t="t.", claim=PostgreSQL.next_claim.format(t="t."))

# From one head to the next: the next lane of the priority, else the next priority of the queue, else the next queue.
# Three plain ranges, since SQLite does not use all columns of a row-value comparison for its index.
NEXT_HEAD = """coalesce(
    (SELECT n.id FROM schedd_tasks n WHERE n.state >= 1 AND n.state <= 3 AND n.queue = {queue}
     AND n.priority = {priority} AND n.lane > {lane} ORDER BY n.lane, n.run_at, n.id LIMIT 1),
    (SELECT n.id FROM schedd_tasks n WHERE n.state >= 1 AND n.state <= 3 AND n.queue = {queue}
     AND n.priority > {priority} ORDER BY n.priority, n.lane, n.run_at, n.id LIMIT 1),
    (SELECT n.id FROM schedd_tasks n WHERE n.state >= 1 AND n.state <= 3 AND n.queue > {queue}
     ORDER BY n.queue, n.priority, n.lane, n.run_at, n.id LIMIT 1))"""
_HEADS = f"""
WITH RECURSIVE head(id, n) AS (
  SELECT {{first}}, 1
  UNION ALL
  SELECT {NEXT_HEAD.format(queue="h.queue", priority="h.priority", lane="h.lane")}, head.n + 1
  FROM head JOIN schedd_tasks h ON h.id = head.id WHERE head.n < :most
)
SELECT t.queue, t.lane, t.priority, t.run_at, t.id FROM head JOIN schedd_tasks t ON t.id = head.id ORDER BY head.n
"""
_AFTER_HEAD = NEXT_HEAD.format(queue="h.queue", priority="h.priority", lane="h.lane")
# Each row is looked up once here. PostgreSQL might read the whole table for this join.
_SQLITE_HEADS = f"""
WITH RECURSIVE head(queue, lane, priority, run_at, id, n) AS (
  SELECT queue, lane, priority, run_at, id, 1 FROM schedd_tasks WHERE id = {{first}}
  UNION ALL
  SELECT t.queue, t.lane, t.priority, t.run_at, t.id, h.n + 1
  FROM head h CROSS JOIN schedd_tasks t ON t.id = {_AFTER_HEAD}
  WHERE h.n < :most
)
SELECT queue, lane, priority, run_at, id FROM head
"""
# In the index's order, so that no planner takes the table for it.
FIRST = f"SELECT id FROM schedd_tasks WHERE {CLAIMABLE} ORDER BY queue, priority, lane, run_at, id LIMIT 1"
_NEXT = NEXT_HEAD.format(
    queue="CAST(:queue AS text)", priority="CAST(:priority AS smallint)", lane="CAST(:lane AS text)"
)
_HEADS_FROM_START, _HEADS_AFTER = _HEADS.format(first=f"({FIRST})"), _HEADS.format(first=_NEXT)
_SQLITE_HEADS_FROM_START, _SQLITE_HEADS_AFTER = (
    _SQLITE_HEADS.format(first=f"({FIRST})"),
    _SQLITE_HEADS.format(first=_NEXT),
)

_SQLITE_FIRST = f"""
FROM schedd_tasks INDEXED BY ix_schedd_tasks_ready
WHERE {CLAIMABLE} AND queue = :queue AND lane = :lane AND priority = :priority AND run_at <= :now
ORDER BY run_at, id LIMIT :limit"""
# Read, then written: RETURNING takes SQLite longer. No other writer comes between: the write lock is held.
_SQLITE_READ = f"SELECT {READ_NAMES.format(t='')} {_SQLITE_FIRST}"
# The first ones of each of many lanes at once: a lane that gives few tasks is not worth two statements.
_SQLITE_READ_FEW = {
    few: f"""
SELECT {READ_NAMES.format(t="t.")}, j.key
FROM json_each(:lanes) j CROSS JOIN schedd_tasks t ON t.id {"=" if few == 1 else "IN"} (
  SELECT id FROM schedd_tasks INDEXED BY ix_schedd_tasks_ready
  WHERE {CLAIMABLE} AND queue = :queue AND lane = j.value AND priority = :priority AND run_at <= :now
  ORDER BY run_at, id LIMIT {few})"""
    for few in range(1, FEW + 1)
}
_SQLITE_CLAIM_IDS = f"UPDATE schedd_tasks SET {_SET_SQLITE} WHERE id IN {{ids}}"
_SQLITE_CLAIM = f"UPDATE schedd_tasks SET {_SET_SQLITE} WHERE id IN (SELECT id {_SQLITE_FIRST})"
_SQLITE_READ_IDS = f"SELECT {READ_NAMES.format(t='')} FROM schedd_tasks WHERE id IN {{ids}} ORDER BY run_at, id"

# A worker that was declared dead while its process was frozen must not claim: its claims would be reclaimed at once.
# Nor one beside a schema that its program does not know, whatever it means by its rows.
LIVE = f"SELECT 1 FROM schedd_workers WHERE id = :worker AND state < {STOPPED} AND {KNOWN}"
_RIPE = f"id IN {{ids}} AND state = {WAITING}"
_SQLITE_CLAIM_RIPE = f"UPDATE schedd_tasks SET unmet = 0, {_SET_SQLITE} WHERE {_RIPE}"
# An array is expected to hold ten ids. ``picked`` itself is expected to be a tenth of the backlog, as its LIMIT is not
# known beforehand, and in a join with it PostgreSQL would read the whole table for each claim.
_PG_CLAIM_IN = f"""
WITH {{{{rows}}}}, picked AS MATERIALIZED (
  SELECT c.id FROM j p CROSS JOIN LATERAL (
    SELECT t.id FROM schedd_tasks t
    WHERE {claimable("t")} AND t.queue = p.queue AND t.lane = p.lane AND t.priority = p.priority
      AND t.run_at <= :now {{start}}
    ORDER BY t.run_at, t.id LIMIT p.n FOR UPDATE OF t SKIP LOCKED) c
  WHERE EXISTS ({LIVE})
)
UPDATE schedd_tasks t SET {_SET_PG} WHERE t.id = ANY(ARRAY(SELECT id FROM picked))
RETURNING {_NAMES}
"""
_PG_CLAIM = _PG_CLAIM_IN.format(start="")
_FROM = "AND (t.run_at, t.id) >= (p.from_at, p.from_id)"
_PG_CLAIM_FROM = _PG_CLAIM_IN.format(start=_FROM)
_PG_CLAIM_WITHIN = _PG_CLAIM_IN.format(
    start=f"{_FROM} AND (t.run_at, t.id) <= (p.to_at, p.to_id) AND t.schema_version <= p.version"
)
_CLAIM_ONE = f"""
UPDATE schedd_tasks SET {_SET.format(t="", claim="{claim}")} WHERE id = (
  SELECT t.id FROM schedd_tasks t
  WHERE {claimable("t")} AND t.queue = :queue AND t.lane = :lane AND t.priority = :priority AND t.run_at <= :now
    AND EXISTS ({LIVE})
  ORDER BY t.run_at, t.id LIMIT 1 {{skip_locked}})
RETURNING {", ".join(_USUAL)}
"""
_CLAIM_BY_ID = f"""
UPDATE schedd_tasks SET {_SET.format(t="", claim="{claim}")}
WHERE id = :id AND {CLAIMABLE} AND run_at <= :now AND EXISTS ({LIVE})
RETURNING {", ".join(_USUAL)}
"""
_BY_TIME = itemgetter(_RUN_AT, 0)
_BY_LANE_AND_TIME = itemgetter(-1, _READ_COLUMNS.index("run_at"), 0)
_PICK_COLUMNS: Columns = (("queue", str), ("lane", str), ("priority", int), ("n", int))
_PICK_FROM_COLUMNS: Columns = (*_PICK_COLUMNS, ("from_at", int), ("from_id", int))
_PICK_WITHIN_COLUMNS: Columns = (*_PICK_COLUMNS, *((name, int) for name in Within._fields[:-1]))
_START = (-(2**62), 0)


def lane_heads(tx: Tx, after: LaneHead | None = None, most: int = 10**9) -> list[LaneHead]:
    """The heads of up to ``most`` lanes with a claimable task, due or not, after this one."""
    sqlite = tx.dialect.name == "sqlite"
    if after is None:
        rows = tx.rows(_SQLITE_HEADS_FROM_START if sqlite else _HEADS_FROM_START, most=most)
    else:
        bound = {"queue": after.queue, "priority": after.priority, "lane": after.lane, "most": most}
        rows = tx.rows(_SQLITE_HEADS_AFTER if sqlite else _HEADS_AFTER, **bound)
    return [_new(LaneHead, row) for row in rows]


_LANE_COLUMNS: Columns = (("queue", str), ("lane", str), ("priority", int))
_HEADS_OF = f"""
WITH {{rows}} SELECT j.queue, j.lane, j.priority, (SELECT t.run_at FROM schedd_tasks t WHERE {CLAIMABLE}
  AND t.queue = j.queue AND t.priority = j.priority AND t.lane = j.lane ORDER BY t.run_at, t.id LIMIT 1) FROM j
"""


def heads_of(tx: Tx, lanes: Sequence[tuple[str, str, int]]) -> list[LaneHead]:
    """The heads of those of these lanes (queue, lane, priority) that have one."""
    rows = run_over(tx, _HEADS_OF, _LANE_COLUMNS, lanes)
    return [LaneHead(*row) for row in rows if row[3] is not None]


def claim(
    tx: Tx,
    worker: int,
    picks: Sequence[LaneClaim],
    start: dict[tuple[str, str, int], tuple[int, int]] | None = None,
    ready_children: ReadyChildren | None = None,
    above: int = 0,
    within: Mapping[tuple[str, str, int], Within] = MappingProxyType({}),
) -> list[Claimed]:
    """Claim due tasks for ``worker``, up to each pick's limit, earliest first within a lane.

    ``start`` (PostgreSQL): (run_at, id) to begin at by lane; it is set to the last one claimed of each.
    ``ready_children`` (SQLite): of lanes where nothing else is due.
    ``above`` (PostgreSQL): what the claims' numbers are above at least.
    ``within``: of these lanes only some tasks.
    """
    if not picks:
        return []
    claimed: list[Claimed] = []
    if tx.dialect.name == "sqlite":
        if not tx.rows(LIVE, worker=worker):
            return []
        few = [pick for pick in picks if pick[3] <= FEW] if not (ready_children or within) else []
        several = len(few) >= MANY_LANES
        if several:
            claimed = _claim_few(tx, worker, few)
        for pick in [pick for pick in picks if pick[3] > FEW] if several else picks:
            bound = {"worker": worker, "now": tx.now, **pick._asdict()}
            rest = (pick.queue, pick.lane, pick.priority, kind_of(pick.lane), tx.now, *_NOTHING_RARE)
            taken = ready_children.take(LANE_OF(pick), pick.limit) if ready_children is not None else ()
            if taken:
                claimed += [_new(Claimed, row[:_READ] + rest) for row in taken]
                ids = bind_rows([row[0] for row in taken])
                tx.rows(_SQLITE_CLAIM_RIPE.format(ids=tx.dialect.ids()), worker=worker, now=tx.now, ids=ids)
            elif (part := within.get(LANE_OF(pick))) is not None:
                picked, ids = tx.dialect.ids(), bind_rows(part.ids[: pick.limit])
                claimed += [_new(Claimed, row + rest) for row in tx.rows(_SQLITE_READ_IDS.format(ids=picked), ids=ids)]
                tx.rows(_SQLITE_CLAIM_IDS.format(ids=picked), worker=worker, now=tx.now, ids=ids)
            else:
                claimed += [_new(Claimed, row + rest) for row in tx.rows(_SQLITE_READ, **bound)]
                tx.rows(_SQLITE_CLAIM, **bound)
    else:
        bound = {"worker": worker, "now": tx.now, "above": above}
        if within:
            begin = start or {}
            parts = [
                (*pick, *(within[lane][:-1] if lane in within else (2**31 - 1, *begin.get(lane, _START), 2**62, 0)))
                for pick, lane in zip(picks, map(LANE_OF, picks), strict=True)
            ]
            rows = run_over(tx, _PG_CLAIM_WITHIN, _PICK_WITHIN_COLUMNS, parts, **bound)
        elif start:
            places = [(*pick, *start.get(LANE_OF(pick), _START)) for pick in picks]
            rows = run_over(tx, _PG_CLAIM_FROM, _PICK_FROM_COLUMNS, places, **bound)
        else:
            rows = run_over(tx, _PG_CLAIM, _PICK_COLUMNS, picks, **bound)
        rows.sort(key=_BY_TIME)  # they come as they were found
        if start:
            start.update((_LANE_OF_ROW(row), (row[_RUN_AT], row[0])) for row in rows)
        claimed = [_new(Claimed, row + _NOTHING_RARE) for row in rows]
    if len(picks) > 1:
        lanes = [pick[1] for pick in picks]
        text = "".join(lanes)
        if SIZED_LANE in text and any(delay_of(lane) is not None for lane in lanes):
            claimed.sort(key=_place)
        if RANKED_LANE in text and any(map(rank_of, lanes)):
            claimed.sort(key=_rank_from_first)
    return _completed(tx, claimed)


def _claim_few(tx: Tx, worker: int, picks: Sequence[LaneClaim]) -> list[Claimed]:
    """SQLite: claim from many lanes at once, of each as many as of the others that are read with it."""
    claimed: list[Claimed] = []
    alike: dict[tuple[str, int, int], list[str]] = {}
    for queue, lane, priority, limit in picks:
        alike.setdefault((queue, priority, limit), []).append(lane)
    for (queue, priority, limit), lanes in alike.items():
        bound = {"queue": queue, "priority": priority, "now": tx.now, "lanes": bind_rows(lanes)}
        rest = (tx.now, *_NOTHING_RARE)
        rows = tx.rows(_SQLITE_READ_FEW[limit], **bound)
        if limit > 1:  # those of a lane come by their ids
            rows.sort(key=_BY_LANE_AND_TIME)
        for row in rows:
            lane = lanes[row[-1]]
            claimed.append(_new(Claimed, (*row[:-1], queue, lane, priority, parts_of(lane)[6], *rest)))
    ids = bind_rows([one[0] for one in claimed])
    tx.rows(_SQLITE_CLAIM_IDS.format(ids=tx.dialect.ids()), worker=worker, now=tx.now, ids=ids)
    return claimed


def _rank_from_first(claimed: Claimed) -> int:
    return -rank_of(claimed.lane)


def _place(claimed: Claimed) -> int:
    return claimed.run_at + (delay_of(claimed.lane) or 0)


def claim_one(tx: Tx, worker: int, pick: LaneClaim, above: int = 0) -> list[Claimed]:
    """:func:`claim` for at most one task: one statement, which needs no transaction."""
    lane: dict[str, Any] = {"queue": pick.queue, "lane": pick.lane, "priority": pick.priority}
    bound = {"worker": worker, "now": tx.now, "above": above, **lane}
    sql = _claim_one(tx.dialect)
    if tx.dialect.name == "sqlite":
        return _completed(tx, [_new(Claimed, row + _NOTHING_RARE) for row in tx.rows(sql, **bound)])
    text, names = numbered(sql, tx.connection.dialect)
    row = one_row(tx.connection, text, [bound[name] for name in names])
    if not row:
        return []
    usual = [None if value is None else read(value) for read, value in zip(_READERS, row, strict=True)]
    claimed: Claimed = _new(Claimed, (*usual, *_NOTHING_RARE))
    if not _wants_more(claimed):
        return [claimed]
    with no_transaction(tx.connection):
        return _completed(tx, [claimed])


@lru_cache(maxsize=2)
def _claim_one(dialect: Dialect) -> str:
    return _CLAIM_ONE.format(skip_locked=dialect.skip_locked, claim=dialect.next_claim.format(t=""))


def head_of(tx: Tx, task_id: int) -> LaneHead | None:
    """The lane and due time of a task that may be claimed."""
    sql = f"SELECT queue, lane, priority, run_at, id FROM schedd_tasks WHERE id = :id AND {CLAIMABLE}"
    return next((LaneHead._make(row) for row in tx.rows(sql, id=task_id)), None)


def claim_by_id(tx: Tx, worker: int, task_id: int, above: int = 0) -> list[Claimed]:
    """:func:`claim` for this task, if it is due."""
    sql = _CLAIM_BY_ID.format(claim=tx.dialect.next_claim.format(t=""))
    rows = tx.rows(sql, worker=worker, now=tx.now, above=above, id=task_id)
    return _completed(tx, [_new(Claimed, row + _NOTHING_RARE) for row in rows])


def read_claimed(tx: Tx, task_id: int) -> Claimed | None:
    """A claimed task as :func:`claim` returns it."""
    rows = tx.rows(f"SELECT {_NAMES} FROM schedd_tasks t WHERE t.id = :id", id=task_id)
    found = _completed(tx, [_new(Claimed, row + _NOTHING_RARE) for row in rows])
    return found[0] if found else None


def _wants_more(claimed: Claimed) -> bool:
    return claimed.payload is None or bool(claimed.extras & HAS_RARE)


def _completed(tx: Tx, claimed: list[Claimed]) -> list[Claimed]:
    """Add long payloads and rare columns to the tasks that have them."""
    wanting = [*filter(_wants_more, claimed)]
    if not wanting:
        return claimed
    long = [c.id for c in wanting if c.payload is None]
    rare = [c.id for c in wanting if c.extras & HAS_RARE]
    values = f"SELECT task_id, value FROM schedd_task_values WHERE name = 'payload' AND task_id IN {tx.dialect.ids()}"
    payloads = dict(tx.rows(values, ids=bind_rows(long)))
    columns = f"SELECT id, {', '.join(RARE)} FROM schedd_tasks WHERE id IN {tx.dialect.ids()}"
    extras = {row[0]: dict(zip(RARE, row[1:], strict=True)) for row in tx.rows(columns, ids=bind_rows(rare))}
    return [
        c._replace(payload=payloads.get(c.id) if c.payload is None else c.payload, **extras.get(c.id, {}))
        for c in claimed
    ]


_MARK_COLUMNS: Columns = (("id", int), ("claim", int), ("started", int))
_MARK_SQLITE = (
    f"WITH {{rows}} UPDATE schedd_tasks AS t SET state = {RUNNING}, started_at = j.started "
    f"FROM j WHERE t.id = j.id AND {fence(f'= {CLAIMED}')} RETURNING id, claim"
)
_MARK_PG = (
    "WITH {rows}, held AS MATERIALIZED (SELECT t.id, j.started FROM j JOIN schedd_tasks t ON t.id = j.id "
    f"WHERE {{among t}} {fence(f'= {CLAIMED}')} ORDER BY t.id FOR UPDATE OF t SKIP LOCKED) "
    f"UPDATE schedd_tasks t SET state = {RUNNING}, started_at = held.started FROM held WHERE t.id = held.id "
    "RETURNING t.id, t.claim"
)


def mark_running(tx: Tx, worker: int, started: Sequence[tuple[int, int, int]]) -> set[tuple[int, int]]:
    """Write ``running`` for handlers under way: rows (id, claim, started_at). Returns (id, claim) written.

    Skips rows that another transaction has locked.
    """
    sql = _MARK_SQLITE if tx.dialect.name == "sqlite" else _MARK_PG
    return {(row[0], row[1]) for row in run_over(tx, sql, _MARK_COLUMNS, started, worker=worker)}


def held_by(tx: Tx, worker: int) -> Sequence[sa.Row[Any]]:
    """Rows (id, claim, attempt, claimed_at) of the tasks that ``worker`` holds."""
    return tx.run(
        f"SELECT id, claim, attempt, claimed_at FROM schedd_tasks WHERE worker = :worker AND {HELD}",
        worker=worker,
    ).fetchall()


def end_quarantine(tx: Tx, worker: int, task_id: int, claim_number: int) -> None:
    """End the quarantine of a task that has run alone for long enough."""
    tx.run(
        "UPDATE schedd_tasks SET lane = ltrim(lane, '!') WHERE id = :id AND worker = :worker AND claim = :claim "
        f"AND state + 0 {IS_HELD}",
        id=task_id,
        worker=worker,
        claim=claim_number,
    )


def quarantined_crashes(tx: Tx, task_id: int) -> int:
    """How often this task has crashed the process in which it ran alone."""
    return int(tx.run("SELECT deaths FROM schedd_tasks WHERE id = :id", id=task_id).scalar() or 0)


def record_quarantined_crash(tx: Tx, task_id: int, claim_number: int) -> None:
    """Count a crash of the claim whose outcome was just recorded; the task stays in quarantine."""
    tx.run(
        "UPDATE schedd_tasks SET deaths = deaths + 1, suspect = suspect + 1, "
        f"lane = CASE WHEN {CLAIMABLE} THEN '!' || ltrim(lane, '!') ELSE lane END "
        "WHERE id = :id AND claim = :claim",
        id=task_id,
        claim=claim_number,
    )

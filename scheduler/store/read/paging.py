"""Ids of a page of tasks, newest first: by an index that leads to them, else down the ids, piece by piece and as far as
a window allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from scheduler.model.lanes import kind_of
from scheduler.model.state import CLAIMED, FAILED, RUNNING, SCHEDULED, SKIPPED, SUCCESS, SUSPENDED, WAITING
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import claimable, held

# Of the states asked for: up to so many tasks are sorted at once; of more, a page is looked for among the newest ids;
# if it is not there, up to so many more are sorted.
_FEW, _NEAR, _MAX_SORTED = 5_000, 30_000, 50_000
_MAX_LANES = 2_000  # ready lanes that are read to find those of a kind
_MAX_KIND_LANES = 100  # of them that are read one by one
_FIRST_PIECE, _PIECE = 5_000, 100_000  # ids that one statement walks down
_MAX_PIECE = 1_000_000  # ids, where hardly any of them is there any more
BIGGEST = 2**63 - 1
_CLAIMABLE_STATES = range(SCHEDULED, SUSPENDED + 1)
# Each partial index by the clause that it was made with, which SQLite wants to see word for word.
_GROUPS = (
    (f"t.state = {WAITING}", range(WAITING, WAITING + 1)),
    (claimable("t"), _CLAIMABLE_STATES),
    (held("t"), range(CLAIMED, RUNNING + 1)),
    (f"t.state = {SUCCESS}", range(SUCCESS, SUCCESS + 1)),
    (f"t.state >= {FAILED}", range(FAILED, SKIPPED + 1)),
)
_COLLECTED = {"sqlite": "json_group_array", "postgresql": "array_agg"}


class Led(NamedTuple):
    """What leads to tasks by an index: a ``column`` (key, subject or correlation) with one of ``values``.

    A correlation also means the task that has this id and none of its own.
    """

    column: str
    values: Sequence[str]


class TaskQuery(NamedTuple):
    """What is asked of tasks ``t``.

    ``conditions`` with their parameters ``bound``, none of which is named limit, cursor or like a lane; ``codes``: of
    the states, None: any. ``led``: a further condition, whose index leads to the tasks. ``kinds`` and
    ``queues``, if they are among the conditions, for the index of ready tasks. ``least``: no id below it; ``top``: none
    from it on.
    """

    conditions: Sequence[str]
    bound: dict[str, Any]
    codes: Sequence[int] | None = None
    led: Led | None = None
    kinds: Sequence[str] | None = None
    queues: Sequence[str] | None = None
    least: int = 0
    top: int = BIGGEST

    @property
    def where(self) -> str:
        """All conditions, those of the states among them; empty if there is none."""
        codes = [] if self.codes is None else [f"t.state IN ({', '.join(map(str, self.codes)) or 'NULL'})"]
        return " AND ".join([*self.conditions, *codes])


class Window:
    """How many of the newest tasks are looked at where no index leads to those that are asked for.

    One window goes for all pages of a search.
    """

    def __init__(self, size: int) -> None:
        self.looked = 0
        self._size = size

    @property
    def left(self) -> int:
        """How many more tasks may be looked at."""
        return max(0, self._size - self.looked)


class Ids(NamedTuple):
    """Ids of a page.

    ``cursor``: only ids below it come next; None: there is nothing more. ``bound``: the window was at its end before
    the page was full, and no id below ``cursor`` has been looked at.
    """

    ids: list[int]
    cursor: int | None
    bound: bool = False


def page_of(tx: Tx, asked: TaskQuery, cursor: int, limit: int) -> tuple[str, dict[str, Any]]:
    """The SELECT of a page's ids, below ``cursor``, and what it binds. It may walk down the whole table."""
    cursor = min(cursor, asked.top)
    by_index = _by_index(tx, asked, cursor, limit)
    if by_index is not None:
        return by_index
    where = " AND ".join(filter(None, (asked.where, "t.id < :cursor")))
    bound = {**asked.bound, "cursor": cursor, "limit": limit}
    return f"SELECT t.id FROM schedd_tasks t WHERE {where} ORDER BY t.id DESC LIMIT :limit", bound


def ids_of(tx: Tx, asked: TaskQuery, cursor: int | None, limit: int, window: Window | None = None) -> Ids:
    """A page of up to ``limit`` ids below ``cursor``. With a window it looks no further than that."""
    top = asked.top if cursor is None else min(cursor, asked.top)
    if window is not None and not window.left:
        return Ids([], top, True)
    if window is None or not asked.where:
        sql, bound = page_of(tx, asked, top, limit + 1)
    elif by_index := _by_index(tx, asked, top, limit + 1):
        sql, bound = by_index
    else:
        return _walk(tx, asked, top, limit, window)
    ids = [row[0] for row in tx.run(sql, **bound).fetchall()]
    if window is not None:
        window.looked += min(len(ids), limit)
    return Ids(ids[:limit], ids[limit - 1] if len(ids) > limit > 0 else None)


def _walk(tx: Tx, asked: TaskQuery, cursor: int, limit: int, window: Window) -> Ids:
    """Down the ids in pieces, each one statement that also counts what it has passed."""
    found: list[int] = []
    last = max(asked.least, tx.run("SELECT min(id) FROM schedd_tasks").scalar() or 0)
    sql = (
        f"SELECT count(*) AS passed, {_COLLECTED[tx.dialect.name]}(t.id) FILTER (WHERE {asked.where}) AS ids "
        "FROM schedd_tasks t WHERE t.id >= :low AND t.id < :top"
    )
    goal = span = min(_FIRST_PIECE, window.left)
    top = cursor
    while window.left:
        newest = tx.run("SELECT max(id) FROM schedd_tasks WHERE id < :top", top=top).scalar()  # over gaps
        if newest is None or newest < last:
            return Ids(found, None)
        top = newest + 1
        low = max(last, top - span)
        row = tx.run(sql, **asked.bound, low=low, top=top).one()
        ids = json.loads(row.ids) if isinstance(row.ids, str) else row.ids or []
        found += sorted(ids, reverse=True)
        if len(found) > limit:
            following = found[limit - 1] if limit else cursor
            window.looked += round(row.passed * (top - following) / (top - low))
            return Ids(found[:limit], following)
        window.looked += row.passed
        goal = min(goal * 10, _PIECE, window.left)
        span = min(span * 10, _MAX_PIECE) if row.passed * 10 < span else goal
        top = low
    return Ids(found, top, True) if top > last else Ids(found, None)


def _by_index(tx: Tx, asked: TaskQuery, cursor: int, limit: int) -> tuple[str, dict[str, Any]] | None:
    """The same as :func:`page_of`, if an index leads to few tasks; ``id + 0`` keeps the planners from the primary
    key."""
    bound: dict[str, Any] = {**asked.bound, "cursor": cursor, "limit": limit}
    where = " AND ".join(filter(None, (asked.where, "t.id + 0 < :cursor")))
    if asked.led is not None:
        return _led(tx, asked.led, asked.where or "true", bound)
    if not asked.codes:
        return None
    chosen: list[str] = []
    lanes: dict[str, Any] = {}
    for clause, group in _GROUPS:
        if set(asked.codes) & set(group):
            some, more = _ready(tx, asked) if group is _CLAIMABLE_STATES else ([clause], {})
            chosen += some
            lanes |= more
    if not _are_sorted(tx, [f"{clause} AND {_in(asked.codes)}" for clause in chosen], lanes, asked, cursor, limit):
        return None
    if not chosen:
        return "SELECT t.id FROM schedd_tasks t WHERE t.id IS NULL AND t.id < :cursor LIMIT :limit", bound
    found = " UNION ALL ".join(f"SELECT t.id FROM schedd_tasks t WHERE {clause} AND {where}" for clause in chosen)
    return f"SELECT f.id FROM ({found}) f ORDER BY f.id + 0 DESC LIMIT :limit", bound | lanes


def _led(tx: Tx, led: Led, where: str, bound: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Down the index from the cursor, as far as the page goes.

    With an equality a planner believes that the primary key has the same order. PostgreSQL is kept to the index by a
    comparison of rows, SQLite by the index's name: there that comparison begins at the first row of each page.
    """
    parts: list[str] = []
    index = tx.dialect.by_index(f"ix_schedd_tasks_{led.column}")
    for n, value in enumerate(led.values):
        bound[f"led{n}"] = value
        column = f"t.{led.column}"
        below = f"({column}, t.id) < (:led{n}, :cursor) AND {column} >= :led{n}"
        if index:
            below = f"{column} = :led{n} AND t.id < :cursor"
        parts.append(
            f"SELECT p{n}.id FROM (SELECT t.id FROM schedd_tasks t {index} WHERE {below} AND {where} "
            f"ORDER BY {column} DESC, t.id DESC LIMIT :limit) p{n}"
        )
        if led.column == "correlation" and (own := as_id(value)) > 0:
            bound[f"own{n}"] = own
            parts.append(
                f"SELECT t.id FROM schedd_tasks t WHERE t.id = :own{n} AND t.correlation IS NULL "
                f"AND t.id < :cursor AND {where}"
            )
    return f"SELECT f.id FROM ({' UNION ALL '.join(parts)}) f ORDER BY f.id DESC LIMIT :limit", bound


def _in(codes: Sequence[int]) -> str:
    return f"t.state IN ({', '.join(map(str, codes))})"


def _ready(tx: Tx, asked: TaskQuery) -> tuple[list[str], dict[str, Any]]:
    """What of the index of ready tasks to read, and what that binds: all of it, some queues, or the kinds' lanes."""
    everything = claimable("t")
    if asked.queues:
        bound: dict[str, Any] = {f"queue_of_lane{n}": queue for n, queue in enumerate(asked.queues)}
        everything += f" AND t.queue IN ({', '.join(f':{name}' for name in bound)})"
    else:
        bound = {}
    if not asked.kinds:
        return [everything], bound
    from scheduler.store.tasks.claim import lane_heads

    heads = lane_heads(tx, most=_MAX_LANES + 1)
    lanes = [
        head for head in heads if kind_of(head.lane) in asked.kinds and (not asked.queues or head.queue in asked.queues)
    ]
    if len(heads) > _MAX_LANES or len(lanes) > _MAX_KIND_LANES:
        return [everything], bound
    chosen, bound = [], {}
    for n, head in enumerate(lanes):
        chosen.append(
            f"{claimable('t')} AND t.queue = :queue_of_lane{n} AND t.priority = {head.priority} AND t.lane = :lane{n}"
        )
        bound |= {f"queue_of_lane{n}": head.queue, f"lane{n}": head.lane}
    return chosen, bound


def _are_sorted(
    tx: Tx, chosen: Sequence[str], lanes: dict[str, Any], asked: TaskQuery, cursor: int, limit: int
) -> bool:
    """Whether the tasks of these clauses are to be sorted, and not met on the way down the ids."""
    if _are_fewer(tx, chosen, lanes, _FEW):
        return True
    newest = tx.run("SELECT max(id) FROM schedd_tasks WHERE id < :cursor", cursor=cursor).scalar() or 0
    where = f"{asked.where} AND t.id < :cursor AND t.id > :near"
    page = f"SELECT t.id FROM schedd_tasks t WHERE {where} ORDER BY t.id DESC LIMIT :limit"
    bound = {**asked.bound, "cursor": cursor, "limit": limit, "near": newest - _NEAR}
    met = tx.run(f"SELECT count(*) FROM ({page}) f", **bound).scalar_one()
    return bool(met < limit) and _are_fewer(tx, chosen, lanes, _MAX_SORTED)


def _are_fewer(tx: Tx, chosen: Sequence[str], bound: dict[str, Any], number: int) -> bool:
    if not chosen:
        return True
    some = " UNION ALL ".join(f"SELECT 1 AS one FROM schedd_tasks t WHERE {clause}" for clause in chosen)
    seen = tx.run(f"SELECT count(*) FROM (SELECT one FROM ({some}) s LIMIT {number}) f", **bound).scalar_one()
    return bool(seen < number)


def as_id(text: str) -> int:
    """The task id that a correlation may be; -1 if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


def first_id(tx: Tx, since: int) -> int:
    """About the first id created at or after ``since``: a search by halves, as ids grow with time."""
    # Two statements: asked for both at once, SQLite walks the table.
    low = tx.run("SELECT min(id) FROM schedd_tasks").scalar() or 0
    high = tx.run("SELECT max(id) FROM schedd_tasks").scalar() or 0
    at = "SELECT created_at FROM schedd_tasks WHERE id >= :id ORDER BY id LIMIT 1"
    while low < high:
        middle = (low + high) // 2
        created = tx.run(at, id=middle).scalar()
        if created is not None and created < since:  # None: the last ones were removed since
            low = middle + 1
        else:
            high = middle
    return int(low)

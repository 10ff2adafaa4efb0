"""Stores a new task as claimed already, by a worker of the caller's own process that has a free slot for it.

It is one statement and so one commit, where an INSERT and a claim are two. Whether the task may start before all others
is decided by the statement itself: else it stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from typing import Any, NamedTuple

from scheduler.model.spec import TaskSpec
from scheduler.model.state import CLAIMED
from scheduler.store.db.database import Database
from scheduler.store.db.dialect import Dialect
from scheduler.store.db.statements import SQL_TYPES, numbered
from scheduler.store.graph import debug_log
from scheduler.store.tasks.claim import FIRST, LIVE, NEXT_HEAD, Claimed
from scheduler.store.tasks.enqueue import given_of
from scheduler.store.tasks.row import COLUMNS, NEW

MOST_LANES = 16  # with claimable tasks, due or not: beside more it is not worth the look
_CLAIMED_AS = {"worker": ":worker", "claim": ":claim", "attempt": "1", "claimed_at": ":now"}
_GIVEN_HERE: dict[str, Any] = dict.fromkeys(Claimed._fields) | {"attempt": 1, "attempt_base": 0, "epoch": 1}
_claimed_of = itemgetter(*Claimed._fields[1:])
_new = tuple.__new__  # as in claim.py
_NEXT = NEXT_HEAD.format(queue="h.queue", priority="h.priority", lane="h.lane")
_NAMES = {
    "sqlite": "(SELECT value FROM json_each(:{0}))",
    "postgresql": "(SELECT value FROM json_array_elements_text(CAST(:{0} AS json)))",
}

# By the id, whatever is known of the table: PostgreSQL may carry out a join by reading all of it.
_BY_ID = {
    "sqlite": "JOIN schedd_tasks {0} ON {0}.id = head.id",
    "postgresql": "CROSS JOIN LATERAL (SELECT x.* FROM schedd_tasks x WHERE x.id = head.id OFFSET 0) {0}",
}


class Served(NamedTuple):
    """Which due tasks the worker would claim before the new one: of these kinds and queues, as JSON (None: of all
    queues), and of priorities up to this one."""

    kinds: str
    queues: str | None
    up_to: int


def store_claimed(database: Database, spec: TaskSpec, worker: int, above: int, served: Served | None) -> Claimed | None:
    """Store a task that is one row, claimed by ``worker``; nothing is stored unless that lives and nothing that is due
    would go before it.

    ``above`` (PostgreSQL): what the claims' numbers are above at least. ``served``: None stores nothing beside any
    claimable task, due or not, which takes PostgreSQL much less time. Raises StoreUnavailableError.
    """
    bound: dict[str, Any] = {"worker": worker, "claim": 1}
    if served is not None:
        bound |= {"up_to": served.up_to, "kinds": served.kinds, "queues": served.queues}
    some_queues = None if served is None else served.queues is not None

    def take_values() -> tuple[bool, ...]:
        bound["now"] = now = database.now()
        given, values = given_of(spec, now)
        bound.update(zip(compress(NEW, given), values, strict=True))
        return given

    if database.dialect.name == "sqlite":
        made = database.insert_alone(lambda: (_insert(database.dialect, take_values(), some_queues), bound))
        claimed = _claimed(bound) if made is not None else ()
    else:
        claimed, server = (), database.open().dialect
        bound["claim"] += above

        def statement() -> tuple[str, Sequence[int | str]]:
            text, names = numbered(_insert(database.dialect, take_values(), some_queues), server)
            return text, [bound[name] for name in names]

        def prepare() -> None:
            nonlocal claimed
            claimed = _claimed(bound)

        made = database.insert_on_server(statement, meanwhile=prepare, replans=True)
    if made is None:
        return None
    debug_log.scheduled(made, spec.kind)
    return _new(Claimed, (made, *claimed))


def _claimed(bound: Mapping[str, Any]) -> tuple[Any, ...]:
    """The bound values as a claim has them, without the id."""
    values: tuple[Any, ...] = _claimed_of({**_GIVEN_HERE, **bound, "claimed_at": bound["now"]})
    return values


@lru_cache(maxsize=64)
def _insert(dialect: Dialect, given: tuple[bool, ...], some_queues: bool | None) -> str:
    """``some_queues``: None beside no claimable task at all."""
    names, task = _NAMES[dialect.name], _BY_ID[dialect.name]
    queues = f"AND t.queue IN {names.format('queues')}" if some_queues else ""
    may_start = f"EXISTS ({LIVE}) AND ({FIRST}) IS NULL"
    if some_queues is not None:
        may_start = f"""EXISTS ({LIVE}) AND (({FIRST}) IS NULL OR NOT EXISTS (
  WITH RECURSIVE head(id, n) AS (
    SELECT ({FIRST}), 1
    UNION ALL
    SELECT {_NEXT}, head.n + 1 FROM head {task.format("h")} WHERE head.n < {MOST_LANES}
  )
  SELECT 1 FROM head {task.format("t")}
  WHERE head.n >= {MOST_LANES} OR (t.run_at <= :now AND t.priority <= :up_to
    AND t.kind IN {names.format("kinds")} {queues})
))"""
    picked = {name: f":{name}" for name in compress(NEW, given)} | _CLAIMED_AS | {"state": str(CLAIMED)}
    if dialect.name == "sqlite":  # a row without a state is ignored: SELECT … WHERE takes twice the time
        picked["state"] = f"CASE WHEN {may_start} THEN {CLAIMED} END"
        into, row = ", ".join(picked), ", ".join(picked.values())
        return f"INSERT OR IGNORE INTO schedd_tasks ({into}) VALUES ({row})"
    typed = [
        f"CAST({value} AS {SQL_TYPES[COLUMNS.get(name, int)]})" if value[0] == ":" else value
        for name, value in picked.items()
    ]
    into, row = ", ".join(picked), ", ".join(typed)
    return f"INSERT INTO schedd_tasks ({into}) SELECT {row} WHERE {may_start} RETURNING id"

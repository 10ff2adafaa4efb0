"""Stores a new task as claimed already, by a worker of the caller's own process that has a free slot for it.

It is one statement and so one commit, where an INSERT and a claim are two. Whether the task may start before all others
is decided by the statement itself: else it stores the task as any other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, NamedTuple

from scheduler.model import state as st
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.ports import SECOND
from scheduler.store.db.database import Database
from scheduler.store.db.dialect import Dialect
from scheduler.store.db.statements import SQL_TYPES, compiled, run
from scheduler.store.graph import debug_log
from scheduler.store.tasks.claim import FIRST, LIVE, NEXT_HEAD, Claimed
from scheduler.store.tasks.enqueue import given_of
from scheduler.store.tasks.row import COLUMNS, NEW

MOST_LANES = 16  # with claimable tasks, due or not: beside more it is not worth the look
PLANS_KEPT_US = 10 * SECOND  # by the server, for one connection
_PLANNED = "schedd_planned"  # in a connection's info: since when
_CLAIMED_AS = {
    "worker": "d.worker",
    "claim": "CASE WHEN d.worker IS NULL THEN 0 ELSE CAST(:claim AS bigint) END",
    "attempt": "CASE WHEN d.worker IS NULL THEN 0 ELSE 1 END",
    "claimed_at": "CASE WHEN d.worker IS NULL THEN NULL ELSE CAST(:now AS bigint) END",
    "state": f"CASE WHEN d.worker IS NULL THEN {st.SCHEDULED} ELSE {st.CLAIMED} END",
}
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


def store_claimed(
    database: Database, spec: TaskSpec, worker: int, above: int, served: Served
) -> tuple[TaskId, Claimed | None]:
    """Store a task that is one row, claimed by ``worker`` if that lives and nothing that is due would go before it.

    ``above`` (PostgreSQL): what the claims' numbers are above at least. Returns the claim as well, None if it is not
    claimed. Raises StoreUnavailableError.
    """
    bound: dict[str, Any] = {"worker": worker, "claim": 1, "up_to": served.up_to, "kinds": served.kinds}
    if served.queues is not None:
        bound["queues"] = served.queues

    def statement() -> str:
        now = database.now()
        given, values = given_of(spec, now)
        bound.update(zip(compress(NEW, given), values, strict=True), now=now)
        return _insert(database.dialect, given, served.queues is not None)

    if database.dialect.name == "sqlite":
        engine = database.open()

        def listed() -> tuple[str, Sequence[object]]:
            text, order = compiled(statement(), engine.dialect)
            return text, [bound[name] for name in order or ()]

        task_id, state = database.insert_alone(listed, returning=True)
        made = TaskId(task_id)
    else:
        bound["claim"] += above
        with database.alone() as connection:
            text = statement()
            if bound["now"] - connection.info.get(_PLANNED, 0) > PLANS_KEPT_US:
                connection.info[_PLANNED] = bound["now"]
                run(connection, "DISCARD PLANS", {})  # the table may have grown since
            ((task_id, state),) = run(connection, text, bound)
        made = TaskId(task_id).at(bound["now"])
    debug_log.scheduled(task_id, spec.kind)
    if state != st.CLAIMED:
        return made, None
    own = {"id": task_id, "attempt": 1, "attempt_base": 0, "claimed_at": bound["now"], "epoch": 1}
    return made, Claimed._make(own.get(name, bound.get(name)) for name in Claimed._fields)


@lru_cache(maxsize=64)
def _insert(dialect: Dialect, given: tuple[bool, ...], some_queues: bool) -> str:
    picked = {name: f"CAST(:{name} AS {SQL_TYPES[COLUMNS[name]]})" for name in compress(NEW, given)} | _CLAIMED_AS
    names, task = _NAMES[dialect.name], _BY_ID[dialect.name]
    queues = f"AND t.queue IN {names.format('queues')}" if some_queues else ""
    return f"""
WITH RECURSIVE head(id, n) AS (
  SELECT ({FIRST}), 1
  UNION ALL
  SELECT {_NEXT}, head.n + 1 FROM head {task.format("h")} WHERE head.n < {MOST_LANES}
), d(worker) AS MATERIALIZED (
  SELECT CASE WHEN EXISTS ({LIVE}) AND (({FIRST}) IS NULL OR NOT EXISTS (
    SELECT 1 FROM head {task.format("t")}
    WHERE head.n >= {MOST_LANES} OR (t.run_at <= CAST(:now AS bigint) AND t.priority <= CAST(:up_to AS smallint)
      AND t.kind IN {names.format("kinds")} {queues})
  )) THEN CAST(:worker AS bigint) END
)
INSERT INTO schedd_tasks ({", ".join(picked)}) SELECT {", ".join(picked.values())} FROM d RETURNING id, state
"""

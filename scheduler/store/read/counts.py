"""Counting tasks by state and priority from narrow indexes, up to a bound: never by walking the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.state import (
    CANCELLED,
    DEAD,
    FAILED,
    RETRY,
    SCHEDULED,
    SKIPPED,
    SUCCESS,
    SUSPENDED,
    WAITING,
    TaskState,
)
from scheduler.store.broken_rows import state_name
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, HELD, ended_as
from scheduler.store.tasks.claim import LaneHead

# Up to a number of rows of each state: the order is the index's own, so that nothing is sorted or walked. Where the
# condition allows one state only, no column is read, so that the index alone answers. Scheduled tasks share an index
# with retries and suspended ones, so that three times as many rows of it are looked at.
_RETRY_OR_SUSPENDED = f"state >= {RETRY} AND state <= {SUSPENDED}"
_GROUPS = (
    (f"state = {WAITING}", "id", WAITING),
    *((f"{_RETRY_OR_SUSPENDED} AND state = {code}", "state", code) for code in (RETRY, SUSPENDED)),
    (f"{HELD}", "worker, lane", None),
    (f"state = {SUCCESS}", "kept_until, finished_at", SUCCESS),
    *((ended_as(code), "state, finished_at", code) for code in (FAILED, DEAD, CANCELLED, SKIPPED)),
    (f"state >= {FAILED} AND state >= {len(TaskState)}", "state, finished_at", None),
)


def _counting(number: int, where: str, order: str, code: int | None) -> str:
    read, group = ("state", "GROUP BY state") if code is None else ("1 AS one", "")
    return (
        f"SELECT {number} AS part, {'state' if code is None else code} AS state, count(*) AS n FROM (SELECT {read} "
        f"FROM schedd_tasks WHERE {where} ORDER BY {order} LIMIT :most) AS g{number} {group}"
    )


_ABOUT = " UNION ALL ".join(_counting(number, *one) for number, one in enumerate(_GROUPS))
_SCHEDULED = (
    f"SELECT count(*) AS looked, sum(CASE WHEN state = {SCHEDULED} THEN 1 ELSE 0 END) AS n FROM (SELECT state "
    f"FROM schedd_tasks WHERE {CLAIMABLE} ORDER BY queue, priority, lane, run_at, id LIMIT :most) g"
)
_OF_POOL = (
    "SELECT count(*) AS n, sum(CASE WHEN run_at <= :now THEN 1 ELSE 0 END) AS due FROM (SELECT run_at "
    f"FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND priority = :priority "
    "ORDER BY queue, priority, lane, run_at, id "
    "LIMIT :most) AS p"
)


def about(tx: Tx, most: int) -> tuple[dict[str, int], frozenset[str]]:
    """Tasks in each state that has any, in the order of the states; and the states that may have more.

    Counts no more than ``most`` tasks of each state.
    """
    rows = tx.run(_ABOUT, most=most).fetchall()
    seen = Counter[int]()
    for row in rows:
        seen[row.part] += row.n
    capped = {state_name(row.state) for row in rows if seen[row.part] >= most}
    scheduled = tx.run(_SCHEDULED, most=3 * most).one()
    counts = {row.state: row.n for row in rows} | {SCHEDULED: min(scheduled.n or 0, most)}
    if counts[SCHEDULED] >= most or scheduled.looked >= 3 * most:
        capped.add(state_name(SCHEDULED))
    return {state_name(code): n for code, n in sorted(counts.items()) if n}, frozenset(capped)


class PoolCounts(NamedTuple):
    """Tasks by priority that are due now, and later; ``capped``: there may be more."""

    due: Counter[int]
    later: Counter[int]
    capped: bool


def pools(tx: Tx, heads: Sequence[LaneHead], most: int) -> PoolCounts:
    """Ready tasks by priority. ``heads``: of all lanes. Looks at no more than ``most`` tasks of each priority."""
    due, later, left = Counter[int](), Counter[int](), Counter[int]()
    for queue, priority in dict.fromkeys((head.queue, head.priority) for head in heads):
        left.setdefault(priority, most)
        if left[priority] <= 0:
            continue
        bound = {"queue": queue, "priority": priority, "now": tx.now, "most": left[priority]}
        row = tx.run(_OF_POOL, **bound).one()
        due[priority] += row.due or 0
        later[priority] += row.n - (row.due or 0)
        left[priority] -= row.n
    return PoolCounts(due, later, any(rest <= 0 for rest in left.values()))

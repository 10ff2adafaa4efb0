"""What a kind or a queue does now: what runs, what is ready, what waits for a retry; bounded, from narrow indexes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from scheduler.model.lanes import kind_of
from scheduler.model.state import CLAIMED, RETRY, RUNNING, SUSPENDED
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, HELD
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.ready import first_of, ready_since

MAX_COUNTED = 10_000  # ready tasks that are counted; in retry, or suspended, of any kind, that are looked at
_MAX_LANES = 200  # with a due task that are counted, those that have waited longest
_MAX_HEADS = 20  # of them that are looked at for the oldest

_HELD = f"SELECT state, count(*) AS n FROM schedd_tasks WHERE {HELD} AND {{column}} = :name GROUP BY state"
_READY = (
    f"SELECT count(*) FROM (SELECT 1 FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND lane = :lane "
    "AND priority = :priority AND run_at <= :now LIMIT :most) r"
)
_NOT_DUE = (
    "SELECT count(*) AS looked, coalesce(sum(CASE WHEN {column} = :name THEN 1 ELSE 0 END), 0) AS number FROM (SELECT "
    f"{{column}} FROM schedd_tasks WHERE state >= {RETRY} AND state <= {SUSPENDED} AND state = {{code}} "
    "ORDER BY state LIMIT :most) w"
)


class WorkNow(NamedTuple):
    """``ready``: due and claimed by nobody; ``since``: the oldest of them only wants a worker, microseconds.

    ``capped``: the counts that are "at least" what is said.
    """

    running: int
    claimed: int
    ready: int
    since: int | None
    retry: int
    suspended: int
    capped: frozenset[str]


def work_now(tx: Tx, scope: Literal["kind", "queue"], name: str) -> WorkNow:
    """What is under way of this kind, or in this queue, and its backlog."""
    capped = set[str]()
    held = {row.state: int(row.n) for row in tx.run(_HELD.format(column=scope), name=name)}
    later: dict[str, int] = {}
    for label, code in (("retry", RETRY), ("suspended", SUSPENDED)):
        row = tx.run(_NOT_DUE.format(column=scope, code=code), name=name, most=MAX_COUNTED).one()
        later[label] = int(row.number)
        if row.looked >= MAX_COUNTED:
            capped.add(label)
    ready, since, more = _ready(tx, scope, name)
    if more:
        capped.add("ready")
    return WorkNow(held.get(RUNNING, 0), held.get(CLAIMED, 0), ready, since, **later, capped=frozenset(capped))


def _ready(tx: Tx, scope: str, name: str) -> tuple[int, int | None, bool]:
    """How many are ready, since when the oldest is, and whether there may be more."""
    heads = [head for head in heads_of_queues(tx) if head.run_at <= tx.now]
    heads = [head for head in heads if name == (head.queue if scope == "queue" else kind_of(head.lane))]
    heads.sort(key=lambda head: head.run_at)
    number, since = 0, []
    for place, head in enumerate(heads[:_MAX_LANES]):
        if place < _MAX_HEADS and (first := first_of(tx, head)) is not None:
            since.append(ready_since(tx, first.id, first.run_at))
        given = {"queue": head.queue, "lane": head.lane, "priority": head.priority}
        number += tx.run(_READY, **given, now=tx.now, most=MAX_COUNTED - number).scalar_one()
        if number >= MAX_COUNTED:
            break
    return number, min(since, default=None), number >= MAX_COUNTED or len(heads) > _MAX_LANES

"""Dead letters by cause, with a trend and what retention removes soon; reads a bounded number of them."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.state import DEAD
from scheduler.ports import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import ended_as
from scheduler.store.read.tasks import errors_of

WINDOW = 10_000  # dead letters that are looked at, the newest first, and as many of those next to be removed
MAX_CAUSES = 200
BUCKETS = 24  # of a trend
_DEAD = ended_as(DEAD, "t")
_LEAVING = ended_as(DEAD, "t", before=":before")
_COLUMNS = "t.kind, t.error_class, t.fingerprint, t.id, t.finished_at"


class DeadCause(NamedTuple):
    """Dead letters of one kind and cause. ``id`` and ``error``: of the newest task. Instants are microseconds.

    ``trend``: how many died in each of :data:`BUCKETS` equal parts of the time looked at. ``leaving``: how many
    retention removes soon, the first of them at ``first_leaves``.
    """

    kind: str
    error_class: str | None
    fingerprint: str | None
    number: int
    id: int
    error: str | None
    oldest: int
    newest: int
    trend: tuple[int, ...]
    leaving: int
    first_leaves: int | None


class DeadCauses(NamedTuple):
    """The causes, the largest first. ``start``: where trends begin; ``whole``: these are all dead letters there are."""

    causes: list[DeadCause]
    start: int
    whole: bool


def causes(tx: Tx, *, kept: int | None = None, within: int = 0) -> DeadCauses:
    """The causes of the newest :data:`WINDOW` dead letters.

    ``kept``: how long retention keeps them; None: unknown. ``within``: removals within it count (microseconds).
    """
    newest = (
        f"SELECT {_COLUMNS} FROM schedd_tasks t WHERE {_DEAD} ORDER BY t.state DESC, t.finished_at DESC LIMIT {WINDOW}"
    )
    ended = newest.replace(_COLUMNS, "t.finished_at")  # of the index alone: the table is read once, below
    first = tx.run(f"SELECT min(finished_at) AS first, count(*) AS n FROM ({ended}) d").one()
    if not first.n:
        return DeadCauses([], tx.now, True)
    width = max(SECOND, (tx.now - first.first) // BUCKETS + 1)
    rows = tx.run(
        "SELECT kind, error_class, fingerprint, (finished_at - :start) / :width AS bucket, count(*) AS n, "
        f"min(finished_at) AS oldest, max(finished_at) AS newest, max(id) AS id FROM ({newest}) d "
        "GROUP BY kind, error_class, fingerprint, (finished_at - :start) / :width",
        start=first.first,
        width=width,
    ).fetchall()
    groups: dict[tuple[str, str | None, str | None], tuple[int, int, int, int]] = {}
    trends: dict[tuple[str, str | None, str | None], list[int]] = {}
    for row in rows:
        key = (row.kind, row.error_class, row.fingerprint)
        trend = trends.setdefault(key, [0] * BUCKETS)
        trend[min(BUCKETS - 1, max(0, int(row.bucket)))] += row.n
        had = groups.get(key)
        numbers = (int(row.n), int(row.id), int(row.oldest), int(row.newest))
        if had is not None:
            n, task_id, oldest, latest = had
            numbers = (n + row.n, max(task_id, row.id), min(oldest, row.oldest), max(latest, row.newest))
        groups[key] = numbers
    leaving = _leaving(tx, kept, within)
    ordered = sorted(groups.items(), key=lambda item: (-item[1][0], item[0][0]))[:MAX_CAUSES]
    errors = errors_of(tx, [numbers[1] for _, numbers in ordered])
    found = []
    for key, numbers in ordered:
        n, task_id, oldest, latest = numbers
        gone, at = leaving.get(key, (0, None))
        found.append(DeadCause(*key, n, task_id, errors.get(task_id), oldest, latest, tuple(trends[key]), gone, at))
    return DeadCauses(found, int(first.first), first.n < WINDOW and len(groups) <= MAX_CAUSES)


def _leaving(tx: Tx, kept: int | None, within: int) -> dict[tuple[str, str | None, str | None], tuple[int, int | None]]:
    if kept is None:
        return {}
    rows = tx.run(
        "SELECT kind, error_class, fingerprint, count(*) AS n, min(finished_at) AS oldest FROM "
        f"(SELECT {_COLUMNS} FROM schedd_tasks t WHERE {_LEAVING} "
        f"ORDER BY t.state, t.finished_at LIMIT {WINDOW}) d GROUP BY kind, error_class, fingerprint",
        before=tx.now - kept + within,
    )
    return {(r.kind, r.error_class, r.fingerprint): (int(r.n), int(r.oldest) + kept) for r in rows}

"""Messages in and out by what has become of them, counted up to a bound: a source may keep millions for days; and those
of late that could become no task."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from scheduler.model import inbox
from scheduler.model.outgoing import OUTBOX
from scheduler.model.redact import redact
from scheduler.model.state import DEAD, FIRST_TERMINAL, RETRY, WAITING
from scheduler.model.texts import counted, span_text
from scheduler.model.times import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, HELD, ended_as

MOST = 10_000  # rows that are looked at of each state


class InboxCounts(NamedTuple):
    """How many messages of a source are in a state that is not over, and when the last one came.

    ``held_since``: when the oldest held one came. ``at_least``: there may be more of each, and an older or a later one.
    """

    open: int
    held: int
    held_since: int | None
    dead: int
    last_at: int | None
    at_least: bool = False


class OutboxCounts(NamedTuple):
    """How many messages of a sink wait, wait for another try, and are dead letters; ``at_least``: or more."""

    waiting: int
    retrying: int
    dead: int
    at_least: bool = False


_OF_SOURCE = (
    f"SELECT count(*), coalesce(sum(CASE WHEN verdict = {inbox.OPEN} THEN 1 ELSE 0 END), 0), "
    f"coalesce(sum(CASE WHEN verdict = {inbox.HELD} THEN 1 ELSE 0 END), 0), "
    f"min(CASE WHEN verdict = {inbox.HELD} THEN first_at END), "
    f"coalesce(sum(CASE WHEN verdict = {inbox.DEAD} THEN 1 ELSE 0 END), 0), max(last_at) FROM "
    "(SELECT verdict, first_at, last_at FROM schedd_inbox WHERE source = :source ORDER BY source, message_key "
    "LIMIT :most) i"
)
# Of a source that keeps more, each from the index of its state.
_OPEN = (
    "SELECT count(*) FROM (SELECT 1 AS one FROM schedd_inbox WHERE receipt IS NOT NULL AND source = :source "
    f"AND verdict = {inbox.OPEN} LIMIT :most) i"
)
_HELD = (
    "SELECT count(*), min(first_at) FROM (SELECT first_at FROM schedd_inbox WHERE held IS NOT NULL "
    "AND source = :source LIMIT :most) i"
)
_NEWEST_DEAD = (
    "FROM (SELECT source, error, last_at FROM schedd_inbox "
    f"WHERE verdict = {inbox.DEAD} ORDER BY last_at DESC LIMIT :most) i WHERE source = :source"
)
_LAST = (
    "SELECT max(last_at) FROM (SELECT source, last_at FROM schedd_inbox ORDER BY expires_at DESC LIMIT :most) i "
    "WHERE source = :source"
)


def of_source(tx: Tx, source: str) -> InboxCounts:
    """The counts of one source."""
    bound = {"source": source, "most": MOST}
    looked, *counts = tx.run(_OF_SOURCE, **bound).one()
    if looked < MOST:
        return InboxCounts(*counts)
    held = tx.run(_HELD, **bound).one()
    dead = tx.run(f"SELECT count(*) {_NEWEST_DEAD}", **bound).scalar_one()
    return InboxCounts(
        tx.run(_OPEN, **bound).scalar_one(), held[0], held[1], dead, tx.run(_LAST, **bound).scalar(), at_least=True
    )


def last_dead(tx: Tx, source: str) -> tuple[str | None, int] | None:
    """Why the last message that could become no task could not, and when it came; of the last ones of all sources."""
    sql = f"SELECT error, last_at {_NEWEST_DEAD} ORDER BY last_at DESC LIMIT 1"
    row = tx.run(sql, source=source, most=MOST).first()
    return None if row is None else (row.error, row.last_at)


# The tasks of a sink have a lane of their own in the queue; those that are held, wait or have ended are looked for
# among the others.
_TASKS = (
    f"SELECT id, state, kind, queue, error FROM schedd_tasks WHERE {CLAIMABLE} AND queue = '{OUTBOX}' "
    "AND priority = :priority AND lane = :kind ORDER BY run_at, id LIMIT :most",
    f"SELECT id, state, kind, queue, error FROM schedd_tasks WHERE {HELD} ORDER BY worker, lane LIMIT :most",
    f"SELECT id, state, kind, queue, error FROM schedd_tasks WHERE state = {WAITING} ORDER BY id LIMIT :most",
    f"SELECT id, state, kind, queue, error FROM schedd_tasks WHERE {ended_as(DEAD)} "
    "ORDER BY state DESC, finished_at DESC LIMIT :most",
)
_COUNT = (
    f"SELECT state, count(*), sum(CASE WHEN kind = :kind AND queue = '{OUTBOX}' THEN 1 ELSE 0 END) FROM ({{}}) t "
    "GROUP BY state"
)
_ERROR = (
    f"SELECT id, error FROM ({{}}) t WHERE kind = :kind AND queue = '{OUTBOX}' AND error IS NOT NULL "
    f"AND state IN ({RETRY}, {DEAD}) ORDER BY id DESC LIMIT 1"
)
_PRIORITIES = (0, 1, 2)


def _looks() -> list[tuple[str, dict[str, int]]]:
    claimable, *others = _TASKS
    return [*((claimable, {"priority": one}) for one in _PRIORITIES), *((one, {}) for one in others)]


def of_sink(tx: Tx, kind: str) -> OutboxCounts:
    """The counts of one sink, by the kind of its tasks."""
    found = Counter[int]()
    at_least = False
    for tasks, bound in _looks():
        rows = tx.run(_COUNT.format(tasks), kind=kind, most=MOST, **bound).fetchall()
        at_least = at_least or sum(row[1] for row in rows) >= MOST
        for state, _, number in rows:
            found[state] += int(number)
    waiting = sum(found[state] for state in range(FIRST_TERMINAL) if state != RETRY)
    return OutboxCounts(waiting, found[RETRY], found[DEAD], at_least)


def last_error(tx: Tx, kind: str) -> str | None:
    """Why the newest message of a sink that waits for another try, or is a dead letter, has not gone out."""
    found: list[tuple[int, str]] = []
    for tasks, bound in _looks():
        row = tx.run(_ERROR.format(tasks), kind=kind, most=MOST, **bound).first()
        found += [] if row is None else [(row.id, str(row.error))]
    return max(found)[1] if found else None


RECENT = 86_400 * SECOND  # so long a dead message is told of where everything is
MOST_COUNTED = 1000  # messages that are looked at


class DeadMessages(NamedTuple):
    """Of one source: how many have come of late, when the last one did, and why it could become no task."""

    source: str
    number: int
    last_at: int
    error: str
    more: bool = False


def recent_dead(tx: Tx) -> list[DeadMessages]:
    """The sources whose messages could become no task in the last day, the latest first."""
    rows = tx.run(
        f"SELECT i.source, i.last_at, i.error FROM schedd_inbox i WHERE i.verdict = {inbox.DEAD} "
        f"AND i.last_at > :since ORDER BY i.last_at DESC LIMIT {MOST_COUNTED}",
        since=tx.now - RECENT,
    ).all()
    found: dict[str, DeadMessages] = {}
    for row in rows:
        one = found.get(row.source)
        if one is None:
            error = redact(row.error or "for an unknown reason")
            found[row.source] = DeadMessages(row.source, 1, row.last_at, error, len(rows) == MOST_COUNTED)
        else:
            found[row.source] = one._replace(number=one.number + 1)
    return list(found.values())


def dead_texts(found: list[DeadMessages], now: int) -> list[str]:
    """A sentence for each source."""
    return [
        f"{'at least ' if one.more else ''}{counted(one.number, 'message')} of source {one.source} could become no "
        f"task within a day, the last {span_text(now - one.last_at)} ago: {one.error}"
        for one in found
    ]

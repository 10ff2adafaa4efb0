"""Messages that are held, since others of their subject before them are missing: what there is, and letting them go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.texts import counted, span_text
from scheduler.store import audit
from scheduler.store.db.tx import Tx
from scheduler.store.inbox_order import Ordering, place

SUBJECTS_AT_ONCE = 100  # whose messages one transaction lets go
MOST_COUNTED = 10_000  # held messages that are counted
_ANY = Ordering("wait")


class HeldMessage(NamedTuple):
    """The held messages of a source; ``more``: there are others that were not counted. ``since``: the oldest came."""

    source: str
    number: int
    subjects: int
    since: int
    more: bool = False


def held(tx: Tx) -> list[HeldMessage]:
    """The sources with messages that are held."""
    rows = tx.run(
        "SELECT q.source, count(*) AS number, count(DISTINCT q.subject) AS subjects, min(q.first_at) AS since FROM "
        f"(SELECT source, subject, first_at FROM schedd_inbox WHERE held IS NOT NULL LIMIT {MOST_COUNTED}) q "
        "GROUP BY q.source ORDER BY q.source"
    ).all()
    cut = sum(row.number for row in rows) >= MOST_COUNTED
    return [HeldMessage(row.source, row.number, row.subjects, row.since, cut) for row in rows]


def held_texts(found: Sequence[HeldMessage], now: int) -> list[str]:
    """A sentence for each source, with what lets its messages go."""
    return [
        f"{'at least ' if one.more else ''}{counted(one.number, 'message')} of source {one.source} "
        f"({counted(one.subjects, 'subject')}) held for {span_text(now - one.since)}, as others before them have not "
        f"come: `schedctl inbox release {one.source}` runs them"
        for one in found
    ]


def held_subjects(tx: Tx, source: str, before: int, subject: str | None = None) -> list[str]:
    """Subjects with messages that have been held since ``before``, up to :data:`SUBJECTS_AT_ONCE`."""
    rows = tx.run(
        "SELECT DISTINCT subject FROM schedd_inbox WHERE source = :source AND held IS NOT NULL "
        f"AND first_at <= :before {'' if subject is None else 'AND subject = :subject '}"
        f"ORDER BY subject LIMIT {SUBJECTS_AT_ONCE}",
        source=source,
        before=before,
        **({} if subject is None else {"subject": subject}),
    )
    return [row.subject for row in rows]


def let_go(tx: Tx, source: str, subjects: Sequence[str], before: int, ordering: Ordering | None = None) -> list[int]:
    """Make tasks of the messages of these subjects that have been held since ``before``; returns the tasks' ids.

    They run in their order. One that is still missing becomes no task any more: it is late when it comes.
    """
    from scheduler.store.inbox import InboxRules, make_tasks  # far more than counting what is held needs

    places = place(tx, source, subjects, ordering or _ANY)
    for one in places:
        one.skip(before)
    entries = make_tasks(tx, source, [], places, InboxRules(0)).values()
    return [entry.task_id for entry in entries if entry.task_id is not None]


def release(tx: Tx, source: str, subject: str | None = None) -> list[int]:
    """Let held messages go by hand, of up to :data:`SUBJECTS_AT_ONCE` subjects, and record it; returns the tasks' ids.

    There may be more if it has returned any.
    """
    subjects = held_subjects(tx, source, tx.now, subject)
    made = let_go(tx, source, subjects, tx.now) if subjects else []
    if made:
        audit.record(tx, "release", subject=f"source {source}", messages=len(made), subjects=subjects[:20])
    return made

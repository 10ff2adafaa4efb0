"""Messages that could become no task: how many of late, and why the last one could not."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model import inbox as codes
from scheduler.model.redact import redact
from scheduler.model.texts import counted, span_text
from scheduler.model.times import SECOND
from scheduler.store.db.tx import Tx

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
        f"SELECT i.source, i.last_at, i.error FROM schedd_inbox i WHERE i.verdict = {codes.DEAD} "
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

"""``schedctl queues``: what waits in each queue, who serves it, what holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints
from scheduler.cli.watch import watchable

if TYPE_CHECKING:
    from scheduler.operations.kinds import QueueRecord

FIELDS = (
    *("queue", "ready", "later", "held", "running", "retry", "suspended", "waiting", "at_least"),
    *("oldest_ready", "oldest_age", "in", "out", "workers", "unserved", "last_served", "remedy"),
    *("paused", "max_concurrency", "rate_limit"),
)
_COLUMNS = (
    *("queue", "ready", "age", "later", "held", "retry", "suspended"),
    *("in", "out", "workers", "notes"),
)
_NOTED = 10  # queues that nobody serves, in sentences


@click.command(name="queues")
@common
@prints(FIELDS)
@watchable
def queues_command(session: Session, /) -> None:
    """Queues: the tasks that wait in each, their age, the workers that serve it, and the limits that hold it back.

    READY tasks are due, and AGE is how long the oldest has waited for a worker; LATER, RETRY and SUSPENDED are not
    due. HELD tasks are claimed or running. IN and OUT are tasks a second over up to ten minutes. A number with + is
    the least.
    """
    from scheduler.client.json_views import queue_view
    from scheduler.operations.kinds import queues

    database = session.existing()
    with database.read() as tx:
        now = tx.now
        found = queues(tx)
    views = [queue_view(one, now) for one in found.rows]
    if session.output == "table":
        unserved = [text for text in (one.unserved_text for one in found.rows) if text is not None]
        for text in unserved[:_NOTED]:
            note(text)
        if len(unserved) > _NOTED:
            note(f"{len(unserved) - _NOTED} more queues have tasks that no live worker serves")
        for pause in dict.fromkeys(one.pause for one in found.rows if one.pause is not None):
            note(f"{pause.describe()}: `{pause.remedy}` ends that")
    if found.more:
        note(f"there are more queues than the {len(found.rows)} listed")
    if not views:
        note("no task, no worker, no pause and no limit names a queue")
    rows = [view | _row(one, view) for one, view in zip(found.rows, views, strict=True)]
    print_rows(session, rows if session.output == "table" else views, _COLUMNS)


def _row(queue: QueueRecord, view: dict[str, Any]) -> dict[str, Any]:
    notes = [] if queue.pause is None else ["paused"]
    notes += [] if queue.unserved is None else ["unserved"]
    notes += [] if queue.max_concurrency is None else [f"cap {queue.max_concurrency}"]
    notes += [] if queue.rate_limit is None else [queue.rate_limit]
    return {
        **{name: f"{view[name]}+" for name in queue.at_least},
        "age": view["oldest_age"],
        "in": f"{_rate(queue.arriving)}+" if "ready" in queue.at_least else _rate(queue.arriving),
        "out": _rate(queue.leaving),
        "workers": len(queue.workers),
        "notes": ", ".join(notes),
    }


def _rate(value: float) -> float:
    return round(value, 1 if value >= 0.1 else 3)

"""``/queues``: what waits in each queue, who serves it, what holds it back; pause and resume."""

from __future__ import annotations

from typing import Any

from scheduler.client.json_views import queue_view
from scheduler.console.masks import masked_text
from scheduler.console.render import Page
from scheduler.console.routes import Nav, page
from scheduler.console.visit import Visit
from scheduler.operations.kinds import QueueRecord
from scheduler.operations.kinds import queues as read_queues

SHOWN = 300  # queues on one page
TOLD = 10  # that nobody serves, in sentences


@page("/queues", nav=Nav("Queues", "q", 55))
def queues(visit: Visit) -> Page:
    """The queues by name."""
    with visit.read() as tx:
        found, now = read_queues(tx, SHOWN), tx.now
    rows = [_masked(one) for one in found.rows]
    unserved = [one.unserved_text for one in rows if one.unserved is not None]
    context: dict[str, Any] = {"rows": rows, "more": found.more, "unserved": unserved, "told": TOLD}
    data = {"queues": [queue_view(one, now) for one in rows], "more": found.more}
    return Page("queues.html", data, context, "schedctl queues")


def _masked(one: QueueRecord) -> QueueRecord:
    if one.pause is None:
        return one
    return one._replace(pause=one.pause._replace(reason=masked_text(one.pause.reason)))

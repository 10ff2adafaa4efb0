"""The lanes with claimable tasks, as reads for people look at them: a bounded number of each queue."""

from __future__ import annotations

from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import LaneHead, lane_heads

MAX_LANES = 2_000  # of each queue and priority, or some more: keys may make a lane of each task


def heads_of_queues(tx: Tx) -> list[LaneHead]:
    """The heads of the lanes with a claimable task, up to ``MAX_LANES`` of each queue and priority."""
    found, after = list[LaneHead](), None
    while True:
        some = lane_heads(tx, after, MAX_LANES)
        found += some
        if len(some) < MAX_LANES:
            return found
        last = some[-1]
        if any((head.queue, head.priority) != (last.queue, last.priority) for head in some):
            after = last
        else:
            after = LaneHead(last.queue, "", last.priority + 1, 0)

"""Spans of attempts, in the dispatch cycle: their ids are stored with the outcomes, and they are written after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import sub
from typing import TYPE_CHECKING

from scheduler.engine.attempt.attempt import Attempt
from scheduler.model.outcome import AttemptEnd, Outcome, OutcomeColumns
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import traces
from scheduler.store.tasks.claim import HAS_PARENTS, Claimed

if TYPE_CHECKING:
    from scheduler.telemetry.otel import Tracing

Pairs = Sequence[tuple[Attempt, Outcome]]


def store(
    tx: Tx, worker: int, tracing: Tracing, pairs: Pairs, ends: OutcomeColumns, unrecorded: Collection[Outcome]
) -> None:
    """Store the ids of the spans of these attempts, and read what the spans link to.

    In the transaction that records the outcomes. ``unrecorded``: those among them that it did not record.
    """
    tracing.recording_began()
    if ends.plain and not tracing.chosen:
        longest = max(map(sub, ends.finished_at, ends.started_at), default=0)  # pyright: ignore[reportArgumentType]
        if longest <= tracing.slow_us:
            return
    skipped = {(o.task_id, o.claim) for o in unrecorded}
    found = [
        (attempt, attempt.trace, o)
        for attempt, o in pairs
        if o.started_at is not None
        and (o.task_id, o.claim) not in skipped
        and tracing.choose_late(attempt, o)
        and attempt.trace is not None
    ]
    if not found:
        return
    traces.write(tx, worker, [(o.task_id, o.claim, trace.context.traceparent) for _, trace, o in found])
    linking = [(trace, o) for attempt, trace, o in found if _has_links(attempt.claimed)]
    if linking:
        linked = traces.linked(tx, [(o.task_id, o.claim) for _, o in linking])
        for trace, o in linking:
            trace.linked = linked.get(o.task_id)


def _has_links(c: Claimed) -> bool:
    """Whether its span may link to others: those of earlier attempts, or of parents."""
    return c.claim > 1 or bool(c.extras & HAS_PARENTS) or c.original_id is not None


def write(
    tracing: Tracing, pairs: Pairs, lost: Collection[tuple[int, int]], overridden: Mapping[int, AttemptEnd]
) -> None:
    """Write the spans of those of these attempts that are traced, after the commit."""
    for attempt, o in pairs if tracing.chosen else ():
        if attempt.trace is not None:
            tracing.chosen -= 1
            if (o.task_id, o.claim) not in lost:
                end = overridden.get(o.task_id)
                tracing.write(attempt, o if end is None else o._replace(end=end))
    if pairs:
        tracing.recorded(len(pairs) - len(lost))

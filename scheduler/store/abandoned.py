"""Claims that are held for jobs of executors which no daemon looks after."""

from __future__ import annotations

from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.state import CANCELLED, SCHEDULED
from scheduler.store.db.tx import Tx
from scheduler.store.placements import ABANDONED_AFTER, end
from scheduler.store.predicates import held
from scheduler.store.tasks.complete import finish

MAX_ABANDONED = 1000  # tasks given back at once
_ABANDONED = f"""
SELECT t.id, t.claim, t.attempt, t.claimed_at, t.cancel_requested, t.worker FROM schedd_executors e
JOIN schedd_tasks t ON t.worker = e.worker AND {held("t")} WHERE e.until < :before
ORDER BY t.id + 0 LIMIT {MAX_ABANDONED}
"""


def abandoned(tx: Tx) -> list[int]:
    """Tasks that are held for jobs of executors which no daemon has placed for lately."""
    return [row.id for row in tx.run(_ABANDONED, before=tx.now - ABANDONED_AFTER)]


def release_abandoned(tx: Tx) -> None:
    """Give them back, without using an attempt, or end what was to be cancelled. A job that begins late loses."""
    found: dict[int, list[Outcome]] = {}
    for row in tx.run(_ABANDONED, before=tx.now - ABANDONED_AFTER):
        cancelled = row.cancel_requested is not None
        how, state = (AttemptEnd.CANCELLED, CANCELLED) if cancelled else (AttemptEnd.HANDED_BACK, SCHEDULED)
        outcome = Outcome(row.id, row.claim, row.attempt, how, state, row.claimed_at, None, tx.now)
        found.setdefault(row.worker, []).append(outcome._replace(refund=int(not cancelled)))
    for worker, outcomes in found.items():
        finish(tx, worker, outcomes)
        end(tx, [(outcome.task_id, outcome.claim) for outcome in outcomes])

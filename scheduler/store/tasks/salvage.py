"""Records outcomes one by one, after a batch failed: a bad one must not block the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa

from scheduler.model.fingerprint import describe
from scheduler.model.outcome import AttemptEnd, Failure, Lifetimes, Outcome
from scheduler.model.state import DEAD, TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.complete import Completion, finish

log = logging.getLogger("scheduler.engine")


def complete_one_by_one(tx: Tx, worker: int, outcomes: Sequence[Outcome], lifetimes: Lifetimes) -> Completion:
    """Like :func:`finish`; a task whose outcome the database refuses ends dead, with the reason."""
    ended: dict[int, TaskState] = {}
    lost: list[Outcome] = []
    deferred: list[Outcome] = []
    ready = 0
    overridden: dict[int, AttemptEnd] = {}
    for outcome in outcomes:
        try:
            done = _alone(tx, worker, outcome, lifetimes)
        except (sa.exc.OperationalError, sa.exc.InterfaceError):
            raise  # trouble with the database, not with this outcome
        except Exception as error:
            log.exception("an outcome cannot be recorded: its task is set aside", extra={"task": outcome.task_id})
            done = _alone(tx, worker, _set_aside(outcome, error, tx.now), lifetimes)
        ended |= done.ended
        lost += [outcome] * len(done.lost)
        deferred += [outcome] * len(done.deferred)
        ready += done.ready
        overridden |= done.overridden
    return Completion(ended, lost, deferred, ready, overridden)


def _alone(tx: Tx, worker: int, outcome: Outcome, lifetimes: Lifetimes) -> Completion:
    with tx.connection.begin_nested():
        return finish(tx, worker, [outcome], lifetimes=lifetimes)


def _set_aside(o: Outcome, error: Exception, now: int) -> Outcome:
    why = describe(error)
    failure = Failure(f"its outcome could not be recorded: {why.text}"[:2000], why.error_class, why.fingerprint)
    started = None if o.started_at is None else now  # keep as little as possible of the refused outcome
    return Outcome(o.task_id, o.claim, o.number, AttemptEnd.DEAD, DEAD, None, started, now, failure=failure)

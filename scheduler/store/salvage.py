"""Recording outcomes one by one, after they could not be recorded together: a bad one must not keep the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.fingerprint import describe
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.state import TaskState
from scheduler.store.dialect import Dialect
from scheduler.store.finish import Finished, finish

log = logging.getLogger("scheduler.engine")


def finish_one_by_one(
    connection: sa.Connection, dialect: Dialect, worker: int, outcomes: Sequence[Outcome], now: int
) -> Finished:
    """Like :func:`finish`; a task whose outcome the database refuses is set aside as dead, with the reason."""
    ended: dict[int, TaskState] = {}
    lost: list[Outcome] = []
    deferred: list[Outcome] = []
    ready = 0
    told: dict[int, AttemptEnd] = {}
    for outcome in outcomes:
        try:
            done = _alone(connection, dialect, worker, outcome, now)
        except (sa.exc.OperationalError, sa.exc.InterfaceError):
            raise  # trouble with the database, not with this outcome
        except Exception as error:
            log.exception("an outcome cannot be recorded: its task is set aside", extra={"task": outcome.task_id})
            done = _alone(connection, dialect, worker, _set_aside(outcome, error, now), now)
        ended |= done.ended
        lost += [outcome] * len(done.lost)
        deferred += [outcome] * len(done.deferred)
        ready += done.ready
        told |= done.told
    return Finished(ended, lost, deferred, ready, told)


def _alone(connection: sa.Connection, dialect: Dialect, worker: int, outcome: Outcome, now: int) -> Finished:
    with connection.begin_nested():
        return finish(connection, dialect, worker, [outcome], now)


def _set_aside(o: Outcome, error: Exception, now: int) -> Outcome:
    why = describe(error)
    failure = Failure(f"its outcome could not be recorded: {why.text}"[:2000], why.error_class, why.fingerprint)
    started = None if o.started_at is None else now  # of what it says itself, as little as possible
    return Outcome(o.task_id, o.claim, o.number, AttemptEnd.DEAD, st.DEAD, None, started, now, failure=failure)

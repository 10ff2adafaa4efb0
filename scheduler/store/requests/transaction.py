"""Commits a handler's own rows together with its success or a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scheduler.model.outcome import Lifetimes, Outcome
from scheduler.model.state import TaskState
from scheduler.ports import FAILPOINTS
from scheduler.store import workers
from scheduler.store.db.dialect import dialect_of, fence
from scheduler.store.db.handler_transaction import Transaction
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints
from scheduler.store.durable.checkpoints import CheckpointEntry
from scheduler.store.predicates import IS_HELD
from scheduler.store.tasks import control
from scheduler.store.tasks.complete import finish

HELD, LOST, CANCELLED = "held", "lost", "cancelled"


class CommitResult(NamedTuple):
    """``status``: HELD, or why nothing was committed; ``ready``: dependents that may run now."""

    status: str
    ready: int


def succeed(
    transaction: Transaction,
    worker: int,
    outcome: Outcome,
    now: Callable[[], int],
    wait: Callable[[], None],
    lifetimes: Lifetimes,
) -> CommitResult:
    """Commit the handler's rows with its success, if ``worker`` still holds the claim and the task is not cancelled.

    ``wait`` is called while another transaction holds what has to be changed; it may raise.
    """
    dialect = dialect_of(transaction)
    with transaction.ending():
        while True:
            tried = transaction.begin_nested() if dialect.skip_locked else None
            done = finish(Tx(transaction, now()), worker, [outcome], lifetimes=lifetimes)
            if not done.deferred:
                break
            if tried is not None:
                tried.rollback()  # nothing stays locked meanwhile: the holder of the rest may wait for it
            wait()
        if tried is not None:
            tried.commit()
        if done.lost:
            return CommitResult(LOST, 0)
        # One that was replaced meanwhile has not ended: it runs once more, and what it did counts all the same.
        if done.ended.get(outcome.task_id, TaskState.SUCCESS) is not TaskState.SUCCESS:
            return CommitResult(CANCELLED, 0)
        _commit(transaction)
    return CommitResult(HELD, done.ready)


def _commit(transaction: Transaction) -> None:
    FAILPOINTS.hit("before transaction commit")
    transaction.commit_now()
    FAILPOINTS.hit("after transaction commit")


def record_step(transaction: Transaction, worker: int, entry: CheckpointEntry, now: int, lease: int) -> str:
    """Commit the handler's rows with the checkpoint of a step. Returns HELD, or why nothing was committed."""
    tx = Tx(transaction, now)
    with transaction.ending():
        row = tx.run(
            "SELECT t.cancel_requested FROM schedd_tasks t, (SELECT CAST(:claim AS bigint) AS claim) j "
            f"WHERE t.id = :id AND {fence(IS_HELD)} {tx.dialect.share}",  # as a caller's depend_on holds it
            id=entry.task_id,
            claim=entry.claim,
            worker=worker,
        ).first()
        if row is None:
            return LOST
        if row[0] is not None:
            return CANCELLED
        checkpoints.write(tx, [entry])
        control.stamp(tx, worker, [(entry.task_id, entry.claim, None, None)])
        workers.renew(tx, worker, lease)
        _commit(transaction)
    return HELD

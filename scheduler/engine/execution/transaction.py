"""``ctx.transaction()``: commits a handler's rows with its success or a step's checkpoint."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.backoff import Backoff
from scheduler.engine.attempt.outcomes import result_text, success
from scheduler.engine.durable.async_driver import active, run_in_thread_of
from scheduler.engine.durable.calls import Durable, StepScope, current_scope
from scheduler.engine.durable.thread_driver import drive
from scheduler.errors import (
    Cancelled,
    Collided,
    Interrupted,
    LeaseLost,
    PermanentError,
    Retry,
    Snooze,
    StoreUnavailableError,
)
from scheduler.model.checkpoint import CheckpointType, encoded
from scheduler.model.outcome import Lifetimes
from scheduler.ports import SECOND
from scheduler.store.db.handler_transaction import Transaction, is_transient
from scheduler.store.durable.checkpoints import CheckpointEntry
from scheduler.store.requests.transaction import CANCELLED, LOST, record_step, succeed

if TYPE_CHECKING:
    from contextvars import Token

    import sqlalchemy as sa

T = TypeVar("T")
_HANDLER_DECISIONS = (PermanentError, Retry, Snooze)  # the handler chose what follows, also after a collision
_RETRY_PAUSES_S = (0.005, 0.2)  # between tries while another transaction is open: first, longest


class _TransactionScope:
    """The common part of both blocks."""

    def __init__(self, durable: Durable) -> None:
        self.durable = durable
        self.attempt = durable.attempt
        self.runtime = durable.runtime
        self.transaction: Transaction | None = None
        self._worker, self._lease, self._lifetimes = 0, 0, Lifetimes()
        self._step: StepScope | None = None
        self._scope: StepScope | None = None
        self._token: Token[StepScope | None] | None = None
        self._backoff = Backoff(*_RETRY_PAUSES_S)
        self._unvisited: list[str] = []
        self._span = self.durable.inside("transaction")

    def enter(self) -> None:
        """Set the scope. Raises what ends the handler, and PermanentError if none can begin."""
        self._step = self.durable.before_transaction()
        label = "" if self._step is None else self._step.label
        self._scope = StepScope(self.attempt, label=label, transaction=True)
        self._token = current_scope.set(self._scope)
        self._span.__enter__()

    def opened(self, connection: Any) -> None:
        """Let ``ctx.publish()`` find it, also in a thread that has no context."""
        if self._scope is not None:
            self._scope.connection = connection
            self.attempt.transaction = self._scope

    def leave(self) -> None:
        if self._scope is not None:
            self._scope.connection = None
            if self.attempt.transaction is self._scope:  # not that of another step, which runs at once
                self.attempt.transaction = None
        if self._token is not None:
            current_scope.reset(self._token)
            self._span.__exit__(*sys.exc_info())

    def open(self) -> Transaction:
        """Open the transaction; wait while the database is unreachable, as other calls of ctx do."""
        drive(self.durable, self.durable.settle())  # an engine could not write them beside it
        database, self._worker, lease, self._lifetimes = self.runtime.store(self.attempt)
        self._lease = round(lease * SECOND)
        while self.transaction is None:
            try:
                self.transaction = database.transaction(lease)
            except StoreUnavailableError:
                if not self.runtime.waits_through_outages:
                    raise
                self._wait()
        return self.transaction

    def close(self, error: BaseException | None) -> None:
        """Commit; or roll back after this error of the block.

        Raises LeaseLost, Cancelled, TransactionTooLong, and Collided for an error that another try may not meet.
        """
        transaction = self.transaction
        if transaction is None:
            return
        raised = error
        if error is None:
            try:
                self._commit(transaction)
            except BaseException as failed:
                raised = failed
        expired, collided = transaction.expired, transaction.collided or is_transient(raised)
        transaction.give_up()
        if self.attempt.committed_outcome is not None:
            self.durable.note_unvisited(self._unvisited)
            self.attempt.ended = True
        if raised is None:
            return
        if not isinstance(raised, (Interrupted, LeaseLost)):
            if expired:
                raise transaction.too_long() from raised
            if collided and not isinstance(raised, _HANDLER_DECISIONS):
                raise Collided("two transactions were in each other's way") from raised
        if error is None:
            raise raised

    def _commit(self, transaction: Transaction) -> None:
        self.attempt.check(self.runtime.monotonic())
        if self._step is None:
            self._succeed(transaction)
        else:
            self._record(transaction, self._step)

    def _succeed(self, transaction: Transaction) -> None:
        drive(self.durable, self.durable.read_recorded())  # this is a thread, also for coroutines
        unvisited = self.durable.finish()
        outcome = success(self.attempt, self.runtime, result_text(transaction.result))
        done = succeed(transaction, self._worker, outcome, self.runtime.now, self._wait, self._lifetimes)
        self._check_status(done.status)
        self.runtime.settled(self.attempt, outcome, done.ready)
        self._unvisited = unvisited

    def _record(self, transaction: Transaction, step: StepScope) -> None:
        c = self.attempt.claimed
        text = encoded(transaction.result, f"the result of step {step.name!r}")
        entry = CheckpointEntry(
            *(c.id, c.claim, step.label, CheckpointType.STEP, step.seq, text), started_at=step.started, note=step.note
        )
        self._check_status(record_step(transaction, self._worker, entry, self.runtime.now(), self._lease))
        step.recorded, step.value = True, text

    def _check_status(self, status: str) -> None:
        task_id = self.attempt.claimed.id
        if status == LOST:
            self.attempt.lost = True
            raise LeaseLost(f"task {task_id} is no longer held by this worker; its transaction is rolled back")
        if status == CANCELLED:
            self.attempt.cancelled = True
            raise Cancelled(f"task {task_id} was cancelled; its transaction is rolled back")

    def _wait(self) -> None:
        """Pause before a retry: the database is away, or another transaction holds the rows."""
        time.sleep(self._backoff.next())
        self.attempt.check(self.runtime.monotonic())


class TransactionBlock(_TransactionScope):
    """``with ctx.transaction() as tx:`` in a thread."""

    def __enter__(self) -> Transaction:
        self.enter()
        try:
            made = self.open()
            self.opened(made)
            return made
        except BaseException:
            self.leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(error)
        finally:
            self.leave()


class AsyncTransaction:
    """The transaction of a coroutine: every call runs in a thread, one at a time."""

    def __init__(self, connection: Transaction, thread: Executor) -> None:
        self.connection = connection
        self._thread = thread
        self._lock = asyncio.Lock()

    @property
    def result(self) -> Any:
        """The task's result, or the step's value."""
        return self.connection.result

    @result.setter
    def result(self, value: Any) -> None:
        self.connection.result = value

    async def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.Result[Any]:
        """Execute a SQLAlchemy statement. Its rows are fetched when this returns."""
        return await self.run(_executed, statement, parameters)

    async def run(self, function: Callable[..., T], /, *args: Any) -> T:
        """Call ``function(connection, *args)`` with the SQLAlchemy Connection."""
        async with self._lock:
            return await run_in_thread_of(self._thread, function, self.connection, *args)  # type: ignore[no-any-return]


def _executed(connection: Transaction, statement: sa.Executable, parameters: Any) -> sa.Result[Any]:
    result = connection.execute(statement, parameters)
    return result.freeze()() if result.returns_rows else result


class AsyncTransactionBlock(_TransactionScope):
    """``async with ctx.transaction() as tx:`` in a coroutine.

    It has a thread of its own: if all of the event loop's threads waited for SQLite's write lock, the transaction that
    holds the lock could not go on.
    """

    def __init__(self, durable: Durable) -> None:
        super().__init__(durable)
        self._thread = ThreadPoolExecutor(1, "schedd-transaction")
        self._activity = ExitStack()

    async def __aenter__(self) -> AsyncTransaction:
        self.enter()
        self._activity.enter_context(active(self.attempt))
        try:
            made = AsyncTransaction(await run_in_thread_of(self._thread, self.open), self._thread)
            self.opened(made)
            return made
        except BaseException:
            if self.transaction is not None:
                self.transaction.give_up()
            self._clean_up()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await run_in_thread_of(self._thread, self.close, error)
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        self._thread.shutdown(wait=False)
        self.leave()
        self._activity.close()

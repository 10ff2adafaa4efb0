"""``ctx.transaction()``: the handler's rows commit with its success, or inside a step with that step's checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.engine.async_durable import busy, in_thread_of
from scheduler.engine.durable import Durable, Frame, inside
from scheduler.engine.sync_durable import drive
from scheduler.engine.verdict import result_text, success
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
from scheduler.model.checkpoint import Sort, encoded
from scheduler.ports import SECOND
from scheduler.store import effects
from scheduler.store.checkpoints import Entry
from scheduler.store.transaction import Transaction, is_transient

if TYPE_CHECKING:
    from contextvars import Token

    import sqlalchemy as sa

T = TypeVar("T")
_SAID = (PermanentError, Retry, Snooze)  # a handler's own word on what is to follow, also upon a collision
_PAUSES = (0.005, 0.2)  # seconds between looks whether somebody's open transaction has ended: first, most


class _Scope:
    """What both sorts of blocks have in common."""

    def __init__(self, durable: Durable) -> None:
        self.durable = durable
        self.attempt = durable.attempt
        self.runtime = durable.runtime
        self.transaction: Transaction | None = None
        self._worker, self._lease = 0, 0
        self._step: Frame | None = None
        self._token: Token[Frame | None] | None = None
        self._pause = _PAUSES[0]
        self._unmet: list[str] = []

    def enter(self) -> None:
        """Raises what should end the handler, and PermanentError where there can be no transaction."""
        self._step = self.durable.before_transaction()
        self._token = inside.set(Frame(self.attempt, transaction=True))

    def leave(self) -> None:
        if self._token is not None:
            inside.reset(self._token)

    def open(self) -> Transaction:
        """While the database is away it waits, as all does that a handler asks of it."""
        database, self._worker, lease = self.runtime.store(self.attempt)
        self._lease = round(lease * SECOND)
        while self.transaction is None:
            try:
                self.transaction = database.transaction(lease)
            except StoreUnavailableError:
                if not self.runtime.patient:
                    raise
                self._wait()
        return self.transaction

    def close(self, error: BaseException | None) -> None:
        """Commit; or roll back, after this error of the block.

        Raises LeaseLost, Cancelled, TransactionTooLong, and Collided for an error that another try will not meet.
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
        if self.attempt.settled is not None:
            self.durable.note(self._unmet)
            self.attempt.ended = True
        if raised is None:
            return
        if not isinstance(raised, (Interrupted, LeaseLost)):
            if expired:
                raise transaction.too_long() from raised
            if collided and not isinstance(raised, _SAID):
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
        drive(self.durable, self.durable.read_recorded())  # in a thread, also of a coroutine
        unmet = self.durable.finish()
        outcome = success(self.attempt, self.runtime, result_text(transaction.result))
        done = effects.succeed(transaction, self._worker, outcome, self.runtime.now, self._wait)
        self._heed(done.said)
        self.runtime.settled(self.attempt, outcome, done.ready)
        self._unmet = unmet

    def _record(self, transaction: Transaction, step: Frame) -> None:
        c = self.attempt.claimed
        text = encoded(transaction.result, f"the result of step {step.name!r}")
        entry = Entry(*(c.id, c.claim, step.label, Sort.STEP, step.seq, text), started_at=step.started, note=step.note)
        self._heed(effects.record_step(transaction, self._worker, entry, self.runtime.now(), self._lease))
        step.recorded, step.value = True, text

    def _heed(self, said: str) -> None:
        task_id = self.attempt.claimed.id
        if said == effects.LOST:
            self.attempt.lost = True
            raise LeaseLost(f"task {task_id} is no longer held by this worker; its transaction is rolled back")
        if said == effects.CANCELLED:
            self.attempt.cancelled = True
            raise Cancelled(f"task {task_id} was cancelled; its transaction is rolled back")

    def _wait(self) -> None:
        """The database is away, or somebody's open transaction holds what waits for this task: a moment later again."""
        time.sleep(self._pause)
        self._pause = min(_PAUSES[1], 2 * self._pause)
        self.attempt.check(self.runtime.monotonic())


class TransactionBlock(_Scope):
    """``with ctx.transaction() as tx:`` in a thread."""

    def __enter__(self) -> Transaction:
        self.enter()
        try:
            return self.open()
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
    """What a coroutine does its rows with: every call runs in a thread, one at a time."""

    def __init__(self, connection: Transaction, thread: Executor) -> None:
        self.connection = connection
        self._thread = thread
        self._one = asyncio.Lock()

    @property
    def result(self) -> Any:
        """What becomes the task's result, or the step's value."""
        return self.connection.result

    @result.setter
    def result(self, value: Any) -> None:
        self.connection.result = value

    async def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.Result[Any]:
        """Execute a statement of SQLAlchemy's. Its rows are there when this returns."""
        return await self.run(_executed, statement, parameters)

    async def run(self, function: Callable[..., T], /, *args: Any) -> T:
        """Call ``function(connection, *args)`` with the SQLAlchemy Connection."""
        async with self._one:
            return await in_thread_of(self._thread, function, self.connection, *args)  # type: ignore[no-any-return]


def _executed(connection: Transaction, statement: sa.Executable, parameters: Any) -> sa.Result[Any]:
    result = connection.execute(statement, parameters)
    return result.freeze()() if result.returns_rows else result


class AsyncTransactionBlock(_Scope):
    """``async with ctx.transaction() as tx:`` in a coroutine.

    Its thread is its own: if the event loop's few threads all waited for SQLite's write lock, who holds it could do
    nothing more.
    """

    def __init__(self, durable: Durable) -> None:
        super().__init__(durable)
        self._thread = ThreadPoolExecutor(1, "schedd-transaction")
        self._doing = ExitStack()

    async def __aenter__(self) -> AsyncTransaction:
        self.enter()
        self._doing.enter_context(busy(self.attempt))
        try:
            return AsyncTransaction(await in_thread_of(self._thread, self.open), self._thread)
        except BaseException:
            if self.transaction is not None:
                self.transaction.give_up()
            self._end()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await in_thread_of(self._thread, self.close, error)
        finally:
            self._end()

    def _end(self) -> None:
        self._thread.shutdown(wait=False)
        self.leave()
        self._doing.close()

"""What a handler gets as ``ctx``. Calls that write are requests to the engine, answered after the next commit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import msgspec

from scheduler.engine.async_durable import busy, drive_async
from scheduler.engine.durable import Durable, as_decorator
from scheduler.engine.functions import Answer, wait_for, wait_for_async
from scheduler.engine.sync_durable import drive
from scheduler.model.envelope import idempotency_key
from scheduler.model.spec import TaskId
from scheduler.model.texts import storable
from scheduler.model.times import to_datetime

if TYPE_CHECKING:
    from scheduler.engine.attempt import Attempt
    from scheduler.engine.runtime import Runtime
    from scheduler.engine.transaction import AsyncTransactionBlock, TransactionBlock

MAX_MESSAGE = 2000  # characters kept of a progress message
P = ParamSpec("P")
R = TypeVar("R")


class _ContextBase:
    """The part that only looks: names, times, envelope."""

    __slots__ = ("_attempt", "_log", "_runtime")

    def __init__(self, attempt: Attempt, runtime: Runtime) -> None:
        self._attempt = attempt
        self._runtime = runtime
        self._log: Any = None

    @property
    def id(self) -> int:
        """The task's id."""
        return self._attempt.claimed.id

    @property
    def kind(self) -> str:
        """The task's kind."""
        return self._attempt.claimed.kind

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.claimed.attempt

    @property
    def key(self) -> str | None:
        """The key it was scheduled with."""
        return self._attempt.claimed.key

    @property
    def idempotency_key(self) -> str:
        """The key, else ``task-<original id>``: the same over retries and replay."""
        c = self._attempt.claimed
        return idempotency_key(c.key, c.original_id, c.id)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers it was scheduled with."""
        text = self._attempt.claimed.headers
        headers: dict[str, Any] = msgspec.json.decode(text) if text else {}
        return headers

    @property
    def correlation_id(self) -> str:
        """What belongs together: inherited by children, by default the task's own id."""
        c = self._attempt.claimed
        return c.correlation if c.correlation is not None else str(c.id)

    @property
    def causation_id(self) -> str | None:
        """What caused this task."""
        return self._attempt.claimed.causation

    @property
    def subject(self) -> str | None:
        """What the message is about."""
        return self._attempt.claimed.subject

    @property
    def message_type(self) -> str:
        """The kind, unless another type was given."""
        c = self._attempt.claimed
        return c.message_type or c.kind

    @property
    def schema_version(self) -> int:
        """The schema version that the payload was stored with."""
        return self._attempt.claimed.schema_version

    @property
    def sequence(self) -> int | None:
        """The sequence number it was scheduled with."""
        return self._attempt.claimed.sequence

    @property
    def payload_ref(self) -> str | None:
        """Where the payload's data really is, if it was passed by reference."""
        return self._attempt.claimed.payload_ref

    @property
    def created_at(self) -> datetime:
        """When it was scheduled, UTC."""
        return to_datetime(self._attempt.claimed.created_at)

    @property
    def queue(self) -> str:
        """The queue it is in."""
        return self._attempt.claimed.queue

    @property
    def slot(self) -> datetime | None:
        """The instant of the schedule that this run is for, UTC."""
        slot = self._attempt.claimed.slot
        return None if slot is None else to_datetime(slot)

    @property
    def missed(self) -> int:
        """How many missed slots this run stands for (catch-up ``last``)."""
        return self._attempt.claimed.missed or 0

    @property
    def missed_since(self) -> datetime | None:
        """The oldest slot that this run stands for."""
        since = self._attempt.claimed.missed_since
        return None if since is None else to_datetime(since)

    @property
    def state(self) -> Any:
        """The application's own object, as given to the Scheduler."""
        return self._runtime.state

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration's sections."""
        return self._runtime.settings

    @property
    def deadline(self) -> float | None:
        """When the attempt's timeout ends it, on the monotonic clock in seconds; None without a timeout."""
        return self._attempt.deadline

    @property
    def log(self) -> Any:
        """A structlog logger bound to this attempt; what it writes is kept with the attempt."""
        if self._log is None:
            from scheduler.engine.tasklog import task_logger

            self._log = task_logger(self)
        return self._log

    def capture(self, text: str) -> None:
        """Add text to what is kept of this attempt's output (the last 64 Ki characters)."""
        self._attempt.capture(text)

    def _look(self) -> None:
        self._attempt.check(self._runtime.monotonic())

    @staticmethod
    def _clamp(percent: float) -> float:
        value = float(percent)
        return 0.0 if math.isnan(value) else min(100.0, max(0.0, value))

    @staticmethod
    def _said(message: object) -> str | None:
        return None if message is None else storable(str(message))[:MAX_MESSAGE]

    def _by_id(self, rows: Iterable[tuple[int, Any]] | None) -> dict[int, Any]:
        """What was read of its parents, perhaps after a long wait for the database."""
        if rows is None:
            self._attempt.lost = True
        self._look()
        return {int(parent): told for parent, told in rows or ()}

    def _decoded(self, rows: Iterable[tuple[int, str | None]] | None) -> dict[int, Any]:
        texts = self._by_id(rows)
        return {parent: None if text is None else msgspec.json.decode(text) for parent, text in texts.items()}

    @property
    def _durable(self) -> Durable:
        attempt = self._attempt
        if attempt.durable is None:
            attempt.durable = Durable(attempt, self._runtime)
        return attempt.durable

    def _beat(self, percent: float | None = None, message: object | None = None) -> Any:
        """Ask for a heartbeat, with progress perhaps."""
        self._durable.where()
        said = {"percent": None if percent is None else self._clamp(percent), "message": self._said(message)}
        return self._runtime.request(self._attempt, "beat", said)


class Context(_ContextBase):
    """``ctx`` of a synchronous handler. Every call may raise Cancelled, TaskTimeout or LeaseLost."""

    __slots__ = ()

    def check_cancelled(self) -> None:
        """Raise if the task was cancelled, ran out of time, or its worker lost it. Costs next to nothing."""
        self._look()

    def heartbeat(self) -> None:
        """Stamp ``last_heartbeat_at`` and renew the worker's lease at once."""
        self._durable.settle(self._beat().result())

    def report_progress(self, percent: float, message: str | None = None) -> None:
        """Store how far it is, clamped to 0–100, and what it is doing; a heartbeat too."""
        self._durable.settle(self._beat(percent, message).result())

    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, name: str, /) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    @overload
    def step(self, name: Callable[P, R], /) -> Callable[P, R]: ...
    def step(self, name: Any, function: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``function(*args, **kwargs)`` and record what it returns; later attempts get that and do not call it.

        What it returns must be JSON, 1 MiB at most, and comes back as JSON gives it. A failed step is not recorded. A
        name that is used again is numbered. Without a function it is a decorator: each call is a step then.
        """
        if function is None:
            return as_decorator(lambda *call: drive(self._durable, self._durable.step(*call)), name)
        return drive(self._durable, self._durable.step(name, function, args, kwargs))

    def sleep_for(self, seconds: float | timedelta, name: str | None = None) -> None:
        """Go on so much later: the slot is free meanwhile, and the handler starts again from its beginning."""
        drive(self._durable, self._durable.sleep_for(seconds, name))

    def sleep_until(self, when: datetime, name: str | None = None) -> None:
        """Go on then (an aware datetime), or at once if that is past."""
        drive(self._durable, self._durable.sleep_until(when, name))

    def await_event(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """The payload of the event, once somebody has emitted it; the slot is free meanwhile.

        ``timeout``: seconds or timedelta from when it was first awaited; then builtin TimeoutError, in every later
        attempt, too.
        """
        return drive(self._durable, self._durable.await_event(name, timeout))

    def emit_event(self, name: str, payload: Any = None) -> bool:
        """Emit an event, once, however often this task runs: whoever awaits it gets the payload (JSON).

        The first emit of a name wins, over all tasks and callers; False if this was not the first.
        """
        return drive(self._durable, self._durable.emit_event(name, payload))

    def transaction(self) -> TransactionBlock:
        """``with ctx.transaction() as tx:`` the handler's own rows, and its success, in one commit: its last act.

        ``tx`` is a SQLAlchemy Connection to schedd's database; set ``tx.result`` to what is to be the task's result
        (what ``run`` returns afterwards is not stored). Leaving the block commits the rows, the attempt, the success
        and the release of what waits for it, if this attempt still holds the task; raising rolls back. Inside a step
        it commits that step's checkpoint instead, with ``tx.result`` as its value. Raises LeaseLost,
        TransactionTooLong.
        """
        from scheduler.engine.transaction import TransactionBlock

        return TransactionBlock(self._durable)

    def cpu(self, function: Callable[..., R], /, *args: Any) -> R:
        """Run ``function(*args)`` in a child process and return what it returns, or raise what it raises.

        The function has to be importable, arguments and result picklable. A cancel or the timeout ends it there, and is
        raised here once it has ended. In a task with ``isolation="process"`` it runs in that task's own process. Raises
        ConfigError, ProcessDied.
        """
        self._look()
        answer: Answer[R] = self._runtime.cpu(self._attempt, function, args)
        return wait_for(answer, self._look)

    def spawn(self, task: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> TaskId:
        """Schedule a task as a child of this one, once, however often this one runs. Returns its id.

        ``task``: a Task instance, a builder (``jobs.task(…)``), or a @task function with its arguments. The child
        inherits the correlation and names this task as its cause; cancelling this task cancels it.
        """
        return drive(self._durable, self._durable.spawn(task, args, kwargs, name))

    def await_task(self, task_id: int, timeout: float | timedelta | None = None) -> Any:
        """What another task, a child or not, returned, once it has ended; the slot is free meanwhile.

        Raises TaskFailedError, TaskCancelledError, ResultExpiredError, UnknownTaskError, and builtin TimeoutError after
        ``timeout`` (seconds or timedelta, from when it was first awaited); in every later attempt the same.
        """
        return drive(self._durable, self._durable.await_task(task_id, timeout))

    def map(self, kind: Any, items: Iterable[Any], name: str | None = None) -> list[Any]:
        """A child for each item, and their results in the items' order, once all of them have ended.

        ``kind``: a Task class, a @task function or a kind's name; ``items``: a mapping is the fields by name, an
        instance is taken as it is, anything else is the first field. If a child did not succeed, what became of the
        first such one is raised.
        """
        return drive(self._durable, self._durable.map(kind, items, name))

    def results(self) -> dict[int, Any]:
        """The results of the tasks it depends on, by id; None for what returned nothing, or did not succeed.

        Raises ResultExpiredError if one of them is there no more: those that this task waited for to succeed stay until
        it has succeeded, or is removed.
        """
        self._look()
        return self._decoded(self._runtime.load(self._attempt, "results", {}))

    def dependency_failures(self) -> dict[int, str]:
        """The tasks it depends on that did not succeed: id -> how they ended."""
        self._look()
        return self._by_id(self._runtime.load(self._attempt, "failures", {}))


class AsyncContext(_ContextBase):
    """``ctx`` of an asynchronous handler: the same names, awaited."""

    __slots__ = ()

    async def check_cancelled(self) -> None:
        """Raise if the task was cancelled, ran out of time, or its worker lost it."""
        self._look()

    async def heartbeat(self) -> None:
        """Stamp ``last_heartbeat_at`` and renew the worker's lease at once."""
        with busy(self._attempt):
            self._durable.settle(await asyncio.wrap_future(self._beat()))

    async def report_progress(self, percent: float, message: str | None = None) -> None:
        """Store how far it is, clamped to 0–100, and what it is doing; a heartbeat too."""
        with busy(self._attempt):
            self._durable.settle(await asyncio.wrap_future(self._beat(percent, message)))

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def step(self, name: str, /) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]: ...
    @overload
    def step(self, name: Callable[P, Awaitable[R]], /) -> Callable[P, Awaitable[R]]: ...
    def step(self, name: Any, function: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``function(*args, **kwargs)`` and record what it returns; later attempts get that and do not call it.

        As in :class:`Context`. A function that is not async runs in a thread. Several steps may run at once
        (``asyncio.gather``).
        """
        if function is None:
            return as_decorator(lambda *call: drive_async(self._durable, self._durable.step(*call)), name)
        return drive_async(self._durable, self._durable.step(name, function, args, kwargs))

    async def sleep_for(self, seconds: float | timedelta, name: str | None = None) -> None:
        """Go on so much later: the slot is free meanwhile, and the handler starts again from its beginning."""
        await drive_async(self._durable, self._durable.sleep_for(seconds, name))

    async def sleep_until(self, when: datetime, name: str | None = None) -> None:
        """Go on then (an aware datetime), or at once if that is past."""
        await drive_async(self._durable, self._durable.sleep_until(when, name))

    async def await_event(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """The payload of the event, once somebody has emitted it; the slot is free meanwhile. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.await_event(name, timeout))

    async def emit_event(self, name: str, payload: Any = None) -> bool:
        """Emit an event, once, however often this task runs; False if it was not the first. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.emit_event(name, payload))

    def transaction(self) -> AsyncTransactionBlock:
        """``async with ctx.transaction() as tx:`` as in :class:`Context`; ``await tx.execute(statement)``,
        ``await tx.run(function)`` with the Connection, ``tx.result``."""
        from scheduler.engine.transaction import AsyncTransactionBlock

        return AsyncTransactionBlock(self._durable)

    async def cpu(self, function: Callable[..., R], /, *args: Any) -> R:
        """Run ``function(*args)`` in a child process; see :meth:`Context.cpu`."""
        self._look()
        with busy(self._attempt):
            answer: Answer[R] = self._runtime.cpu(self._attempt, function, args)
            return await wait_for_async(answer)

    async def spawn(self, task: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> TaskId:
        """Schedule a task as a child of this one, once, however often this one runs. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.spawn(task, args, kwargs, name))

    async def await_task(self, task_id: int, timeout: float | timedelta | None = None) -> Any:
        """What another task returned, once it has ended; the slot is free meanwhile. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.await_task(task_id, timeout))

    async def map(self, kind: Any, items: Iterable[Any], name: str | None = None) -> list[Any]:
        """A child for each item, and their results in the items' order. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.map(kind, items, name))

    async def results(self) -> dict[int, Any]:
        """The results of the tasks it depends on, by id. See :class:`Context`."""
        self._look()
        with busy(self._attempt):
            return self._decoded(await asyncio.to_thread(self._runtime.load, self._attempt, "results", {}))

    async def dependency_failures(self) -> dict[int, str]:
        """The tasks it depends on that did not succeed: id -> how they ended."""
        self._look()
        with busy(self._attempt):
            return self._by_id(await asyncio.to_thread(self._runtime.load, self._attempt, "failures", {}))

"""``ctx`` of handlers. Its writes are requests to the engine, answered after a commit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypedDict, Unpack, overload

import msgspec

from scheduler.engine.attempt.loop_threads import read
from scheduler.engine.durable.async_driver import active, drive_async
from scheduler.engine.durable.calls import Durable, durable_of, step
from scheduler.engine.durable.thread_driver import drive
from scheduler.engine.execution import leftovers
from scheduler.engine.execution.offload import wait_for, wait_for_async
from scheduler.engine.execution.results import AsyncResults, Results
from scheduler.errors import PermanentError
from scheduler.model.envelope import created_at, idempotency_key
from scheduler.model.parent_names import names_in, without_names
from scheduler.model.spec import TaskId
from scheduler.model.task import Task, TaskFunction
from scheduler.model.texts import storable
from scheduler.model.times import to_datetime
from scheduler.model.typed import App_co, R, Runs, RunsAsync, TypedBuilder

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt
    from scheduler.engine.attempt.runtime import Runtime
    from scheduler.engine.execution.transaction import AsyncTransactionBlock, TransactionBlock

MAX_MESSAGE = 2000  # characters kept of a progress message
P = ParamSpec("P")
Grouped = Literal["grouped"]


class PublishArgs(TypedDict, total=False):
    """What ``ctx.publish()`` takes beside the sink and the payload."""

    key: str | None
    message_type: str | None
    subject: str | None
    group: str | None
    sequence: int | None
    payload_ref: str | None
    headers: Mapping[str, Any] | None
    schema_version: int
    delay: float | timedelta | str


class _ContextBase(Generic[App_co]):
    """The part that only reads: names, times, envelope."""

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
    def schedule(self) -> str | None:
        """The name of the schedule that made it; None: none did."""
        return self._attempt.claimed.schedule

    @property
    def idempotency_key(self) -> str:
        """The key, else ``task-<original id>``; the same over retries and replay.

        It is ``task-e2-<original id>`` once a failover has lost commits.
        """
        c = self._attempt.claimed
        return idempotency_key(c.key, c.original_id, c.id, c.epoch)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers it was scheduled with."""
        text = self._attempt.claimed.headers
        headers: dict[str, Any] = msgspec.json.decode(text) if text else {}
        return without_names(headers)

    @property
    def correlation_id(self) -> str:
        """The correlation id: children inherit it; by default the task's own id."""
        c = self._attempt.claimed
        return c.correlation if c.correlation is not None else str(c.id)

    @property
    def causation_id(self) -> str | None:
        """The id of the message or task that caused this one."""
        return self._attempt.claimed.causation

    @property
    def subject(self) -> str | None:
        """The subject of the message."""
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
        """The address of the payload's data, if it was passed by reference."""
        return self._attempt.claimed.payload_ref

    @property
    def created_at(self) -> datetime:
        """When it was scheduled, or its message was created if its sender said when; UTC."""
        stored = to_datetime(self._attempt.claimed.created_at)
        return created_at(self.headers, stored) if self._attempt.claimed.headers else stored

    @property
    def queue(self) -> str:
        """The queue it is in."""
        return self._attempt.claimed.queue

    @property
    def slot(self) -> datetime | None:
        """The schedule's fire time that this run is for, UTC."""
        slot = self._attempt.claimed.slot
        return None if slot is None else to_datetime(slot)

    @property
    def slot_local(self) -> datetime | None:
        """The schedule's fire time on the clock of the schedule's time zone; UTC for an interval."""
        from scheduler.model.zoned import zone_of

        slot = self.slot
        return None if slot is None else slot.astimezone(zone_of(self._attempt.claimed.slot_tz or "UTC"))

    @property
    def missed(self) -> int:
        """How many missed fire times this run stands for (catch-up ``last``)."""
        return self._attempt.claimed.missed or 0

    @property
    def missed_since(self) -> datetime | None:
        """The oldest fire time that this run stands for."""
        since = self._attempt.claimed.missed_since
        return None if since is None else to_datetime(since)

    @property
    def state(self) -> App_co:
        """The application's own object, as given to the Scheduler: an App in a handler with ``ctx: Context[App]``."""
        state: App_co = self._runtime.state
        return state

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration's sections."""
        return self._runtime.settings

    @property
    def deadline(self) -> float | None:
        """When the attempt times out (monotonic clock, seconds); None without a timeout."""
        return self._attempt.deadline

    def time_left(self) -> float | None:
        """Seconds until the attempt times out or is handed back, as its job or daemon ends; None: no end is known."""
        ends = [end for end in (self._attempt.deadline, self._attempt.ends_at) if end is not None]
        return max(0.0, min(ends) - self._runtime.monotonic()) if ends else None

    @property
    def log(self) -> Any:
        """A structlog logger bound to this attempt; what it writes is kept with the attempt."""
        if self._log is None:
            from scheduler.engine.attempt.capture import task_logger

            self._log = task_logger(self.kind)
        return self._log

    def capture(self, text: str) -> None:
        """Add text to this attempt's stored output (the last 64 Ki characters)."""
        self._attempt.capture(text)

    def _check(self) -> None:
        self._attempt.check(self._runtime.monotonic())

    @staticmethod
    def _clamp(percent: float) -> float:
        if isinstance(percent, int):  # which may be more than any float
            percent = min(100, max(0, percent))
        value = float(percent)
        return 0.0 if math.isnan(value) else min(100.0, max(0.0, value))

    @staticmethod
    def _message_text(message: object) -> str | None:
        return None if message is None else storable(str(message))[:MAX_MESSAGE]

    def _by_id(self, rows: Iterable[tuple[int, Any]] | None) -> dict[int, Any]:
        """Rows about its parents, by id. Checks the attempt again: the read may have waited long."""
        if rows is None:
            self._attempt.lost = True
        self._check()
        return {int(parent): value for parent, value in rows or ()}

    def _decoded(self, rows: Iterable[tuple[int, str | None]] | None) -> dict[int, Any]:
        texts = self._by_id(rows)
        return {parent: None if text is None else msgspec.json.decode(text) for parent, text in texts.items()}

    def _by_name(self, results: Mapping[int, Any]) -> dict[str, Any]:
        names = names_in(self._attempt.claimed.headers)
        return {name: results[parent] for name, parent in names.items() if parent in results}

    def _one_of(self, results: Mapping[int, Any], parent: str | int) -> Any:
        """Raises KeyError that says which there are."""
        found: dict[int | str, Any] = dict(results.items())
        found.update(self._by_name(results).items())
        if parent not in found:
            there = f"there are {', '.join(map(str, found))}" if found else "it has none"
            raise KeyError(f"task {self.id} depends on no task {parent!r}: {there}")
        return found[parent]

    def __reduce__(self) -> NoReturn:
        raise TypeError("ctx stays in its process: pass what the function needs of it as arguments")

    @property
    def _durable(self) -> Durable:
        return durable_of(self._attempt, self._runtime)

    def _beat(self, percent: float | None = None, message: object | None = None) -> Any:
        """Request a heartbeat, with progress if given."""
        self._durable.current_step()
        progress = {
            "percent": None if percent is None else self._clamp(percent),
            "message": self._message_text(message),
        }
        return self._runtime.request(self._attempt, "beat", progress)


class Context(_ContextBase[App_co]):
    """``ctx`` of a synchronous handler. Each call may raise Cancelled, TaskTimeout or LeaseLost."""

    __slots__ = ()

    def check_cancelled(self) -> None:
        """Raise if the task was cancelled, ran out of time, or its worker lost it. It is cheap."""
        self._check()

    def heartbeat(self) -> None:
        """Stamp ``last_heartbeat_at`` and renew the worker's lease at once."""
        self._durable.apply_reply(self._beat().result())

    def report_progress(self, percent: float, message: str | None = None) -> None:
        """Store how far it is, clamped to 0–100, and what it is doing; a heartbeat too."""
        self._durable.apply_reply(self._beat(percent, message).result())

    @overload
    def step(self, name: str, function: Callable[..., R], /, *args: Any, durable: Grouped, **kwargs: Any) -> R: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, name: str, /, *, durable: Grouped = ...) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    @overload
    def step(self, name: Callable[P, R], /) -> Callable[P, R]: ...
    def step(self, name: Any, function: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``function(*args, **kwargs)`` once and record its value for later attempts.

        The value must be JSON, 1 MiB at most, and comes back as JSON gives it. A failed step is not recorded. A name
        that is used again is numbered. Without a function it is a decorator: each call is a step.

        ``durable="grouped"``: the next grouped step may begin before this one is recorded, and several are recorded in
        one commit. After a crash the last of them run again, so use it for steps without an effect outside. All
        other calls of ``ctx``, and the end of the handler, wait until they are recorded.
        """
        return step(partial(drive, self._durable), self._durable, name, function, args, kwargs)

    def sleep_for(self, seconds: float | timedelta | str, name: str | None = None) -> None:
        """Go on so much later. The slot is free meanwhile; the handler starts from its beginning."""
        drive(self._durable, self._durable.sleep_for(seconds, name))

    def sleep_until(self, when: datetime, name: str | None = None) -> None:
        """Go on then (an aware datetime), or at once if that is past."""
        drive(self._durable, self._durable.sleep_until(when, name))

    def await_event(self, name: str, timeout: float | timedelta | str | None = None) -> Any:
        """The payload of the event, once it is emitted; the slot is free meanwhile.

        ``timeout``: seconds or timedelta from when it was first awaited; then builtin TimeoutError, in every later
        attempt, too.
        """
        return drive(self._durable, self._durable.await_event(name, timeout))

    def emit_event(self, name: str, payload: Any = None) -> bool:
        """Emit an event, once over all attempts. Every task that awaits it gets the payload (JSON).

        The first emit of a name wins, over all tasks and callers; False if this was not the first.
        """
        return drive(self._durable, self._durable.emit_event(name, payload))

    def transaction(self) -> TransactionBlock:
        """``with ctx.transaction() as tx:`` commits the handler's own rows and its success together.

        It is the handler's last act.

        ``tx`` is a SQLAlchemy Connection to schedd's database; set ``tx.result`` to the task's result (what
        ``run`` returns afterwards is not stored). Leaving the block commits the rows, the attempt, the success
        and the release of its dependents, if this attempt still holds the task; raising rolls back. Inside a step
        it commits that step's checkpoint instead, with ``tx.result`` as its value. Raises LeaseLost,
        TransactionTooLong.
        """
        from scheduler.engine.execution.transaction import TransactionBlock

        return TransactionBlock(self._durable)

    def publish(self, sink: str, payload: Any = None, **options: Unpack[PublishArgs]) -> TaskId[Any]:
        """Store a message to ``[sinks.NAME]`` within ``with ctx.transaction():``; it goes out if that commits.

        ``payload``: any JSON value, up to 128 KiB; the other arguments are those of ``jobs.publish()``. Without a
        ``key`` the message gets one that is the same when the handler runs again. Raises ConfigError outside of
        a transaction; PayloadError.
        """
        from scheduler.engine.execution import publishing

        given, scope = publishing.options(**options), publishing.opened(self._attempt)
        return publishing.publish(scope.connection, scope, self._runtime.now(), sink, payload, given)

    def cpu(self, function: Callable[..., R], /, *args: Any) -> R:
        """Run ``function(*args)`` in a child process; returns its value or raises its error.

        A lambda or a closure goes there by value, with the variables that it uses; these, the arguments and the result
        must be picklable. A cancel or the timeout ends it there; it is raised here once the function has ended. In a
        task with ``isolation="process"`` it runs in that task's own process. Raises ProcessDied, and TypeError for what
        cannot be sent.
        """
        self._check()
        self._attempt.in_child += 1
        try:
            # No name for it here: its error would have this frame in its traceback, which would keep it.
            value: R = wait_for(self._runtime.cpu(self._attempt, function, args), self._check)
            return value
        finally:
            self._attempt.in_child -= 1

    def wait_until(self, awaitable: Any) -> NoReturn:
        """For asynchronous handlers only, see :class:`AsyncContext`. Raises TypeError."""
        raise TypeError("ctx.wait_until is for async handlers: this one ends when it returns, so do the work in it")

    @overload
    def spawn(self, task: TypedBuilder[R] | RunsAsync[R], /, *, name: str | None = None) -> TaskId[R]: ...
    @overload
    def spawn(self, task: Runs[R], /, *, name: str | None = None) -> TaskId[R]: ...
    @overload
    def spawn(
        self, task: TaskFunction[..., Coroutine[Any, Any, R]], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> TaskId[R]: ...
    @overload
    def spawn(self, task: TaskFunction[..., R], /, *args: Any, name: str | None = None, **kwargs: Any) -> TaskId[R]: ...
    @overload
    def spawn(self, task: Task, /, *, name: str | None = None) -> TaskId: ...
    def spawn(self, task: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> TaskId[Any]:
        """Schedule a child task, once over all attempts. Returns its id.

        ``task``: a Task instance, a builder (``jobs.task(…)``), or a @task function with its arguments. The child
        inherits the correlation and names this task as its cause; cancelling this task cancels it.
        """
        return drive(self._durable, self._durable.spawn(task, args, kwargs, name))

    @overload
    def await_task(self, task_id: TaskId[R], timeout: float | timedelta | str | None = None) -> R: ...
    @overload
    def await_task(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any: ...
    def await_task(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any:
        """The result of another task, child or not, once it has ended; the slot is free meanwhile.

        Raises TaskFailedError, TaskCancelledError, ResultExpiredError, UnknownTaskError, and builtin TimeoutError after
        ``timeout`` (seconds or timedelta, from when it was first awaited); in every later attempt the same.
        """
        return drive(self._durable, self._durable.await_task(task_id, timeout))

    def map(self, kind: Any, items: Iterable[Any], name: str | None = None) -> list[Any]:
        """Schedule a child for each item; their results in the items' order, once all have ended.

        ``kind``: a Task class, a @task function or a kind's name; ``items``: a mapping is the fields by name, an
        instance is taken as it is, anything else is the first field. Raises the failure of the first child that did
        not succeed.
        """
        return drive(self._durable, self._durable.map(kind, items, name))

    @property
    def results(self) -> Results:
        """The results of its parents: ``ctx.results["load"]`` by the name that ``depend_on`` gave one, or by its id.

        ``ctx.results()`` is all by id. None for a parent that returned nothing or did not succeed. Raises
        ResultExpiredError if one is removed. Results of parents that had to succeed stay until this task has succeeded
        or is removed.
        """
        return Results(self._results, self._one_of)

    def _results(self) -> dict[int, Any]:
        self._check()
        return self._decoded(self._runtime.load(self._attempt, "results", {}))

    def dependency_failures(self) -> dict[int, str]:
        """The tasks it depends on that did not succeed: id -> how they ended."""
        self._check()
        return self._by_id(self._runtime.load(self._attempt, "failures", {}))


class AsyncContext(_ContextBase[App_co]):
    """``ctx`` of an asynchronous handler: the same names, awaited."""

    __slots__ = ()

    async def check_cancelled(self) -> None:
        """Raise if the task was cancelled, ran out of time, or its worker lost it."""
        self._check()

    async def heartbeat(self) -> None:
        """Stamp ``last_heartbeat_at`` and renew the worker's lease at once."""
        with active(self._attempt):
            self._durable.apply_reply(await asyncio.wrap_future(self._beat()))

    async def report_progress(self, percent: float, message: str | None = None) -> None:
        """Store how far it is, clamped to 0–100, and what it is doing; a heartbeat too."""
        with active(self._attempt):
            self._durable.apply_reply(await asyncio.wrap_future(self._beat(percent, message)))

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        durable: Grouped,
        **kwargs: Any,
    ) -> Awaitable[R]: ...
    @overload
    def step(
        self, name: str, function: Callable[..., R], /, *args: Any, durable: Grouped, **kwargs: Any
    ) -> Awaitable[R]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def step(
        self, name: str, /, *, durable: Grouped = ...
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]: ...
    @overload
    def step(self, name: Callable[P, Awaitable[R]], /) -> Callable[P, Awaitable[R]]: ...
    def step(self, name: Any, function: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``function(*args, **kwargs)`` once and record its value for later attempts.

        As in :class:`Context`. A function that is not async runs in a thread. Several steps may run at once
        (``asyncio.gather``).
        """
        return step(partial(drive_async, self._durable), self._durable, name, function, args, kwargs)

    async def sleep_for(self, seconds: float | timedelta | str, name: str | None = None) -> None:
        """Go on so much later. The slot is free meanwhile; the handler starts from its beginning."""
        await drive_async(self._durable, self._durable.sleep_for(seconds, name))

    async def sleep_until(self, when: datetime, name: str | None = None) -> None:
        """Go on then (an aware datetime), or at once if that is past."""
        await drive_async(self._durable, self._durable.sleep_until(when, name))

    async def await_event(self, name: str, timeout: float | timedelta | str | None = None) -> Any:
        """The payload of the event, once it is emitted. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.await_event(name, timeout))

    async def emit_event(self, name: str, payload: Any = None) -> bool:
        """Emit an event, once over all attempts. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.emit_event(name, payload))

    def transaction(self) -> AsyncTransactionBlock:
        """``async with ctx.transaction() as tx:`` as in :class:`Context`.

        ``tx`` has ``await tx.execute(statement)``, ``await tx.run(function)`` with the Connection, and ``tx.result``.
        """
        from scheduler.engine.execution.transaction import AsyncTransactionBlock

        return AsyncTransactionBlock(self._durable)

    async def publish(self, sink: str, payload: Any = None, **options: Unpack[PublishArgs]) -> TaskId[Any]:
        """Store a message within ``async with ctx.transaction():``. See :class:`Context`."""
        from scheduler.engine.execution import publishing

        given, scope = publishing.options(**options), publishing.opened(self._attempt)
        made: TaskId[Any] = await scope.connection.run(
            publishing.publish, scope, self._runtime.now(), sink, payload, given
        )
        return made

    async def cpu(self, function: Callable[..., R], /, *args: Any) -> R:
        """Run ``function(*args)`` in a child process; see :meth:`Context.cpu`."""
        self._check()
        with active(self._attempt):
            self._attempt.in_child += 1
            try:
                return await wait_for_async(self._runtime.cpu(self._attempt, function, args))  # nor here
            finally:
                self._attempt.in_child -= 1

    def wait_until(self, awaitable: Awaitable[R]) -> asyncio.Task[R]:
        """Start a coroutine that the attempt waits for before it ends.

        It keeps the attempt's slot, its timeout and its place in a drain. Its error fails the attempt, as if the
        handler had raised it. It is cancelled if the handler fails, is cancelled or suspended, or times out.
        Returns its asyncio Task. Raises TypeError for what cannot be awaited, PermanentError in a hook, and what ends
        the attempt.
        """
        try:
            self._check()
            if self._attempt.handler_done:
                raise PermanentError("the handler has ended: a hook awaits what it does, so await this, too")
        except BaseException:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            raise
        return leftovers.keep(self._attempt, awaitable)

    @overload
    async def spawn(self, task: TypedBuilder[R] | RunsAsync[R], /, *, name: str | None = None) -> TaskId[R]: ...
    @overload
    async def spawn(self, task: Runs[R], /, *, name: str | None = None) -> TaskId[R]: ...
    @overload
    async def spawn(
        self, task: TaskFunction[..., Coroutine[Any, Any, R]], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> TaskId[R]: ...
    @overload
    async def spawn(
        self, task: TaskFunction[..., R], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> TaskId[R]: ...
    @overload
    async def spawn(self, task: Task, /, *, name: str | None = None) -> TaskId: ...
    async def spawn(self, task: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> TaskId[Any]:
        """Schedule a child task, once over all attempts. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.spawn(task, args, kwargs, name))

    @overload
    async def await_task(self, task_id: TaskId[R], timeout: float | timedelta | str | None = None) -> R: ...
    @overload
    async def await_task(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any: ...
    async def await_task(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any:
        """The result of another task, once it has ended. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.await_task(task_id, timeout))

    async def map(self, kind: Any, items: Iterable[Any], name: str | None = None) -> list[Any]:
        """Schedule a child for each item; their results in the items' order. See :class:`Context`."""
        return await drive_async(self._durable, self._durable.map(kind, items, name))

    @property
    def results(self) -> AsyncResults:
        """``await ctx.results["load"]``, ``await ctx.results()``. See :class:`Context`."""
        return AsyncResults(self._results, self._one_of)

    async def _results(self) -> dict[int, Any]:
        self._check()
        with active(self._attempt):
            return self._decoded(await read(self._runtime.load, self._attempt, "results", {}))

    async def dependency_failures(self) -> dict[int, str]:
        """The tasks it depends on that did not succeed: id -> how they ended."""
        self._check()
        with active(self._attempt):
            return self._by_id(await read(self._runtime.load, self._attempt, "failures", {}))

"""Run one attempt of one task and say how it ended. Knows no database."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from scheduler.engine.context import AsyncContext, Context
from scheduler.engine.logs import Tail, current_attempt
from scheduler.engine.runtime import Runtime
from scheduler.engine.verdict import cancelled, for_good, hand_back, raised, returned, with_log
from scheduler.errors import Cancelled, LeaseLost, PayloadError, Suspended, TaskTimeout
from scheduler.model import state as st
from scheduler.model.fingerprint import describe
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.policy import lived_too_long
from scheduler.model.registry import Kind, SlotKey
from scheduler.ports import SECOND

if TYPE_CHECKING:
    from scheduler.engine.durable import Durable
    from scheduler.store.claim import Claimed

log = logging.getLogger("scheduler.engine")


class Attempt:
    """One claimed task on its way through a pool."""

    # Of the class, so that making one of the many that need none of it sets four attributes, not seventeen.
    slot: Any = None
    start_by: int | None = None  # of a kind with a rate: its start is counted until then (microseconds)
    started_at: int | None = None
    started_mono = 0.0
    deadline: float | None = None
    cancelled = False
    lost = False
    told_lost = False  # the body knows
    timed_out = False
    marked = False
    last_sign = 0.0  # of life: heartbeat, progress, checkpoint (monotonic)
    stalled = False  # told of
    asyncio_task: Any = None
    apart = False  # a suspect: it runs in a child process, where it can harm nobody
    tail: Tail | None = None
    tail_written = 0
    durable: Durable | None = None  # once it does something durable
    active = 0  # how many of its coroutines do something with their context (see async_durable.py)
    settled: Outcome | None = None  # what its own transaction has committed
    suspended: int | None = None  # it is to be unwound, and to go on then (microseconds) at the latest
    over = False  # the handler has ended, only hooks are left
    ended = False  # and so have they
    tasks: weakref.WeakKeyDictionary[Any, Any] | None = None  # asyncio tasks that the handler started, and by which

    def __init__(self, claimed: Claimed, kind: Kind, sort: SlotKey, handed_at: float) -> None:
        self.claimed = claimed
        self.kind = kind
        self.sort = sort  # of the slots it is for
        self.handed_at = handed_at

    @property
    def pool(self) -> int:
        """The level of the slots it is for."""
        return self.sort[0]

    @property
    def too_new(self) -> bool:
        """Whether a newer program has scheduled it, with a payload that this one cannot read: newer workers can."""
        return self.claimed.schema_version > self.kind.options.schema_version

    def started_tasks(self) -> weakref.WeakKeyDictionary[Any, Any]:
        """The asyncio tasks that the handler started and that are still there, each with the one that started it."""
        if self.tasks is None:
            self.tasks = weakref.WeakKeyDictionary()
        return self.tasks

    def lineage(self) -> list[Any]:
        """The present asyncio task of the handler, the one that started it, and so on; none in a thread."""
        if not self.tasks:
            return []
        found = [asyncio.current_task()]
        while found[-1] in self.tasks:
            found.append(self.tasks[found[-1]])
        return found

    def beside(self) -> Collection[Any]:
        """The asyncio tasks of the handler that hear nothing of what is raised in the present one."""
        own = self.lineage()
        return weakref.WeakSet(one for one in list(self.tasks or ()) if one not in own)

    def capture(self, text: str) -> None:
        if self.tail is None:
            self.tail = Tail()
        self.tail.add(text)

    def check(self, monotonic: float) -> None:
        """Raise what should end the body now, if anything: Cancelled, LeaseLost, Suspended, TaskTimeout.

        LeaseLost, too, for a context that outlived its attempt.
        """
        if self.ended:
            raise LeaseLost(f"task {self.claimed.id}: its attempt has ended, so this context is of no use")
        if self.cancelled:
            raise Cancelled(f"task {self.claimed.id} was cancelled")
        if self.lost:
            self.told_lost = True
            raise LeaseLost(f"task {self.claimed.id} is no longer held by this worker; nothing it does is recorded")
        if self.suspended is not None:
            raise Suspended(f"task {self.claimed.id} is suspended")
        if self.deadline is not None and monotonic >= self.deadline:
            self.timed_out = True
            raise self.timeout_error()

    def timeout_error(self, more: str = "") -> TaskTimeout:
        return TaskTimeout(f"ran longer than its timeout of {(self.claimed.timeout or 0) / SECOND:g} s{more}")


def execute(attempt: Attempt, runtime: Runtime) -> Outcome:
    """Run a synchronous handler to its end, whatever it raises."""
    token = current_attempt.set(attempt)
    try:
        ready = _begin(attempt, runtime)
        if isinstance(ready, Outcome):
            return ready
        ctx = Context(attempt, runtime)
        try:
            if runtime.around_run is None:
                result = attempt.kind.run(ready, ctx)
            else:
                with runtime.around_run(ctx):
                    result = attempt.kind.run(ready, ctx)
            if attempt.claimed.claim > 1 and _strict(attempt):
                _look_back(attempt, runtime)
            return returned(attempt, runtime, result)
        except BaseException as error:
            outcome, hook = raised(attempt, runtime, error)
            if hook is not None:
                _call_hook(attempt, hook, ready, ctx, error)
            return with_log(attempt, outcome)
    finally:
        attempt.ended = True
        current_attempt.reset(token)


async def execute_async(attempt: Attempt, runtime: Runtime) -> Outcome:
    """Run an asynchronous handler to its end, whatever it raises."""
    token = current_attempt.set(attempt)
    try:
        ready = _begin(attempt, runtime)
        if isinstance(ready, Outcome):
            return ready
        ctx = AsyncContext(attempt, runtime)
        try:
            if runtime.around_run is None:
                result = await attempt.kind.run(ready, ctx)
            else:
                with runtime.around_run(ctx):
                    result = await attempt.kind.run(ready, ctx)
            if attempt.claimed.claim > 1 and _strict(attempt):
                await asyncio.to_thread(_look_back, attempt, runtime)
            outcome = returned(attempt, runtime, result)
            if attempt.durable is not None:
                await _end_tasks(attempt)
            return outcome
        except BaseException as error:
            outcome, hook = raised(attempt, runtime, error)
            await _end_tasks(attempt)
            if hook is not None:
                pending = _call_hook(attempt, hook, ready, ctx, error)
                if inspect.isawaitable(pending):
                    try:
                        await pending
                    except BaseException:
                        log.exception("hook of %s raised", attempt.claimed.kind)
            return with_log(attempt, outcome)
    finally:
        attempt.ended = True
        current_attempt.reset(token)


def _strict(attempt: Attempt) -> bool:
    """Of one that is not the task's first: whether what is recorded counts although the handler has not asked for it.

    Not of the others, who would only be told: a read that hangs on a dead wire would keep the slot of a retried task.
    """
    return attempt.kind.options.determinism == "strict" and attempt.settled is None


def _look_back(attempt: Attempt, runtime: Runtime) -> None:
    from scheduler.engine.durable import Durable
    from scheduler.engine.sync_durable import drive

    if attempt.durable is None:
        attempt.durable = Durable(attempt, runtime)
    drive(attempt.durable, attempt.durable.read_recorded())


async def _end_tasks(attempt: Attempt) -> None:
    """What a durable handler started ends with it: its next attempt starts it again, and never beside itself."""
    if attempt.durable is not None and attempt.tasks:
        from scheduler.engine.async_durable import end_tasks

        await end_tasks(attempt)


def _begin(attempt: Attempt, runtime: Runtime) -> Any:
    """Start the clock and decode the payload; or the Outcome, if that already decides."""
    c = attempt.claimed
    now = runtime.now()
    if attempt.start_by is not None and now > attempt.start_by:
        return hand_back(attempt, now)  # a start so late would not be within the period that it was counted in
    if c.expires_at is not None and now >= c.expires_at:
        reason = lived_too_long(c.max_duration)
        return Outcome(
            *(c.id, c.claim, c.attempt, AttemptEnd.CANCELLED, st.CANCELLED, c.claimed_at, None, now),
            failure=reason,
            refund=1,
        )
    mono = runtime.monotonic()
    if attempt.lost or mono >= runtime.lapses_at:
        return hand_back(attempt, now)  # we stood still, or were cut off: another worker may have it by now
    kind = attempt.kind
    if c.schema_version != kind.options.schema_version and attempt.too_new:
        # For a newer worker, at once; behind what is due, which this one may read once it takes of the kind again.
        return hand_back(attempt, now, now)
    attempt.started_at = now
    attempt.started_mono = mono
    if c.timeout is not None:
        attempt.deadline = attempt.started_mono + c.timeout / SECOND
    if attempt.cancelled:
        return cancelled(attempt, runtime)
    try:
        if c.payload is None:
            raise PayloadError("the payload is missing from the database")
        return kind.decode(c.payload, c.schema_version, c.id)
    except BaseException as error:  # SystemExit of a build() or an upgrade() included
        # Whatever is wrong with the row or its upgrade will be wrong next time: set it aside, with the reason.
        return for_good(attempt, runtime, describe(error))


def _call_hook(
    attempt: Attempt, hook: Callable[..., Any], value: Any, ctx: Context | AsyncContext, error: BaseException
) -> Any:
    """A hook that fails never changes what is recorded."""
    try:
        return hook(value, ctx, error)
    except BaseException:
        log.exception("hook of %s raised", attempt.claimed.kind)
        return None

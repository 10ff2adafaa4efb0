"""Run one attempt of one task and say how it ended. Knows no database."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.engine.context import AsyncContext, Context
from scheduler.engine.logs import Tail, current_attempt
from scheduler.errors import (
    Cancelled,
    Collided,
    ConfigError,
    LeaseLost,
    PayloadError,
    PermanentError,
    ProcessDied,
    Retry,
    Snooze,
    Suspended,
    TaskTimeout,
)
from scheduler.model import state as st
from scheduler.model.fingerprint import describe, traceback_text
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.policy import lived_too_long
from scheduler.model.registry import Kind, SlotKey, encode_json
from scheduler.model.retry import RetryPolicy
from scheduler.model.times import span_us
from scheduler.ports import SECOND

if TYPE_CHECKING:
    from concurrent.futures import Future

    from scheduler.engine.durable import Durable
    from scheduler.store.claim import Claimed

MAX_RESULT = 1024 * 1024
NEWER = 5.0  # seconds until a task is offered again that only a newer program can read
COLLIDED = (0.02, 0.2)  # seconds until a transaction that collided is tried again: least, and how much more at random
log = logging.getLogger("scheduler.engine")
_SUCCEEDED = AttemptEnd.SUCCEEDED
_new = tuple.__new__  # a named tuple's own constructor takes three times as long


class Drafts(Protocol):
    """Drafts tasks that handlers spawn; see ``builder.Drafter``."""

    def draft(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def of_item(self, kind: Any, item: Any) -> Any: ...
    def name_of(self, kind: Any) -> str: ...


class StoredDrafts(Drafts, Protocol):
    """The engine's own, which knows what is registered."""

    def stored(self, kind: str, payload: str) -> Any: ...


class Runtime(Protocol):
    """What an attempt needs of its engine."""

    @property
    def state(self) -> Any: ...

    settings: dict[str, Any]
    around_run: Callable[[Any], AbstractContextManager[Any]] | None
    lapses_at: float

    @property
    def drafts(self) -> Drafts | None: ...
    def now(self) -> int: ...
    def monotonic(self) -> float: ...
    def random(self) -> float: ...
    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[dict[str, Any]]: ...
    def store(self, attempt: Attempt) -> tuple[Any, int, float]: ...
    def settled(self, attempt: Attempt, outcome: Outcome, ready: int) -> None: ...
    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any: ...
    def parent_results(self, task_id: int) -> dict[int, Any]: ...
    def dependency_failures(self, task_id: int) -> dict[int, str]: ...
    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]: ...


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
    settled: Outcome | None = None  # what its own transaction has committed
    suspended: int | None = None  # it is to be unwound, and to go on then (microseconds) at the latest
    over = False  # the handler has ended, only hooks are left
    ended = False  # and so have they
    tasks: weakref.WeakSet[Any] | None = None  # asyncio tasks that the handler started

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

    def started_tasks(self) -> weakref.WeakSet[Any]:
        """The asyncio tasks that the handler started and that are still there."""
        if self.tasks is None:
            self.tasks = weakref.WeakSet()
        return self.tasks

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
            return _succeed(attempt, runtime, result)
        except BaseException as error:
            outcome, hook = _fail(attempt, runtime, error)
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
            with runtime.around_run(ctx) if runtime.around_run is not None else nullcontext():
                result = await attempt.kind.run(ready, ctx)
            if attempt.claimed.claim > 1 and _strict(attempt):
                await asyncio.to_thread(_look_back, attempt, runtime)
            outcome = _succeed(attempt, runtime, result)
            await _end_tasks(attempt)
            return outcome
        except BaseException as error:
            outcome, hook = _fail(attempt, runtime, error)
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

    if attempt.durable is None:
        attempt.durable = Durable(attempt, runtime)
    attempt.durable.read_recorded()


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
    if mono >= runtime.lapses_at:
        return hand_back(attempt, now)  # we stood still, or were cut off: another worker may have it by now
    kind = attempt.kind
    if c.schema_version != kind.options.schema_version and attempt.too_new:
        return hand_back(attempt, now, now + round(NEWER * SECOND))
    attempt.started_at = now
    attempt.started_mono = mono
    if c.timeout is not None:
        attempt.deadline = attempt.started_mono + c.timeout / SECOND
    if attempt.cancelled:
        return _outcome(attempt, runtime, AttemptEnd.CANCELLED, st.CANCELLED)
    try:
        if c.payload is None:
            raise PayloadError("the payload is missing from the database")
        return kind.decode(c.payload, c.schema_version, c.id)
    except BaseException as error:  # SystemExit of a build() or an upgrade() included
        # Whatever is wrong with the row or its upgrade will be wrong next time: set it aside, with the reason.
        return _for_good(attempt, runtime, describe(error))


def _succeed(attempt: Attempt, runtime: Runtime, result: Any) -> Outcome:
    if attempt.settled is not None:
        if result is not None:
            log.warning(
                "what run() returned is not stored: its transaction had set the result",
                extra={"task": attempt.claimed.id},
            )
        return attempt.settled
    if attempt.cancelled:
        return with_log(attempt, _outcome(attempt, runtime, AttemptEnd.CANCELLED, st.CANCELLED))
    if attempt.suspended is not None:
        log.warning("a handler swallowed what suspends it", extra={"task": attempt.claimed.id})
        return with_log(attempt, _suspend(attempt, runtime))
    if attempt.deadline is not None and (attempt.timed_out or runtime.monotonic() >= attempt.deadline):
        raise attempt.timeout_error()
    if attempt.durable is not None:
        attempt.durable.note(attempt.durable.finish())
    return success(attempt, runtime, None if result is None else result_text(result))


def result_text(result: Any) -> str | None:
    """A task's result as JSON text, None for none. Raises PermanentError if it is not JSON, or too long."""
    if result is None:
        return None
    try:
        text = encode_json(result, "the result")
    except PayloadError as error:
        raise PermanentError(str(error)) from None
    if len(text) > MAX_RESULT:
        raise PermanentError(f"the result is {len(text)} bytes of JSON, over the limit of {MAX_RESULT}")
    return text


def success(attempt: Attempt, runtime: Runtime, text: str | None) -> Outcome:
    """The outcome of an attempt that has succeeded, with this result."""
    c = attempt.claimed
    log_text = None if attempt.tail is None else attempt.tail.text()
    began, now = attempt.started_at, runtime.now()
    told = (c.id, c.claim, c.attempt, _SUCCEEDED, st.SUCCESS, c.claimed_at, began, now, text, None, None, 0, log_text)
    return _new(Outcome, told)


def _fail(attempt: Attempt, runtime: Runtime, error: BaseException) -> tuple[Outcome, Callable[..., Any] | None]:
    """The outcome of a body that raised, and the hook to call."""
    c = attempt.claimed
    attempt.over = True
    if attempt.settled is not None:
        log.warning("raised after its transaction had committed its success: %r", error, extra={"task": c.id})
        return attempt.settled, None
    if attempt.cancelled or isinstance(error, Cancelled):
        return _outcome(attempt, runtime, AttemptEnd.CANCELLED, st.CANCELLED), None
    if attempt.lost:
        # It was told to end. If nobody has taken the task over meanwhile, it goes back, without using an attempt.
        return hand_back(attempt, runtime.now()), None
    if attempt.suspended is not None:
        if _unwound(error):
            return _suspend(attempt, runtime), None
        attempt.suspended = None  # something else went wrong on the way out
    if attempt.timed_out and not isinstance(error, TaskTimeout):
        error = attempt.timeout_error()
    if isinstance(error, Collided):
        again = runtime.now() + round((COLLIDED[0] + COLLIDED[1] * runtime.random()) * SECOND)
        return _outcome(attempt, runtime, AttemptEnd.SNOOZED, st.SCHEDULED, run_at=again, refund=1), None
    if isinstance(error, Snooze):
        try:
            wait = span_us(error.seconds, "Snooze")
        except ConfigError as bad:
            return _for_good(attempt, runtime, describe(bad)), attempt.kind.on_failed
        return (
            _outcome(attempt, runtime, AttemptEnd.SNOOZED, st.SCHEDULED, run_at=runtime.now() + wait, refund=1),
            None,
        )
    failure = describe(error)
    if not isinstance(error, (Retry, PermanentError)) and not type(error).__module__.startswith("scheduler."):
        attempt.capture(traceback_text(error))  # what our own types raise says all there is to say in one line
    try:
        wait_us = _wait(c, runtime, error)
    except ConfigError as bad:
        return _for_good(attempt, runtime, describe(bad)), attempt.kind.on_failed
    if wait_us is None:
        return _for_good(attempt, runtime, failure), attempt.kind.on_failed
    outcome = _outcome(attempt, runtime, AttemptEnd.RETRIED, st.RETRY, failure=failure, run_at=runtime.now() + wait_us)
    return outcome, attempt.kind.on_attempt_failed


def _unwound(error: BaseException) -> bool:
    """Whether this is nothing but the handler being unwound, of several coroutines perhaps."""
    if isinstance(error, BaseExceptionGroup):
        return all(_unwound(one) for one in error.exceptions)
    return isinstance(error, Suspended)


def _suspend(attempt: Attempt, runtime: Runtime) -> Outcome:
    return _outcome(attempt, runtime, AttemptEnd.SUSPENDED, st.SUSPENDED, run_at=attempt.suspended)


def _wait(c: Claimed, runtime: Runtime, error: BaseException) -> int | None:
    """Microseconds until the next attempt; None: there is none."""
    used = max(1, c.attempt - c.attempt_base)
    policy = RetryPolicy.from_json(c.retry) if c.retry is not None else None
    if isinstance(error, PermanentError) or (c.max_attempts is not None and used >= c.max_attempts):
        return None
    if isinstance(error, Retry):
        if error.after is not None:
            return span_us(error.after, "Retry(after=)")
        return policy.wait_us(used, runtime.random()) if policy else 0
    if policy is None or not policy.matches(error):
        return None
    return policy.wait_us(used, runtime.random())


def _for_good(attempt: Attempt, runtime: Runtime, failure: Failure) -> Outcome:
    dead = bool(attempt.claimed.dead_letter)
    end, state = (AttemptEnd.DEAD, st.DEAD) if dead else (AttemptEnd.FAILED, st.FAILED)
    return _outcome(attempt, runtime, end, state, failure=failure)


def _outcome(attempt: Attempt, runtime: Runtime, end: AttemptEnd, state: int, **more: Any) -> Outcome:
    c = attempt.claimed
    return Outcome(c.id, c.claim, c.attempt, end, state, c.claimed_at, attempt.started_at, runtime.now(), **more)


def with_log(attempt: Attempt, outcome: Outcome) -> Outcome:
    return outcome if attempt.tail is None else outcome._replace(log=attempt.tail.text())


def _call_hook(
    attempt: Attempt, hook: Callable[..., Any], value: Any, ctx: Context | AsyncContext, error: BaseException
) -> Any:
    """A hook that fails never changes what is recorded."""
    try:
        return hook(value, ctx, error)
    except BaseException:
        log.exception("hook of %s raised", attempt.claimed.kind)
        return None


def ended_by(attempt: Attempt, runtime: Runtime, error: BaseException) -> tuple[Outcome, Callable[..., Any] | None]:
    """The outcome of an attempt that something outside of its body ended, and the hook that is to be called."""
    outcome, hook = _fail(attempt, runtime, error)
    return with_log(attempt, outcome), hook


def died_alone(attempt: Attempt, runtime: Runtime, how: str) -> Outcome:
    """The outcome of a suspect that killed its process, in which there was nobody else. The turn counts these."""
    failure = Failure(how, ProcessDied.__name__)
    lost = _outcome(attempt, runtime, AttemptEnd.LOST, st.SCHEDULED, failure=failure, run_at=runtime.now())
    return with_log(attempt, lost)


def gave_up(attempt: Attempt, runtime: Runtime, error: BaseException) -> Outcome:
    """The outcome of an attempt around whose body something unforeseen was raised: the next one would meet it, too."""
    log.error("an attempt could not be carried out", exc_info=error, extra={"task": attempt.claimed.id})
    return _for_good(attempt, runtime, describe(error))


def hand_back(attempt: Attempt, now: int, due: int | None = None) -> Outcome:
    """The outcome of an attempt that goes back without being used: never started, or interrupted by a stop."""
    c = attempt.claimed
    return Outcome(
        c.id,
        c.claim,
        c.attempt,
        AttemptEnd.HANDED_BACK,
        st.SCHEDULED,
        c.claimed_at,
        attempt.started_at,
        now,
        run_at=due,
        refund=1,
    )

"""How an attempt ended: the outcome of what its body returned or raised, or of what ended it from outside."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scheduler.errors import (
    Cancelled,
    Collided,
    ConfigError,
    Interrupted,
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
from scheduler.model.registry import encode_json
from scheduler.model.retry import RetryPolicy
from scheduler.model.texts import counted
from scheduler.model.times import span_us
from scheduler.ports import SECOND

if TYPE_CHECKING:
    from scheduler.engine.attempt import Attempt
    from scheduler.engine.runtime import Runtime
    from scheduler.store.claim import Claimed

MAX_RESULT = 1024 * 1024
COLLIDED = (0.02, 0.2)  # seconds until a transaction that collided is tried again: least, and how much more at random
log = logging.getLogger("scheduler.engine")
_SUCCEEDED = AttemptEnd.SUCCEEDED
_new = tuple.__new__  # a named tuple's own constructor takes three times as long


def returned(attempt: Attempt, runtime: Runtime, result: Any) -> Outcome:
    """The outcome of a body that returned. Raises PermanentError if its result cannot be stored, TaskTimeout if it came
    too late, and what its last checkpoint raises: all for :func:`raised`."""
    if attempt.settled is not None:
        if result is not None:
            log.warning(
                "what run() returned is not stored: its transaction had set the result",
                extra={"task": attempt.claimed.id},
            )
        return attempt.settled
    if attempt.cancelled:
        return with_log(attempt, cancelled(attempt, runtime))
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
        if inspect.iscoroutine(result):
            result.close()
            raise PermanentError(
                "the handler is async, but looks like a plain function (its decorator is one), so it was not awaited "
                "and has not run: let the decorator's function be async, too"
            ) from None
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


def raised(attempt: Attempt, runtime: Runtime, error: BaseException) -> tuple[Outcome, Callable[..., Any] | None]:
    """The outcome of a body that raised, and the hook to call."""
    c = attempt.claimed
    attempt.over = True
    if attempt.settled is not None:
        log.warning("raised after its transaction had committed its success: %r", error, extra={"task": c.id})
        return attempt.settled, None
    if attempt.cancelled or _only(Cancelled, error):
        return cancelled(attempt, runtime), None
    if attempt.lost or attempt.told_lost:  # or the lease was extended at the very moment at which the body was told
        # It was told to end. If nobody has taken the task over meanwhile, it goes back, without using an attempt.
        return hand_back(attempt, runtime.now()), None
    if attempt.suspended is not None:
        if _only(Suspended, error):
            return _suspend(attempt, runtime), None
        attempt.suspended = None  # something else went wrong on the way out
    if attempt.timed_out and not isinstance(error, TaskTimeout):
        error = attempt.timeout_error()
    errors = leaves(error)
    try:
        if all(isinstance(one, (Snooze, Collided)) for one in errors):
            again = runtime.now() + max(_pause(runtime, one) for one in errors)
            return _outcome(attempt, runtime, AttemptEnd.SNOOZED, st.SCHEDULED, run_at=again, refund=1), None
        failures = [one for one in errors if not isinstance(one, (Snooze, Interrupted))] or errors
        waits = [_wait(c, runtime, one, error) for one in failures]
    except ConfigError as bad:
        return for_good(attempt, runtime, describe(bad)), attempt.kind.on_failed
    if not all(map(_says_all, failures)):
        attempt.capture(traceback_text(error))
    final = [one for one, wait in zip(failures, waits, strict=True) if wait is None]
    failure = _described(final or failures, len(failures))
    if final:
        return for_good(attempt, runtime, failure), attempt.kind.on_failed
    again = runtime.now() + max(wait for wait in waits if wait is not None)
    outcome = _outcome(attempt, runtime, AttemptEnd.RETRIED, st.RETRY, failure=failure, run_at=again)
    return outcome, attempt.kind.on_attempt_failed


def leaves(error: BaseException) -> list[BaseException]:
    """The errors that this one stands for: several, where several coroutines of a handler have raised."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


def _only(sort: type[BaseException], error: BaseException) -> bool:
    """Whether this is nothing but an error of this sort, of several coroutines perhaps."""
    return all(isinstance(one, sort) for one in leaves(error))


def _says_all(error: BaseException) -> bool:
    """Whether it says in one line all there is to say, as what our own types raise does."""
    return isinstance(error, (Retry, PermanentError)) or type(error).__module__.startswith("scheduler.")


def _described(deciding: list[BaseException], of: int) -> Failure:
    """The failure that is stored of several errors: that which decided, before all one that is permanent."""
    failure = describe(next((one for one in deciding if isinstance(one, PermanentError)), deciding[0]))
    return failure if of == 1 else failure._replace(text=f"{failure.text} (and {counted(of - 1, 'more error')})")


def _pause(runtime: Runtime, error: BaseException) -> int:
    """Microseconds for which what uses no attempt is put back. Raises ConfigError."""
    if isinstance(error, Snooze):
        return span_us(error.seconds, "Snooze")
    return round((COLLIDED[0] + COLLIDED[1] * runtime.random()) * SECOND)


def _suspend(attempt: Attempt, runtime: Runtime) -> Outcome:
    return _outcome(attempt, runtime, AttemptEnd.SUSPENDED, st.SUSPENDED, run_at=attempt.suspended)


def _wait(c: Claimed, runtime: Runtime, error: BaseException, raised: BaseException) -> int | None:
    """Microseconds until the next attempt; None: there is none. ``raised``: the error itself, or the group it is in."""
    used = max(1, c.attempt - c.attempt_base)
    policy = RetryPolicy.from_json(c.retry) if c.retry is not None else None
    if isinstance(error, PermanentError) or (c.max_attempts is not None and used >= c.max_attempts):
        return None
    if isinstance(error, Retry):
        if error.after is not None:
            return span_us(error.after, "Retry(after=)")
        return policy.wait_us(used, runtime.random()) if policy else 0
    if policy is None or not (policy.matches(error) or policy.matches(raised)):
        return None
    return policy.wait_us(used, runtime.random())


def cancelled(attempt: Attempt, runtime: Runtime) -> Outcome:
    return _outcome(attempt, runtime, AttemptEnd.CANCELLED, st.CANCELLED)


def for_good(attempt: Attempt, runtime: Runtime, failure: Failure) -> Outcome:
    """The outcome of a task's last attempt, which has failed."""
    dead = bool(attempt.claimed.dead_letter)
    end, state = (AttemptEnd.DEAD, st.DEAD) if dead else (AttemptEnd.FAILED, st.FAILED)
    return _outcome(attempt, runtime, end, state, failure=failure)


def _outcome(attempt: Attempt, runtime: Runtime, end: AttemptEnd, state: int, **more: Any) -> Outcome:
    c = attempt.claimed
    return Outcome(c.id, c.claim, c.attempt, end, state, c.claimed_at, attempt.started_at, runtime.now(), **more)


def with_log(attempt: Attempt, outcome: Outcome) -> Outcome:
    return outcome if attempt.tail is None else outcome._replace(log=attempt.tail.text())


def ended_by(attempt: Attempt, runtime: Runtime, error: BaseException) -> tuple[Outcome, Callable[..., Any] | None]:
    """The outcome of an attempt that something outside of its body ended, and the hook that is to be called."""
    outcome, hook = raised(attempt, runtime, error)
    return with_log(attempt, outcome), hook


def died_alone(attempt: Attempt, runtime: Runtime, how: str) -> Outcome:
    """The outcome of a suspect that killed its process, in which there was nobody else. The turn counts these."""
    failure = Failure(how, ProcessDied.__name__)
    lost = _outcome(attempt, runtime, AttemptEnd.LOST, st.SCHEDULED, failure=failure, run_at=runtime.now())
    return with_log(attempt, lost)


def gave_up(attempt: Attempt, runtime: Runtime, error: BaseException) -> Outcome:
    """The outcome of an attempt around whose body something unforeseen was raised: the next one would meet it, too."""
    failure = describe(error)
    try:
        log.error("an attempt could not be carried out", exc_info=error, extra={"task": attempt.claimed.id})
    except BaseException:  # asking the error for its traceback: whoever carries attempts out has to go on
        log.error("an attempt could not be carried out: %s", failure.text, extra={"task": attempt.claimed.id})
    return for_good(attempt, runtime, failure)


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

"""Makes outcomes of attempts: of what a handler returned or raised, or of another end."""

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
from scheduler.model.envelope import idempotency_key
from scheduler.model.fingerprint import describe, traceback_text
from scheduler.model.json_text import encode_json
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.outgoing import success_spec
from scheduler.model.retry import RetryPolicy
from scheduler.model.spec import MAX_KEY, TaskSpec
from scheduler.model.state import CANCELLED, DEAD, FAILED, RETRY, SCHEDULED, SUCCESS, SUSPENDED
from scheduler.model.texts import counted, within
from scheduler.model.times import span_us
from scheduler.ports import SECOND

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt
    from scheduler.engine.attempt.runtime import Runtime
    from scheduler.store.tasks.claim import Claimed

MAX_RESULT = 1024 * 1024
COLLISION_DELAY_S = (
    0.02,
    0.2,
)  # before a transaction that collided runs again: the shortest, and the random part
log = logging.getLogger("scheduler.engine")
_SUCCEEDED = AttemptEnd.SUCCEEDED
_new = tuple.__new__  # skips the slower constructor of the named tuple


def outcome_of_result(attempt: Attempt, runtime: Runtime, result: Any) -> Outcome:
    """The outcome of a handler that returned.

    Raises PermanentError for a result that cannot be stored, TaskTimeout for a late one, and DeterminismError; the
    caller gives these to :func:`outcome_of_error`.
    """
    if attempt.committed_outcome is not None:
        if result is not None:
            log.warning(
                "the return value of run() is not stored: its transaction had set the result",
                extra={"task": attempt.claimed.id},
            )
        return attempt.committed_outcome
    if attempt.cancelled:
        return with_log(attempt, cancelled(attempt, runtime))
    if attempt.suspended is not None:
        log.warning("a handler swallowed what suspends it", extra={"task": attempt.claimed.id})
        return with_log(attempt, _suspend(attempt, runtime))
    if attempt.deadline is not None and (attempt.timed_out or runtime.monotonic() >= attempt.deadline):
        raise attempt.timeout_error()
    if attempt.durable is not None:
        attempt.durable.note_unvisited(attempt.durable.finish())
    return success(attempt, runtime, None if result is None else result_text(result))


def result_text(result: Any) -> str | None:
    """A task's result as JSON text. Raises PermanentError if it is not JSON, or too long."""
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
    """The outcome of an attempt that succeeded. ``text``: its result as JSON."""
    c = attempt.claimed
    log_text = None if attempt.tail is None else attempt.tail.text()
    began, now = attempt.started_at, runtime.now()
    columns = (
        c.id,
        c.claim,
        c.attempt,
        _SUCCEEDED,
        SUCCESS,
        c.claimed_at,
        began,
        now,
        text,
        None,
        None,
        0,
        log_text,
        None if attempt.kind.options.on_success is None else _message_of(attempt, text, now),
    )
    return _new(Outcome, columns)


def _message_of(attempt: Attempt, text: str | None, now: int) -> TaskSpec:
    """What is published of a success."""
    c, sink = attempt.claimed, attempt.kind.options.on_success
    assert sink is not None
    fields = {
        "message_type": c.message_type or c.kind,
        "schema_version": c.schema_version,
        "correlation_id": c.correlation or str(c.id),
        "causation_id": str(c.id),
        "subject": c.subject,
        "sequence": c.sequence,
    }
    key = f"{c.kind}:{idempotency_key(c.key, c.original_id, c.id, c.epoch)}"
    return success_spec(sink, within(key, MAX_KEY), fields, text, c.id, now)


def outcome_of_error(
    attempt: Attempt, runtime: Runtime, error: BaseException
) -> tuple[Outcome, Callable[..., Any] | None]:
    """The outcome of a handler that raised, and the hook to call."""
    c = attempt.claimed
    attempt.handler_done = True
    if attempt.committed_outcome is not None:
        log.warning("raised after its transaction had committed its success: %r", error, extra={"task": c.id})
        return attempt.committed_outcome, None
    if attempt.cancelled or _all_are(Cancelled, error):
        return cancelled(attempt, runtime), None
    if attempt.lost or attempt.loss_delivered:  # the lease may have been renewed after the handler got LeaseLost
        # If no other worker has claimed the task meanwhile, it goes back, without using an attempt.
        return released(attempt, runtime.now()), None
    if attempt.suspended is not None:
        if _all_are(Suspended, error):
            return _suspend(attempt, runtime), None
        attempt.suspended = None  # the handler failed while it was unwound
    if attempt.timed_out and not isinstance(error, TaskTimeout):
        error = attempt.timeout_error()
    errors = leaf_errors(error)
    now = runtime.now()  # read once: a retry is due exactly its wait after the recorded end
    try:
        if all(isinstance(one, (Snooze, Collided)) for one in errors):
            next_due = now + max(_snooze_us(runtime, one) for one in errors)
            return _outcome(attempt, runtime, AttemptEnd.SNOOZED, SCHEDULED, now, run_at=next_due, refund=1), None
        failures = [one for one in errors if not isinstance(one, (Snooze, Interrupted))] or errors
        waits = [_retry_wait_us(c, runtime, one, error) for one in failures]
    except ConfigError as bad:
        return permanent_failure(attempt, runtime, describe(bad)), attempt.kind.on_failed
    if not all(map(_needs_no_traceback, failures)):
        attempt.capture(traceback_text(error))
    final = [one for one, wait in zip(failures, waits, strict=True) if wait is None]
    failure = _described(final or failures, len(failures))
    if final:
        return permanent_failure(attempt, runtime, failure), attempt.kind.on_failed
    next_due = now + max(wait for wait in waits if wait is not None)
    outcome = _outcome(attempt, runtime, AttemptEnd.RETRIED, RETRY, now, failure=failure, run_at=next_due)
    return outcome, attempt.kind.on_attempt_failed


def leaf_errors(error: BaseException) -> list[BaseException]:
    """The errors in an exception group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaf_errors(one)]
    return [error]


def _all_are(error_type: type[BaseException], error: BaseException) -> bool:
    """Whether the error, or each error of its group, is of this type."""
    return all(isinstance(one, error_type) for one in leaf_errors(error))


def _needs_no_traceback(error: BaseException) -> bool:
    """Whether its text says enough: schedd's own error, or one that a handler chose."""
    return isinstance(error, (Retry, PermanentError)) or type(error).__module__.startswith("scheduler.")


def _described(deciding: list[BaseException], of: int) -> Failure:
    """The failure that is stored for ``of`` errors: the first permanent one, else the first."""
    failure = describe(next((one for one in deciding if isinstance(one, PermanentError)), deciding[0]))
    return failure if of == 1 else failure._replace(text=f"{failure.text} (and {counted(of - 1, 'more error')})")


def _snooze_us(runtime: Runtime, error: BaseException) -> int:
    """Microseconds until a snoozed or collided attempt is due again. Raises ConfigError."""
    if isinstance(error, Snooze):
        return span_us(error.seconds, "Snooze")
    return round((COLLISION_DELAY_S[0] + COLLISION_DELAY_S[1] * runtime.random()) * SECOND)


def _suspend(attempt: Attempt, runtime: Runtime) -> Outcome:
    return _outcome(attempt, runtime, AttemptEnd.SUSPENDED, SUSPENDED, run_at=attempt.suspended)


def _retry_wait_us(c: Claimed, runtime: Runtime, error: BaseException, raised: BaseException) -> int | None:
    """Microseconds until the next attempt, None for no more. ``raised``: the error or its group."""
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
    return _outcome(attempt, runtime, AttemptEnd.CANCELLED, CANCELLED)


def permanent_failure(attempt: Attempt, runtime: Runtime, failure: Failure) -> Outcome:
    """The outcome of a task's last attempt, which failed."""
    dead = bool(attempt.claimed.dead_letter)
    end, state = (AttemptEnd.DEAD, DEAD) if dead else (AttemptEnd.FAILED, FAILED)
    return _outcome(attempt, runtime, end, state, failure=failure)


def _outcome(
    attempt: Attempt, runtime: Runtime, end: AttemptEnd, state: int, now: int | None = None, **more: Any
) -> Outcome:
    c = attempt.claimed
    at = runtime.now() if now is None else now
    return Outcome(c.id, c.claim, c.attempt, end, state, c.claimed_at, attempt.started_at, at, **more)


def with_log(attempt: Attempt, outcome: Outcome) -> Outcome:
    return outcome if attempt.tail is None else outcome._replace(log=attempt.tail.text())


def outcome_of_external_end(
    attempt: Attempt, runtime: Runtime, error: BaseException
) -> tuple[Outcome, Callable[..., Any] | None]:
    """The outcome of an attempt that its handler did not end, and the hook to call."""
    outcome, hook = outcome_of_error(attempt, runtime, error)
    return with_log(attempt, outcome), hook


def crashed_in_quarantine(attempt: Attempt, runtime: Runtime, how: str) -> Outcome:
    """The outcome of a quarantined attempt whose process died. The dispatch cycle counts these."""
    failure = Failure(how, ProcessDied.__name__)
    now = runtime.now()
    lost = _outcome(attempt, runtime, AttemptEnd.LOST, SCHEDULED, now, failure=failure, run_at=now)
    return with_log(attempt, lost)


def internal_failure(attempt: Attempt, runtime: Runtime, error: BaseException) -> Outcome:
    """The outcome after an unexpected error around the handler: no retry, it would come again."""
    failure = describe(error)
    try:
        log.error("an attempt could not be carried out", exc_info=error, extra={"task": attempt.claimed.id})
    except BaseException:  # the error's own code may raise while its traceback is made; the slot has to go on
        log.error("an attempt could not be carried out: %s", failure.text, extra={"task": attempt.claimed.id})
    return permanent_failure(attempt, runtime, failure)


def outcome_at_stop(attempt: Attempt, runtime: Runtime, delay: int) -> Outcome:
    """The outcome of an attempt that still runs when its worker stops.

    A handler that failed has failed, whatever its hook still does. A handler past its timeout uses its attempt: if it
    were released, it would hang the next worker, too. Any other attempt is released unused, due after ``delay``
    microseconds. No hook is called, because the handler still runs.
    """
    if attempt.committed_outcome is not None:
        return attempt.committed_outcome
    if attempt.decided is not None:
        return with_log(attempt, attempt.decided)
    past = attempt.timed_out or (attempt.deadline is not None and runtime.monotonic() >= attempt.deadline)
    if past and not (attempt.lost or attempt.loss_delivered) and attempt.suspended is None:
        error = attempt.timeout_error(", and still ran when its worker stopped")
        return outcome_of_external_end(attempt, runtime, error)[0]
    now = runtime.now()
    return released(attempt, now, now + delay)


def released(attempt: Attempt, now: int, due: int | None = None) -> Outcome:
    """The outcome of an attempt that is not used up: never started, or interrupted by a stop."""
    c = attempt.claimed
    return Outcome(
        c.id,
        c.claim,
        c.attempt,
        AttemptEnd.HANDED_BACK,
        SCHEDULED,
        c.claimed_at,
        attempt.started_at,
        now,
        run_at=due,
        refund=1,
    )

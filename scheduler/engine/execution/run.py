"""Runs one attempt of one task and returns its outcome. Knows no database."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.capture import current_attempt
from scheduler.engine.attempt.loop_threads import read
from scheduler.engine.attempt.outcomes import (
    cancelled,
    outcome_of_error,
    outcome_of_result,
    permanent_failure,
    released,
    with_log,
)
from scheduler.engine.attempt.own_directory import moved, put_back
from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.durable.async_driver import settle_async
from scheduler.engine.durable.thread_driver import settle
from scheduler.engine.execution import leftovers
from scheduler.engine.execution.context import AsyncContext, Context
from scheduler.errors import PayloadError
from scheduler.model.fingerprint import describe
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.parent_names import has_names
from scheduler.model.policy import lived_too_long
from scheduler.model.running import log_fields
from scheduler.model.state import CANCELLED
from scheduler.ports import SECOND

log = logging.getLogger("scheduler.engine")
_NAMED: Any = object()  # in place of a payload that results of parents complete


def execute(attempt: Attempt, runtime: Runtime) -> Outcome:
    """Run a synchronous handler to its end, whatever it raises."""
    token = current_attempt.set(attempt)
    try:
        decoded = _begin(attempt, runtime)
        if isinstance(decoded, Outcome):
            return decoded
        ctx = Context(attempt, runtime)
        around = runtime.around_run if attempt.trace is None else attempt.trace.around(runtime.around_run)
        try:
            if decoded is _NAMED:
                decoded = _completed(attempt, runtime, ctx._by_name(ctx.results()))
                if isinstance(decoded, Outcome):
                    return decoded
            if around is None:
                result = attempt.kind.run(decoded, ctx)
            else:
                with around(ctx):
                    result = attempt.kind.run(decoded, ctx)
            if attempt.durable is not None:
                settle(attempt)
            if attempt.claimed.claim > 1 and _must_read_recorded(attempt):
                _read_recorded(attempt, runtime)
            return outcome_of_result(attempt, runtime, result)
        except BaseException as error:
            settle(attempt, quietly=True)
            outcome, hook = outcome_of_error(attempt, runtime, error)
            if hook is not None and decoded is not _NAMED:
                runtime.decided(attempt, outcome)
                _call_hook(attempt, hook, decoded, ctx, error)
            return with_log(attempt, outcome)
    finally:
        attempt.ended = True
        current_attempt.reset(token)
        if moved:
            put_back()


async def execute_async(attempt: Attempt, runtime: Runtime) -> Outcome:
    """Run an asynchronous handler to its end, whatever it raises."""
    token = current_attempt.set(attempt)
    try:
        decoded = _begin(attempt, runtime)
        if isinstance(decoded, Outcome):
            return decoded
        ctx = AsyncContext(attempt, runtime)
        around = runtime.around_run if attempt.trace is None else attempt.trace.around(runtime.around_run)
        try:
            if decoded is _NAMED:
                decoded = _completed(attempt, runtime, ctx._by_name(await ctx.results()))
                if isinstance(decoded, Outcome):
                    return decoded
            if around is None:
                result = await attempt.kind.run(decoded, ctx)
            else:
                with around(ctx):
                    result = await attempt.kind.run(decoded, ctx)
            if attempt.durable is not None:
                await settle_async(attempt)
            if attempt.calls or attempt.kept:
                await leftovers.finish(attempt)
            if attempt.claimed.claim > 1 and _must_read_recorded(attempt):
                await read(_read_recorded, attempt, runtime)
            outcome = outcome_of_result(attempt, runtime, result)
            if attempt.durable is not None:
                await leftovers.end(attempt)
            return outcome
        except BaseException as error:
            if is_abandoned(attempt):
                raise
            await settle_async(attempt, quietly=True)
            outcome, hook = outcome_of_error(attempt, runtime, error)
            if attempt.calls or attempt.kept or (attempt.tasks and attempt.durable is not None):
                runtime.decided(attempt, outcome)
                await leftovers.end(attempt)
                if outcome is not attempt.committed_outcome:
                    outcome = leftovers.ended_later(outcome, runtime.now())
            if hook is not None and decoded is not _NAMED:
                runtime.decided(attempt, outcome)
                pending = _call_hook(attempt, hook, decoded, ctx, error)
                if inspect.isawaitable(pending):
                    try:
                        await pending
                    except BaseException:
                        log.exception("hook of %s raised", attempt.claimed.kind)
                if attempt.calls:
                    await leftovers.end(attempt)
            return with_log(attempt, outcome)
    finally:
        abandoned = is_abandoned(attempt)
        if attempt.tasks and not abandoned:
            leftovers.warn_of_leftover_tasks(attempt)
        attempt.ended = True
        if not abandoned:
            current_attempt.reset(token)
        if moved:
            put_back()


def is_abandoned(attempt: Attempt) -> bool:
    """Whether a stop at once has ended the loop: the coroutine is collected, and nothing of its task may run."""
    return attempt.asyncio_task is not None and not attempt.asyncio_task.get_loop().is_running()


def _must_read_recorded(attempt: Attempt) -> bool:
    """Whether the outcome needs earlier checkpoints, even without any durable call.

    A kind that is not strict would only log a warning: a read on a dead connection is not worth its slot.
    """
    return attempt.kind.options.determinism == "strict" and attempt.committed_outcome is None


def _read_recorded(attempt: Attempt, runtime: Runtime) -> None:
    """Read the checkpoints of earlier attempts, for the check at the end."""
    from scheduler.engine.durable.calls import durable_of
    from scheduler.engine.durable.thread_driver import drive

    durable = durable_of(attempt, runtime)
    drive(durable, durable.read_recorded())


def _begin(attempt: Attempt, runtime: Runtime) -> Any:
    """Start the clock and decode the payload; returns an Outcome if the handler must not run."""
    c = attempt.claimed
    now = runtime.now()
    if attempt.start_by is not None and now > attempt.start_by:
        return released(attempt, now)  # the kind's rate counted this start in a period that is over
    if c.expires_at is not None and now >= c.expires_at:
        reason = lived_too_long(c.max_duration)
        return Outcome(
            *(c.id, c.claim, c.attempt, AttemptEnd.CANCELLED, CANCELLED, c.claimed_at, None, now),
            failure=reason,
            refund=1,
        )
    monotonic = runtime.monotonic()
    if attempt.lost or monotonic >= runtime.lease_expires_at:
        return released(attempt, now)  # this process stood still or was cut off: another worker may hold the task
    kind = attempt.kind
    if c.schema_version != kind.options.schema_version and attempt.schema_too_new:
        return released(attempt, now)  # a newer worker takes it in its turn
    runtime.began(c.id, c.claim)
    attempt.started_at = now
    attempt.started_mono = monotonic
    if c.timeout is not None:
        attempt.deadline = attempt.started_mono + c.timeout / SECOND
    if attempt.cancelled:
        return cancelled(attempt, runtime)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("task started", extra=log_fields(c))
    if attempt.on_begin is not None:
        attempt.on_begin()
    try:
        if c.payload is None:
            raise PayloadError("the payload is missing from the database")
        if c.headers is not None and has_names(c.headers):  # mostly there are none
            return _NAMED
        return kind.decode(c.payload, c.schema_version, c.id)
    except BaseException as error:  # also SystemExit of a build() or an upgrade()
        # A broken row or upgrade is broken next time, too: no retry.
        return permanent_failure(attempt, runtime, describe(error))


def _completed(attempt: Attempt, runtime: Runtime, results: dict[str, Any]) -> Any:
    """The payload with the results of the parents that have names; an Outcome if they do not fit."""
    c = attempt.claimed
    try:
        return attempt.kind.decode_with(c.payload or "", c.schema_version, c.id, results)
    except BaseException as error:
        return permanent_failure(attempt, runtime, describe(error))


def _call_hook(
    attempt: Attempt, hook: Callable[..., Any], value: Any, ctx: Context | AsyncContext, error: BaseException
) -> Any:
    """Call a hook. An error of it is logged and never changes the outcome."""
    try:
        return hook(value, ctx, error)
    except BaseException:
        log.exception("hook of %s raised", attempt.claimed.kind)
        return None

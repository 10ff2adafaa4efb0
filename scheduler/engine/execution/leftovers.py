"""Waits, at the end of an attempt, for what its asynchronous handler left running.

That is: calls in threads, which cannot be cancelled, and coroutines given to ``ctx.wait_until``. A durable handler's
attempt waits for all tasks that it started, since the next attempt starts them again. Other handlers' tasks are only
logged: they may belong to a shared client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.backoff import LogOnce
from scheduler.engine.attempt.loop_threads import end_of
from scheduler.errors import Interrupted
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.texts import counted, listed

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt

T = TypeVar("T")
log = logging.getLogger("scheduler.engine")
WAIT_LOG_AFTER_S = 5.0
_logged = LogOnce()  # the leftover tasks of a kind


def keep(attempt: Attempt, awaitable: Awaitable[T]) -> asyncio.Task[T]:
    """Start an awaitable that the attempt's end waits for."""
    task: Any = asyncio.ensure_future(awaitable)
    if attempt.kept is None:
        attempt.kept = []
    attempt.kept.append(task)
    return task  # type: ignore[no-any-return]


async def finish(attempt: Attempt) -> None:
    """Wait for what a handler that returned has left running.

    Raises the errors of its kept coroutines, and CancelledError when the attempt is cancelled.
    """
    while left := [*_undone(attempt.kept), *_running(attempt)]:
        await _wait(attempt, left)
    errors, attempt.kept = _errors(attempt), None
    if len(errors) == 1:
        raise errors.pop()  # this frame is in its traceback, and keeps nothing of it
    if errors:
        raise BaseExceptionGroup("several coroutines of ctx.wait_until have raised", errors)


async def end(attempt: Attempt) -> None:
    """Cancel what a failed or cancelled attempt left running, and wait until it has ended."""
    while True:
        tasks = _undone(attempt.kept if attempt.durable is None else attempt.started_tasks())
        for task in tasks:
            task.cancel()
        for call in list(attempt.calls or ()):
            call.cancel()  # works only if it has not begun
        left = [*tasks, *_running(attempt)]
        if not left:
            break
        try:
            await _wait(attempt, left)
        except asyncio.CancelledError:
            pass  # the attempt ends once these have ended
    for error in _errors(attempt):
        if not isinstance(error, Interrupted):
            log.error(
                "a coroutine that was given to ctx.wait_until has raised",
                exc_info=error,
                extra={"task": attempt.claimed.id},
            )


def warn_of_leftover_tasks(attempt: Attempt) -> None:
    """Log, once for each kind, that its handler left asyncio tasks."""
    left = _undone(attempt.tasks)
    if left and _logged.is_new(key=attempt.claimed.kind):
        log.warning(
            "a handler of %s has ended and left %s running, which a stop of this process or a retry does not wait for: "
            "await them, or give them to ctx.wait_until",
            *(attempt.claimed.kind, counted(len(left), "asyncio task")),
            extra={"task": attempt.claimed.id},
        )


def ended_later(outcome: Outcome, now: int) -> Outcome:
    """The outcome, moved to the end of the last call: the wait for a retry begins there, too."""
    run_at = outcome.run_at
    if run_at is not None and outcome.end in (AttemptEnd.RETRIED, AttemptEnd.SNOOZED):
        run_at += now - outcome.finished_at
    return outcome._replace(finished_at=now, run_at=run_at)


def _undone(tasks: Any) -> list[Any]:
    """The tasks that have not ended, without the current one."""
    own = asyncio.current_task()
    return [task for task in list(tasks or ()) if not task.done() and task is not own]


def _running(attempt: Attempt) -> list[asyncio.Future[Any]]:
    """The attempt's running calls in threads, as futures of this loop."""
    return [end_of(call) for call in list(attempt.calls or ()) if not call.done()]


async def _wait(attempt: Attempt, left: list[asyncio.Future[Any]]) -> None:
    _, undone = await asyncio.wait(left, timeout=WAIT_LOG_AFTER_S)
    if undone and not attempt.wait_logged:
        attempt.wait_logged = True
        calls = len(attempt.calls or ())
        tasks = len(undone) - calls
        parts = [counted(calls, "call") + " in threads"] if calls else []
        parts += [counted(tasks, "coroutine")] if tasks > 0 else []
        text = f"the handler has ended; its attempt waits for {listed(parts)}"
        attempt.capture(text + "\n")
        log.warning(text, extra={"task": attempt.claimed.id})


def _errors(attempt: Attempt) -> list[BaseException]:
    """The errors of the kept coroutines that have ended."""
    ended = [task for task in attempt.kept or () if task.done() and not task.cancelled()]
    return [error for task in ended if (error := task.exception()) is not None]

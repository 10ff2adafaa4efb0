"""One run of a function in a worker: its context, its signals, its result."""

from __future__ import annotations

import dataclasses
import os
import socket
from datetime import UTC, datetime
from typing import Any

from asgiref.sync import sync_to_async

from scheduler.django.standard import base, normalize_json, task_backends, task_finished, task_started
from scheduler.errors import ConfigError, PermanentError
from scheduler.model.fingerprint import traceback_text
from scheduler.model.retry import RetryPolicy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(base.TaskContext):
    """Django's context. ``schedd`` is the context of schedd's own handlers: steps, sleeps, progress, events, log."""

    schedd: Any


def policy(given: Any) -> RetryPolicy:
    """A retry policy, or that of so many attempts. Raises ConfigError."""
    if isinstance(given, RetryPolicy):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        return RetryPolicy(max_attempts=given)
    raise ConfigError(f"retry takes a RetryPolicy or the number of attempts, not {given!r:.80}")


def path(thing: Any) -> str:
    """Where a class or a function is found."""
    return f"{thing.__module__}.{thing.__qualname__}"


def run(function: Any, call: Any, ctx: Any) -> Any:
    """Call the function, and send the signals of its start and its success."""
    result = _begun(call, ctx)
    value = _json(function(*_args(call, result, ctx), **call.kwargs))
    _succeeded(call, result, value)
    return value


async def run_async(function: Any, call: Any, ctx: Any) -> Any:
    """:func:`run` for a coroutine function. Receivers may use the database, and so run in Django's thread for that."""
    result = await sync_to_async(_begun)(call, ctx)
    value = _json(await function(*_args(call, result, ctx), **call.kwargs))
    await sync_to_async(_succeeded)(call, result, value)
    return value


def failed(call: Any, ctx: Any, error: BaseException) -> None:
    """Send the signal of an end: the task has failed for good."""
    result = _of(call, ctx)
    now = datetime.now(UTC)
    found = base.TaskError(exception_class_path=path(type(error)), traceback=traceback_text(error))
    _set(result, status=base.TaskResultStatus.FAILED, finished_at=now, errors=[*result.errors, found])
    trace = error.__traceback__
    try:
        raise error
    except BaseException:  # Django's receivers ask sys.exc_info() for it
        task_finished.send_robust(sender=type(task_backends[call.backend]), task_result=result)
    finally:
        error.__traceback__ = trace


def _args(call: Any, result: Any, ctx: Any) -> list[Any]:
    return [TaskContext(task_result=result, schedd=ctx), *call.args] if call.context else list(call.args)


def _json(value: Any) -> Any:
    """A function's result as Django wants results. Raises PermanentError: it would be no better the next time."""
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        raise PermanentError(f"the result cannot be stored: {error}") from None


def _begun(call: Any, ctx: Any) -> Any:
    result = _of(call, ctx)
    task_started.send_robust(sender=type(task_backends[call.backend]), task_result=result)
    return result


def _succeeded(call: Any, result: Any, value: Any) -> None:
    _set(result, status=base.TaskResultStatus.SUCCESSFUL, finished_at=datetime.now(UTC), _return_value=value)
    task_finished.send_robust(sender=type(task_backends[call.backend]), task_result=result)


def _of(call: Any, ctx: Any) -> Any:
    """The task's result as it is now: what earlier attempts left is read, of a first one there is nothing."""
    backend = task_backends[call.backend]
    now, me = datetime.now(UTC), f"{socket.gethostname()}:{os.getpid()}"
    result = backend.result_in_attempt(ctx, call)
    first = result.started_at or now
    workers = [*result.worker_ids[: ctx.attempt - 1], me]
    _set(result, status=base.TaskResultStatus.RUNNING, started_at=first, last_attempted_at=now, worker_ids=workers)
    return result


def _set(result: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(result, name, value)  # it is frozen

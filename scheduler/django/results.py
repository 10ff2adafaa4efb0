"""What is stored of a task, as a result of Django's."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

import scheduler.errors
from scheduler.django import handlers
from scheduler.django.standard import TaskResultDoesNotExist, base
from scheduler.errors import UnknownTaskError
from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import TaskState
from scheduler.model.times import to_datetime
from scheduler.store.db.tx import Tx
from scheduler.store.read import tasks

FAILURES = (AttemptEnd.FAILED, AttemptEnd.RETRIED, AttemptEnd.DEAD, AttemptEnd.LOST)
_NO_ATTEMPT = (AttemptEnd.SNOOZED, AttemptEnd.SUSPENDED, AttemptEnd.HANDED_BACK, AttemptEnd.REPLACED)
_LAST_LINE = r"^((?:\w+\.)*{name})(?:: |$)"
_STATUS = {
    TaskState.SUCCESS: base.TaskResultStatus.SUCCESSFUL,
    TaskState.RUNNING: base.TaskResultStatus.RUNNING,
}
_ENDED_BY = {TaskState.CANCELLED: "TaskCancelledError", TaskState.SKIPPED: "DependencyFailed"}


def read(tx: Tx, task_id: int, backend: Any) -> Any:
    """The result of the task with this id. Raises TaskResultDoesNotExist, also for a task that is not Django's."""
    try:
        record = tasks.get_task(tx, task_id)
    except UnknownTaskError as error:
        raise TaskResultDoesNotExist(str(error)) from None
    payload = handlers.payload_of(record.payload)
    if not {"args", "kwargs", "backend"} <= payload.keys():
        raise TaskResultDoesNotExist(f"task {task_id} is a {record.kind}, which no task of Django's has made")
    attempts = [one for one in tasks.attempts(tx, task_id) if one.outcome not in _NO_ATTEMPT]
    logs = dict(tasks.attempt_logs(tx, task_id))
    errors = [_error(one, logs.get(one.claim)) for one in attempts if one.outcome in FAILURES and one.error]
    if record.state in (TaskState.FAILED, TaskState.DEAD, *_ENDED_BY) and (not errors or record.state in _ENDED_BY):
        errors.append(_end(record))
    workers = [one.worker for one in attempts]
    begun = [one.started_at for one in attempts if one.started_at is not None]
    if record.state is TaskState.RUNNING and record.worker is not None:
        workers.append(f"worker {record.worker}")
        begun.append(record.started_at or tx.now)
    result = new(backend, _task(record, payload, backend), str(record.id), payload["args"], payload["kwargs"])
    ready = base.TaskResultStatus.FAILED if record.state.terminal else base.TaskResultStatus.READY
    fields = {
        "status": _STATUS.get(record.state, ready),
        "enqueued_at": to_datetime(record.created_at),
        "started_at": to_datetime(begun[0]) if begun else None,
        "last_attempted_at": to_datetime(begun[-1]) if begun else None,
        "finished_at": None if record.finished_at is None else to_datetime(record.finished_at),
        "errors": errors,
        "worker_ids": workers,
        "_return_value": record.at(tx.now).result,
    }
    for name, value in fields.items():
        object.__setattr__(result, name, value)
    return result


def new(backend: Any, task: Any, result_id: str, args: Any, kwargs: Any) -> Any:
    """A result of which nothing is known yet."""
    return base.TaskResult(
        task=task,
        id=result_id,
        status=base.TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend.alias,
        errors=[],
        worker_ids=[],
    )


def run_after_of(payload: Any) -> datetime | None:
    """When a call was to run, as its program gave it."""
    text = payload.get("run_after")
    if text is None:
        return None
    found = datetime.fromisoformat(text)
    return found if settings.USE_TZ else timezone.make_naive(found)


def task_of(path: str, queue: str, payload: Any, backend: Any) -> Any:
    """The task of Django's that a stored call was made of. Raises TaskResultDoesNotExist if its function is gone."""
    try:
        found = handlers.found_at(path)
    except ImportError as error:
        raise TaskResultDoesNotExist(f"the function of the task is gone: {error}") from None
    known = isinstance(found, base.Task)
    kind = type(found) if known and found.backend == backend.alias else backend.task_class
    made = kind(
        func=found.func if known else found, backend=backend.alias, queue_name=next(iter(backend.queues), queue)
    )
    given = {
        "priority": payload.get("priority", 0),
        "queue_name": queue,
        "run_after": run_after_of(payload),
        "takes_context": bool(payload.get("context", False)),
    }
    for name, value in given.items():
        object.__setattr__(made, name, value)  # as it is stored, even where a new task may not be like that any more
    return made


def _task(record: Any, payload: Any, backend: Any) -> Any:
    return task_of(handlers.path_of(record.kind, payload), record.queue, payload, backend)


def _error(attempt: Any, log: str | None) -> Any:
    """An attempt's error. Its class is stored by name; the traceback's last lines say where it is."""
    text = tasks.traceback_in(log)
    name = str(attempt.error_class or "Exception")
    found = re.findall(_LAST_LINE.format(name=re.escape(name)), text or "", re.MULTILINE)
    return base.TaskError(
        exception_class_path=_qualified(found[-1] if found else name), traceback=f"{text}\n" if text else attempt.error
    )


def _qualified(name: str) -> str:
    if "." in name:
        return name
    return f"scheduler.errors.{name}" if hasattr(scheduler.errors, name) else f"builtins.{name}"


def _end(record: Any) -> Any:
    """Why a task ended that failed in no attempt."""
    name = _ENDED_BY.get(record.state) or str(record.error_class or "DependencyFailed")
    said = f": {record.error}" if record.error else ""
    text = f"task {record.id} was cancelled{said}" if record.state is TaskState.CANCELLED else str(record.error or "")
    return base.TaskError(exception_class_path=_qualified(name), traceback=f"{name}: {text or 'it was not run'}\n")

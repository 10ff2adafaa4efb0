"""How jobs of child processes end: as the child says, or by its death."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.capture import current_attempt
from scheduler.engine.attempt.outcomes import crashed_in_quarantine, outcome_of_external_end, with_log
from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.processes.child_handle import Job
from scheduler.engine.processes.host import ChildHost
from scheduler.engine.processes.messages import GarbledError
from scheduler.errors import ProcessDied, SchedulerError
from scheduler.model.outcome import AttemptEnd, Outcome

log = logging.getLogger("scheduler.engine")


def resolve(job: Job, value: Any = None, *, error: BaseException | None = None) -> None:
    """Tell whoever waits for a function; nothing happens if nobody does."""
    answer = job.answer
    if answer is None or not answer.set_running_or_notify_cancel():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def computed(job: Job, fine: bool, data: bytes) -> None:
    """A function has returned or raised what was pickled into ``data``."""
    try:
        told = pickle.loads(data)
    except BaseException as error:  # a class that cannot be made here
        fine, told = False, error if isinstance(error, Exception) else ProcessDied(f"what it told raised {error!r}")
    if not fine and not isinstance(told, BaseException):
        told = ProcessDied("its process told what it had raised, but that is no error")
    resolve(job, told) if fine else resolve(job, error=told)


def replay_record(attempt: Attempt, fields: dict[str, Any]) -> None:
    """Hand a record of a child to this process's loggers, as if it had been made here inside the attempt.

    Raises GarbledError if it is none.
    """
    sorts = (("name", str), ("levelno", int), ("msg", str))
    if not all(type(fields.get(name)) is sort for name, sort in sorts) or fields.get("args"):
        raise GarbledError("it logged what is no record")
    logger = logging.getLogger(fields["name"])
    if not logger.isEnabledFor(fields["levelno"]):
        return
    token = current_attempt.set(attempt)
    try:
        logger.handle(logging.makeLogRecord(fields))
    finally:
        current_attempt.reset(token)


def died(
    job: Job, how: str, runtime: Runtime, spec: ChildHost, report: Callable[[Attempt, Outcome], None]
) -> Job | None:
    """A job that had begun ended with its process. Returns the hook that another child has to run, if there is one."""
    attempt = job.attempt
    if job.answer is not None:
        resolve(job, error=ProcessDied(how))
        return None
    if job.slots is None:
        log.error("a hook of %s ended its process: %s", attempt.kind.name, how)
        return None
    if job.alone and attempt.decided is None and not (attempt.cancelled or attempt.timed_out or attempt.loss_delivered):
        report(attempt, crashed_in_quarantine(attempt, runtime, how))
        return None
    if attempt.decided is not None:
        log.error("a hook of %s, or what its handler had left, ended its process: %s", attempt.kind.name, how)
        report(attempt, with_log(attempt, attempt.decided))
        return None
    error: SchedulerError = ProcessDied(how)
    if attempt.timed_out:
        error = attempt.timeout_error("; its process was killed")
    outcome, hook = outcome_of_external_end(attempt, runtime, error)
    report(attempt, outcome)
    if hook is None:
        return None
    name = "on_attempt_failed" if outcome.end is AttemptEnd.RETRIED else "on_failed"
    about = (type(error).__name__, str(error))
    where = (attempt.kind.name, *spec.reference(attempt.kind))
    message = ("hook", *where, tuple(attempt.claimed), name, attempt.started_at, *about)
    return Job(0, job.level, message, attempt)

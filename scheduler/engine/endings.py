"""How jobs of child processes end: as the child says, or by its death."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

from scheduler.engine.attempt import Attempt
from scheduler.engine.children import Job
from scheduler.engine.logs import current_attempt
from scheduler.engine.processspec import Spec
from scheduler.engine.runtime import Runtime
from scheduler.engine.verdict import died_alone, ended_by
from scheduler.errors import ProcessDied, SchedulerError
from scheduler.model.outcome import AttemptEnd, Failure, Outcome

log = logging.getLogger("scheduler.engine")


def answer_to(job: Job, value: Any = None, *, error: BaseException | None = None) -> None:
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
    except Exception as error:  # a class that cannot be made here
        fine, told = False, error
    answer_to(job, told) if fine else answer_to(job, error=told)


def outcome_of(fields: list[Any]) -> Outcome:
    """As the child sent it."""
    made = Outcome._make(fields)
    failure = None if made.failure is None else Failure._make(made.failure)
    return made._replace(end=AttemptEnd(made.end), failure=failure)


def log_again(attempt: Attempt, fields: dict[str, Any]) -> None:
    """Hand a record of a child to this process's loggers, as if it had been made here inside the attempt."""
    logger = logging.getLogger(fields["name"])
    if not logger.isEnabledFor(fields["levelno"]):
        return
    token = current_attempt.set(attempt)
    try:
        logger.handle(logging.makeLogRecord(fields))
    finally:
        current_attempt.reset(token)


def died(job: Job, how: str, runtime: Runtime, spec: Spec, report: Callable[[Attempt, Outcome], None]) -> Job | None:
    """A job that had begun ended with its process. Returns the hook that another child has to run, if there is one."""
    attempt = job.attempt
    if job.answer is not None:
        answer_to(job, error=ProcessDied(how))
        return None
    if job.slots is None:
        log.error("a hook of %s ended its process: %s", attempt.kind.name, how)
        return None
    if job.alone and not (attempt.cancelled or attempt.timed_out or attempt.told_lost):
        report(attempt, died_alone(attempt, runtime, how))
        return None
    error: SchedulerError = ProcessDied(how)
    if attempt.timed_out:
        error = attempt.timeout_error("; its process was killed")
    outcome, hook = ended_by(attempt, runtime, error)
    report(attempt, outcome)
    if hook is None:
        return None
    name = "on_attempt_failed" if outcome.end is AttemptEnd.RETRIED else "on_failed"
    about = (type(error).__name__, str(error))
    where = (attempt.kind.name, *spec.reference(attempt.kind))
    message = ("hook", *where, tuple(attempt.claimed), name, attempt.started_at, *about)
    return Job(0, job.level, message, attempt)

"""The error tree. Everything that a caller can meet derives from :class:`SchedulerError`.

What unwinds a handler from inside (:class:`Interrupted` and its children) derives from ``BaseException``, so
that a handler's ``except Exception`` does not swallow it.
"""

from __future__ import annotations

from collections.abc import Sequence


class SchedulerError(Exception):
    """Base of every error that schedd raises."""


class UnknownTaskError(SchedulerError):
    """No task has this id."""

    def __init__(self, task_id: int) -> None:
        super().__init__(f"there is no task {task_id}")
        self.task_id = task_id


class UnknownDependencyError(SchedulerError):
    """A task was to depend on an id that never was."""

    def __init__(self, parent_ids: Sequence[int]) -> None:
        ids = ", ".join(str(i) for i in parent_ids)
        super().__init__(f"cannot depend on {ids}: no such task; depend on the id that schedule() returned")
        self.parent_ids = tuple(parent_ids)


class UnregisteredKindError(SchedulerError):
    """A kind was used that this Scheduler does not know."""


class UnknownWorkerError(SchedulerError):
    """No worker has this id."""

    def __init__(self, worker: int) -> None:
        super().__init__(f"there is no worker {worker}; `schedctl workers` shows the ones there are")
        self.worker = worker


class UnknownScheduleError(SchedulerError):
    """No recurring schedule has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule named {name!r}; `schedctl cron list` shows the ones there are")
        self.name = name


class CycleError(SchedulerError):
    """Edges would close a cycle. ``path`` names the tasks on it, first and last the same."""

    def __init__(self, path: Sequence[object]) -> None:
        super().__init__("dependency cycle: " + " -> ".join(str(p) for p in path))
        self.path = tuple(path)


class DuplicateKeyError(SchedulerError):
    """Another task of the kind holds the key. ``existing_id`` is its id."""

    def __init__(self, kind: str, key: str, existing_id: int) -> None:
        super().__init__(f"key {key!r} of kind {kind} is held by task {existing_id}")
        self.kind = kind
        self.key = key
        self.existing_id = existing_id


class InvalidTransitionError(SchedulerError):
    """The task's state does not allow this operation."""


class InvalidScheduleError(SchedulerError):
    """A cron expression, interval, zone or time that cannot work."""


class PayloadError(SchedulerError):
    """A payload (or option of a task) that does not fit."""


class ConfigError(SchedulerError):
    """A setting that is unknown, unreadable or does not fit."""


class StoreUnavailableError(SchedulerError):
    """The database cannot be reached or used; the text says why and what to do. ``heals``: waiting may help."""

    heals = False


class DependencyFailed(SchedulerError):
    """Recorded on a task that ended because of its parents; the text names them."""


class PermanentError(SchedulerError):
    """Raised by a handler: the task ends without further attempts.

    ``status`` is the status code of an upstream system, where there is one.
    """

    def __init__(self, *args: object, status: int | None = None) -> None:
        super().__init__(*args)
        self.status = status


class TaskTimeout(SchedulerError):
    """An attempt ran longer than its timeout."""


class ProcessDied(SchedulerError):
    """The child process of an attempt, or of a ``ctx.cpu`` call, ended by itself or was killed; the text says how."""


class TaskFailedError(SchedulerError):
    """``result()`` of a task that ended failed, dead or skipped."""

    def __init__(self, task_id: int, error: str | None) -> None:
        super().__init__(f"task {task_id} failed: {error or 'no error recorded'}")
        self.task_id = task_id
        self.error = error


class TaskCancelledError(SchedulerError):
    """``result()`` of a task that was cancelled."""

    def __init__(self, task_id: int) -> None:
        super().__init__(f"task {task_id} was cancelled")
        self.task_id = task_id


class ResultExpiredError(SchedulerError):
    """The task succeeded, but its result is older than its lifetime and is gone."""

    def __init__(self, task_id: int) -> None:
        super().__init__(f"the result of task {task_id} has expired")
        self.task_id = task_id


class LeaseLost(SchedulerError):
    """The worker no longer holds this attempt; whatever it does now is recorded nowhere."""


class DeterminismError(SchedulerError):
    """What a handler did does not fit what earlier attempts recorded (``determinism="strict"``)."""


class TransactionTooLong(SchedulerError):
    """A ``ctx.transaction()`` held SQLite's write lock for too long and was rolled back."""


class Retry(Exception):
    """Raised by a handler: a counted attempt with its own wait.

    ``after``: seconds or timedelta until the next attempt (None: as the retry policy says).
    """

    def __init__(self, *, after: object = None, reason: str | None = None, status: int | None = None) -> None:
        super().__init__(reason or "retry requested")
        self.after = after
        self.reason = reason
        self.status = status


class Snooze(Exception):
    """Raised by a handler: put the task back for ``seconds`` without using an attempt."""

    def __init__(self, seconds: object) -> None:
        super().__init__(f"snoozed for {seconds}")
        self.seconds = seconds


class Interrupted(BaseException):
    """What unwinds a handler from inside. Never caught by ``except Exception``."""


class Cancelled(Interrupted):
    """The task was cancelled; the handler should clean up and end."""


class Collided(Interrupted):
    """A ``ctx.transaction()`` and another transaction were in each other's way, or its connection had been cut before
    it began: it is tried again, as no attempt."""


class Suspended(Interrupted):
    """The task waits for a time, an event or another task; its handler starts again then and skips what is recorded."""

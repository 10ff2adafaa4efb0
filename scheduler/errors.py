"""The errors of schedd. Every error that a caller can meet derives from :class:`SchedulerError`.

:class:`Interrupted` and its children unwind a handler from inside. They derive from ``BaseException``, so that a
handler's ``except Exception`` does not swallow them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

E = TypeVar("E", bound="SchedulerError")


class SchedulerError(Exception):
    """Base of every error that schedd raises."""


def shown_as(public: type[SchedulerError]) -> Callable[[type[E]], type[E]]:
    """Have a kind of an error that only schedd itself tells apart carry the public name, in tracebacks and in texts."""

    def rename(kind: type[E]) -> type[E]:
        kind.__module__, kind.__qualname__, kind.__name__ = public.__module__, public.__qualname__, public.__name__
        return kind

    return rename


def _number(given: int) -> str:
    """Python refuses to write out an integer of thousands of digits."""
    return str(given) if abs(given) < 2**128 else "of more than 38 digits"


class UnknownTaskError(SchedulerError):
    """No task has this id. ``gone``: one had it, and a failover or a restore has lost it."""

    def __init__(self, task_id: int, gone: str | None = None, *, lost: bool = True) -> None:
        text = f"there is no task {_number(task_id)}"
        if gone is not None:
            text = f"task {task_id} is gone: {gone}" if lost else f"{text} any more: {gone}"
        super().__init__(text)
        self.task_id = task_id
        self.gone = gone is not None and lost


class UnknownDependencyError(SchedulerError):
    """A dependency names an id that no task ever had."""

    def __init__(self, parent_ids: Sequence[int]) -> None:
        ids = ", ".join(map(_number, parent_ids))
        super().__init__(f"cannot depend on {ids}: no such task; depend on the id that schedule() returned")
        self.parent_ids = tuple(parent_ids)


class UnregisteredKindError(SchedulerError):
    """A kind that is not registered with this Scheduler."""


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


class UnknownBulkError(SchedulerError):
    """No change of many tasks has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no bulk named {name!r:.80}; `schedctl bulk list` shows the ones there are")
        self.name = name


class CycleError(SchedulerError):
    """An edge that would close a cycle. ``path`` names the tasks on it; the first is also the last."""

    def __init__(self, path: Sequence[object]) -> None:
        super().__init__("dependency cycle: " + " -> ".join(str(p) for p in path))
        self.path = tuple(path)


class DuplicateKeyError(SchedulerError):
    """Another task of the kind holds the key, or has ``completed`` under it. ``existing_id`` is that task's id."""

    def __init__(self, kind: str, key: str, existing_id: int, *, completed: bool = False) -> None:
        holder = f"has been completed by task {existing_id}" if completed else f"is held by task {existing_id}"
        super().__init__(f"key {key!r} of kind {kind} {holder}")
        self.kind = kind
        self.key = key
        self.existing_id = existing_id
        self.completed = completed


class InvalidTransitionError(SchedulerError):
    """The task's state does not allow this operation."""


class InvalidScheduleError(SchedulerError):
    """A cron expression, interval, zone or time that is invalid or can never fire."""


class DuplicateScheduleError(InvalidScheduleError):
    """Another recurring schedule has this ``name``."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"schedule {name!r} {reason}")
        self.name = name


class PayloadError(SchedulerError):
    """A payload, or an option of a task, that is not valid."""


class ConfigError(SchedulerError):
    """A setting that is unknown, unreadable or not valid."""


class StoreUnavailableError(SchedulerError):
    """The database cannot be reached or used; the text says why and what to do. ``heals``: waiting may help."""

    heals = False


class StoreReplacedError(StoreUnavailableError):
    """The SQLite file that the URL names is not the one that was opened: it was deleted or replaced meanwhile."""


class DependencyFailed(SchedulerError):
    """Recorded on a task that ended because of its parents; the text names them."""


class PermanentError(SchedulerError):
    """Raised by a handler: the task ends without further attempts.

    ``status``: the status code of an upstream system, if there is one.
    """

    def __init__(self, *args: object, status: int | None = None) -> None:
        super().__init__(*args)
        self.status = status


class TaskTimeout(SchedulerError):
    """An attempt ran longer than its timeout."""


class ProcessDied(SchedulerError):
    """The child process of an attempt, or of a ``ctx.cpu`` call, ended by itself or was killed; the text says how."""


class TaskFailedError(SchedulerError):
    """``result()`` of a task that ended failed, dead or skipped. ``traceback``: the handler's, which is a note, too."""

    def __init__(self, task_id: int, error: str | None, traceback: str | None = None) -> None:
        super().__init__(f"task {task_id} failed: {error or 'no error recorded'}")
        self.task_id = task_id
        self.error = error
        self.traceback = traceback
        if traceback is not None:
            self.add_note(f"In its handler:\n{traceback}")


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
    """The worker no longer holds this attempt; nothing that it does now is recorded."""


class DeterminismError(SchedulerError):
    """A handler's durable calls differ from those that earlier attempts recorded (``determinism="strict"``)."""


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
    """Unwinds a handler from inside. ``except Exception`` never catches it."""


class Cancelled(Interrupted):
    """The task was cancelled; the handler should clean up and end."""


class Collided(Interrupted):
    """A ``ctx.transaction()`` collided with another one, or lost its connection before it began.

    It is tried again without using an attempt."""


class Suspended(Interrupted):
    """The task waits for a time, an event or another task.

    Its handler starts again then, and skips the steps that are recorded.
    """

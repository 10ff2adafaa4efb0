"""schedd: durable tasks with dependencies, priorities, retries and recurrences. These are the public names.

They are loaded when first used, so that importing the package stays cheap and does nothing else.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # of typing, whose import would be most of the time until a command can take an interrupt
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_ABOVE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not os.path.isdir(os.path.join(_ABOVE, "scheduler", "tasks")) and os.path.isfile(f"{_ABOVE}/tasks/__init__.py"):
    __path__.append(_ABOVE)  # a checkout that is not installed: tasks/ and migrations/ lie beside the package

if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "base", "definition.py")):
    import warnings  # another package has files in this directory

    from schedd import PYPI

    warnings.warn(PYPI, RuntimeWarning, stacklevel=2)

_WHERE = {
    "Stats": "client.stats",
    "KindStats": "client.stats",
    "Spread": "client.stats",
    "TaskInfo": "client.info",
    "ScheduleInfo": "client.info",
    "AttemptInfo": "client.info",
    "AsyncContext": "engine.execution.context",
    "Context": "engine.execution.context",
    "CycleError": "errors",
    "ConfigError": "errors",
    "DeadLetter": "model.outcome",
    "Debounce": "model.unique",
    "Unique": "model.unique",
    "DependencyFailed": "errors",
    "DuplicateKeyError": "errors",
    "DuplicateScheduleError": "errors",
    "Envelope": "model.envelope",
    "InvalidScheduleError": "errors",
    "InvalidTransitionError": "errors",
    "LeaseLost": "errors",
    "PayloadError": "errors",
    "PermanentError": "errors",
    "Priority": "model.priority",
    "ProcessDied": "errors",
    "Resources": "model.resources",
    "QueueInfo": "client.queues",
    "ResultExpiredError": "errors",
    "Retry": "errors",
    "RetryPolicy": "model.retry",
    "Scheduler": "app",
    "SchedulerError": "errors",
    "Secret": "model.secrets",
    "Snooze": "errors",
    "StoreUnavailableError": "errors",
    "Task": "model.task",
    "Batch": "client.batch",
    "TaskBuilder": "client.builder",
    "TaskPage": "client.info",
    "TaskCancelledError": "errors",
    "TaskFailedError": "errors",
    "TaskId": "model.spec",
    "TaskState": "model.state",
    "TaskTimeout": "errors",
    "TransactionTooLong": "errors",
    "UnknownDependencyError": "errors",
    "UnknownBulkError": "errors",
    "UnknownScheduleError": "errors",
    "UnknownTaskError": "errors",
    "UnregisteredKindError": "errors",
    "Weekday": "model.recurrence",
    "backup_sqlite": "store.db.sqlite_copy",
    "task": "model.task",
}
__all__ = [*_WHERE]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'scheduler' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"scheduler.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_WHERE, *(name for name in globals() if name.startswith("__"))])


if TYPE_CHECKING:
    from scheduler.app import Scheduler as Scheduler
    from scheduler.client.batch import Batch as Batch
    from scheduler.client.builder import TaskBuilder as TaskBuilder
    from scheduler.client.info import AttemptInfo as AttemptInfo
    from scheduler.client.info import ScheduleInfo as ScheduleInfo
    from scheduler.client.info import TaskInfo as TaskInfo
    from scheduler.client.info import TaskPage as TaskPage
    from scheduler.client.queues import QueueInfo as QueueInfo
    from scheduler.client.stats import KindStats as KindStats
    from scheduler.client.stats import Spread as Spread
    from scheduler.client.stats import Stats as Stats
    from scheduler.engine.execution.context import AsyncContext as AsyncContext
    from scheduler.engine.execution.context import Context as Context
    from scheduler.errors import ConfigError as ConfigError
    from scheduler.errors import CycleError as CycleError
    from scheduler.errors import DependencyFailed as DependencyFailed
    from scheduler.errors import DuplicateKeyError as DuplicateKeyError
    from scheduler.errors import DuplicateScheduleError as DuplicateScheduleError
    from scheduler.errors import InvalidScheduleError as InvalidScheduleError
    from scheduler.errors import InvalidTransitionError as InvalidTransitionError
    from scheduler.errors import LeaseLost as LeaseLost
    from scheduler.errors import PayloadError as PayloadError
    from scheduler.errors import PermanentError as PermanentError
    from scheduler.errors import ProcessDied as ProcessDied
    from scheduler.errors import ResultExpiredError as ResultExpiredError
    from scheduler.errors import Retry as Retry
    from scheduler.errors import SchedulerError as SchedulerError
    from scheduler.errors import Snooze as Snooze
    from scheduler.errors import StoreUnavailableError as StoreUnavailableError
    from scheduler.errors import TaskCancelledError as TaskCancelledError
    from scheduler.errors import TaskFailedError as TaskFailedError
    from scheduler.errors import TaskTimeout as TaskTimeout
    from scheduler.errors import TransactionTooLong as TransactionTooLong
    from scheduler.errors import UnknownBulkError as UnknownBulkError
    from scheduler.errors import UnknownDependencyError as UnknownDependencyError
    from scheduler.errors import UnknownScheduleError as UnknownScheduleError
    from scheduler.errors import UnknownTaskError as UnknownTaskError
    from scheduler.errors import UnregisteredKindError as UnregisteredKindError
    from scheduler.model.envelope import Envelope as Envelope
    from scheduler.model.outcome import DeadLetter as DeadLetter
    from scheduler.model.priority import Priority as Priority
    from scheduler.model.recurrence import Weekday as Weekday
    from scheduler.model.retry import RetryPolicy as RetryPolicy
    from scheduler.model.secrets import Secret as Secret
    from scheduler.model.spec import TaskId as TaskId
    from scheduler.model.state import TaskState as TaskState
    from scheduler.model.task import Task as Task
    from scheduler.model.task import task as task
    from scheduler.model.unique import Debounce as Debounce
    from scheduler.model.unique import Unique as Unique
    from scheduler.store.db.sqlite_copy import backup_sqlite as backup_sqlite

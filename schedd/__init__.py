"""The public names of schedd, under the name that one installs: ``from schedd import Scheduler, task``.

They are those of the package ``scheduler``, loaded when first used. Where another ``scheduler`` hides that package,
their first use says so.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # of typing: see scheduler/__init__.py
if TYPE_CHECKING:
    from typing import Any

PYPI = (
    "the package named scheduler from PyPI has taken the place of schedd's own package of that name: both cannot live "
    "in one environment. Run: pip uninstall scheduler; pip install --force-reinstall --no-deps schedd"
)


def hidden() -> str | None:
    """Where another ``scheduler`` is imported instead of schedd's own, what to do about it, in a line."""
    import scheduler

    if hasattr(scheduler, "_WHERE"):
        return None
    file = getattr(scheduler, "__file__", None)
    if file is not None and os.path.exists(os.path.join(os.path.dirname(file), "interrupts.py")):
        return PYPI
    place = file or ", ".join(getattr(scheduler, "__path__", ())) or "a module named scheduler"
    return f"{place} hides the package scheduler, which schedd needs: give it another name"


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__" and name != "__version__":
        raise AttributeError(f"module 'schedd' has no attribute {name!r}")
    text = hidden()
    if text is not None:
        raise ImportError(text)
    import scheduler

    if name not in (*scheduler.__all__, "__all__", "__version__"):
        raise AttributeError(f"module 'schedd' has no attribute {name!r}")
    return getattr(scheduler, name)


def __dir__() -> list[str]:
    return dir(sys.modules["scheduler"]) if hidden() is None else []


if TYPE_CHECKING:
    from scheduler import AsyncContext as AsyncContext
    from scheduler import AttemptInfo as AttemptInfo
    from scheduler import Batch as Batch
    from scheduler import ConfigError as ConfigError
    from scheduler import Context as Context
    from scheduler import CycleError as CycleError
    from scheduler import DeadLetter as DeadLetter
    from scheduler import Debounce as Debounce
    from scheduler import DependencyFailed as DependencyFailed
    from scheduler import DuplicateKeyError as DuplicateKeyError
    from scheduler import DuplicateScheduleError as DuplicateScheduleError
    from scheduler import Envelope as Envelope
    from scheduler import InvalidScheduleError as InvalidScheduleError
    from scheduler import InvalidTransitionError as InvalidTransitionError
    from scheduler import KindStats as KindStats
    from scheduler import LeaseLost as LeaseLost
    from scheduler import PayloadError as PayloadError
    from scheduler import PermanentError as PermanentError
    from scheduler import Priority as Priority
    from scheduler import ProcessDied as ProcessDied
    from scheduler import QueueInfo as QueueInfo
    from scheduler import Resources as Resources
    from scheduler import ResultExpiredError as ResultExpiredError
    from scheduler import Retry as Retry
    from scheduler import RetryPolicy as RetryPolicy
    from scheduler import ScheduleInfo as ScheduleInfo
    from scheduler import Scheduler as Scheduler
    from scheduler import SchedulerError as SchedulerError
    from scheduler import Secret as Secret
    from scheduler import Snooze as Snooze
    from scheduler import Spread as Spread
    from scheduler import Stats as Stats
    from scheduler import StoreUnavailableError as StoreUnavailableError
    from scheduler import Task as Task
    from scheduler import TaskBuilder as TaskBuilder
    from scheduler import TaskCancelledError as TaskCancelledError
    from scheduler import TaskFailedError as TaskFailedError
    from scheduler import TaskId as TaskId
    from scheduler import TaskInfo as TaskInfo
    from scheduler import TaskPage as TaskPage
    from scheduler import TaskState as TaskState
    from scheduler import TaskTimeout as TaskTimeout
    from scheduler import TransactionTooLong as TransactionTooLong
    from scheduler import Unique as Unique
    from scheduler import UnknownBulkError as UnknownBulkError
    from scheduler import UnknownDependencyError as UnknownDependencyError
    from scheduler import UnknownScheduleError as UnknownScheduleError
    from scheduler import UnknownTaskError as UnknownTaskError
    from scheduler import UnregisteredKindError as UnregisteredKindError
    from scheduler import Weekday as Weekday
    from scheduler import backup_sqlite as backup_sqlite
    from scheduler import task as task

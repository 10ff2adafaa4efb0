"""Django's tasks (``django.tasks``, or its backport ``django-tasks``) kept and run by schedd.

``INSTALLED_APPS`` takes ``"scheduler.django"``; ``TASKS`` takes ``"scheduler.django.TaskBackend"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.django.backend import TaskBackend as TaskBackend
    from scheduler.django.declaring import Task as Task
    from scheduler.django.declaring import task as task
    from scheduler.django.running import TaskContext as TaskContext
    from scheduler.django.stores import get_jobs as get_jobs

__all__ = ["Task", "TaskBackend", "TaskContext", "get_jobs", "task"]
_PLACES = {
    "Task": "declaring",
    "TaskBackend": "backend",
    "TaskContext": "running",
    "get_jobs": "stores",
    "task": "declaring",
}


def __getattr__(name: str) -> Any:
    """What reads Django's settings is imported when it is asked for: apps are listed before these are read."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

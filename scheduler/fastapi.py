"""Schedulers in programs of FastAPI: ``jobs: Jobs`` and ``background: Background`` as parameters of an endpoint."""

from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from scheduler.app import Scheduler
from scheduler.asgi import ProgressResponse, lifespan, scheduler_of, shown
from scheduler.model.spec import TaskId


def get_jobs(connection: HTTPConnection) -> Scheduler:
    """The Scheduler of the app; a test replaces it in ``app.dependency_overrides[get_jobs]``. Raises ConfigError."""
    return scheduler_of(connection)


Jobs = Annotated[Scheduler, Depends(get_jobs)]


class BackgroundTasks:
    """Takes the place of FastAPI's own: a task that was added is stored, and outlives this process."""

    def __init__(self, jobs: Scheduler) -> None:
        self._jobs = jobs

    def add_task(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskId[Any]:
        """Store a call of a @task function, or a Task instance; it is stored when this returns.

        That waits for a commit: in an ``async def`` endpoint take :meth:`add_task_async`. Raises UnregisteredKindError,
        PayloadError, StoreUnavailableError.
        """
        return self._jobs.task(task, *args, **kwargs).schedule()

    async def add_task_async(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskId[Any]:
        """:meth:`add_task` without blocking the event loop."""
        stored: TaskId[Any] = await self._jobs.task(task, *args, **kwargs).schedule_async()
        return stored


def get_background(jobs: Jobs) -> BackgroundTasks:
    """The durable background tasks of a request."""
    return BackgroundTasks(jobs)


Background = Annotated[BackgroundTasks, Depends(get_background)]

__all__ = [
    "Background",
    "BackgroundTasks",
    "Jobs",
    "ProgressResponse",
    "get_background",
    "get_jobs",
    "lifespan",
    "shown",
]

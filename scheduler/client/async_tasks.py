"""AsyncTaskOperations, the awaitable part of the Scheduler, for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from datetime import timedelta
from itertools import islice
from typing import Any, Unpack, overload

from scheduler.client.info import TaskInfo
from scheduler.client.steering import SteeringOperations
from scheduler.client.tasks import TaskOperations
from scheduler.client.threads import in_thread
from scheduler.client.waiting import Wait
from scheduler.errors import UnknownTaskError
from scheduler.model.spec import TaskId
from scheduler.model.state import StateName, TaskState
from scheduler.model.times import SECOND, span_us
from scheduler.model.typed import R
from scheduler.operations.filter import Conditions
from scheduler.store.read.tasks import TaskRecord

EVERY = 0.5  # seconds between looks


PAGE = 100  # tasks that one call in a thread takes


class Progress:
    """``jobs.progress_async(id)``: awaited, (percent, message); iterated over, the task at each change, to its end."""

    def __init__(self, jobs: TaskOperations, task_id: int, every: float | timedelta | str = EVERY) -> None:
        self._jobs, self._task_id = jobs, task_id
        self._every = max(0.01, span_us(every, "every", positive=True) / SECOND)
        self._last: TaskInfo | None = None

    def __await__(self) -> Generator[Any, None, tuple[float | None, str | None]]:
        return self._now().__await__()

    async def _now(self) -> tuple[float | None, str | None]:
        return await self._jobs.threads.call(self._jobs.progress, self._task_id)

    def __aiter__(self) -> AsyncIterator[TaskInfo]:
        return self

    async def __anext__(self) -> TaskInfo:
        while True:
            found = await self.changed(3600.0)
            if found is not None:
                return found

    async def changed(self, within: float) -> TaskInfo | None:
        """The task once it has changed; None if it has not within so many seconds.

        Raises StopAsyncIteration once its end was told, UnknownTaskError, StoreUnavailableError.
        """
        if self._last is not None and self._last.state.terminal:
            raise StopAsyncIteration
        until = asyncio.get_running_loop().time() + within
        while True:
            if self._last is not None:
                await asyncio.sleep(self._every)
            task: TaskInfo = await self._jobs.threads.call(self._jobs.get_task, self._task_id)
            if self._last is None or _shown(task) != _shown(self._last):
                self._last = task
                return task
            if asyncio.get_running_loop().time() >= until:
                return None


def _shown(task: TaskInfo) -> tuple[object, ...]:
    return task.state, task.attempt, task.progress, task.progress_message


class IterArgs(Conditions, total=False):
    """What ``iter_tasks`` takes beside the states."""

    page: int


class AsyncTaskOperations(SteeringOperations):
    """Each method as its namesake, awaited: what waits for the database has a thread of the Scheduler's meanwhile.

    If the caller is cancelled meanwhile, a change that has begun may be made all the same.
    """

    get_task_async = in_thread(TaskOperations.get_task)
    list_tasks_async = in_thread(TaskOperations.list_tasks)
    cancel_async = cancel_task_async = in_thread(TaskOperations.cancel_task)
    uncancel_async = uncancel_task_async = in_thread(SteeringOperations.uncancel_task)
    retry_async = retry_task_async = in_thread(TaskOperations.retry_task)
    rerun_async = in_thread(SteeringOperations.rerun)
    copy_async = copy_task_async = in_thread(SteeringOperations.copy_task)
    update_async = update_task_async = in_thread(SteeringOperations.update_task)
    cancel_tasks_async = in_thread(SteeringOperations.cancel_tasks)
    retry_tasks_async = in_thread(SteeringOperations.retry_tasks)
    rerun_tasks_async = in_thread(SteeringOperations.rerun_tasks)
    update_tasks_async = in_thread(SteeringOperations.update_tasks)
    emit_event_async = in_thread(TaskOperations.emit_event)
    add_dependency_async = in_thread(TaskOperations.add_dependency)
    set_retry_policy_async = in_thread(TaskOperations.set_retry_policy)
    retry_failed_async = in_thread(TaskOperations.retry_failed)
    cleanup_tasks_async = in_thread(TaskOperations.cleanup_tasks)
    get_attempts_async = in_thread(TaskOperations.get_attempts)
    logs_async = in_thread(TaskOperations.logs)
    get_task_status_async = in_thread(TaskOperations.get_task_status)
    get_task_dependencies_async = in_thread(TaskOperations.get_task_dependencies)
    get_dependents_async = in_thread(TaskOperations.get_dependents)
    get_retry_count_async = in_thread(TaskOperations.get_retry_count)
    get_last_error_async = in_thread(TaskOperations.get_last_error)
    check_for_cycles_async = in_thread(TaskOperations.check_for_cycles)
    cleanup_completed_tasks_async = in_thread(TaskOperations.cleanup_completed_tasks)
    cleanup_events_async = in_thread(TaskOperations.cleanup_events)

    async def iter_tasks_async(
        self, status: StateName | Iterable[StateName | TaskState] | TaskState | None = None, **filters: Unpack[IterArgs]
    ) -> AsyncIterator[TaskInfo]:
        """:meth:`iter_tasks` without blocking the event loop: ``async for task in jobs.iter_tasks_async("Failed")``."""
        tasks = self.iter_tasks(status, **filters)
        page: list[TaskInfo] = []
        while True:
            page = await self.threads.call(lambda: list(islice(tasks, PAGE)))
            for task in page:
                yield task
            if len(page) < PAGE:
                return

    @overload
    async def result_async(self, task_id: TaskId[R], timeout: float | timedelta | str | None = None) -> R: ...
    @overload
    async def result_async(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any: ...
    async def result_async(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any:
        """:meth:`result` without blocking the event loop; any number of callers may wait at once."""
        wait = Wait(self.database, [task_id], timeout)
        task: TaskRecord | None = None
        try:
            task = (await self._awaited(wait))[task_id]
        except UnknownTaskError as error:
            if error.gone:
                raise
        return await self.threads.call(self._outcome, task_id, task)

    def progress_async(self, task_id: int, every: float | timedelta | str = EVERY) -> Progress:
        """How far a task is: ``await`` gives (percent, message), as :meth:`progress` does; ``async for`` the task now,
        at each change of its state and its progress, and at its end::

            async for task in jobs.progress_async(task_id):
                print(task.state, task.progress, task.progress_message)

        ``every``: seconds between looks. Raises UnknownTaskError, StoreUnavailableError when it is used.
        """
        return Progress(self, task_id, every)

    async def wait_async(
        self, ids: int | Iterable[int], timeout: float | timedelta | str | None = None, first: bool = False
    ) -> dict[int, TaskInfo]:
        """:meth:`wait` without blocking the event loop; any number of callers may wait at once."""
        found = await self._awaited(Wait(self.database, ids, timeout, first))
        return {task_id: self._info(record) for task_id, record in found.items()}

    async def _awaited(self, wait: Wait) -> dict[int, TaskRecord]:
        while not await self.threads.call(wait.look_in_time):  # noqa: ASYNC110
            await asyncio.sleep(wait.pause())  # no thread waits: those are for the looks
        return wait.ended()

"""Watching one task: how far it is, until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from scheduler.model.times import SECOND, span_us

if TYPE_CHECKING:
    from scheduler.client.info import TaskInfo
    from scheduler.client.tasks import TaskOperations

EVERY = 0.5  # seconds between looks


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

"""Schedulers in programs of Starlette: their lifespan, and the progress of a task as server-sent events.

``scheduler.fastapi`` adds what FastAPI injects. Both need Starlette, which no other part but the console does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, StreamingResponse

from scheduler.errors import ConfigError, UnknownTaskError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from scheduler.app import Scheduler
    from scheduler.client.async_tasks import Progress
    from scheduler.client.info import TaskInfo

STATE = "schedd"  # the name in request.state
PING = 15.0  # seconds without an event, after which a comment keeps proxies from closing the stream

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class MountedApp(Protocol):
    """The app of a mounted console, whose own lifespan nobody calls."""

    def close(self) -> None: ...


def lifespan(
    jobs: Scheduler, *, work: bool = True, console: MountedApp | None = None, then: Lifespan | None = None
) -> Lifespan:
    """The lifespan of an app: ``FastAPI(lifespan=lifespan(jobs))``, ``Starlette(lifespan=lifespan(jobs))``.

    ``work``: run tasks in this process; False: only store them, for daemons. A stop waits for what runs, up to the
    Scheduler's ``drain``. ``console``: a mounted one, which is closed before. ``then``: the app's own lifespan, entered
    after the start, and left before the stop. The app's requests have the Scheduler as ``request.state.schedd``.
    """

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[dict[str, Any]]:
        # The loop's own threads: those of the Scheduler end with it.
        await anyio.to_thread.run_sync(jobs.start if work else jobs.database.open)
        try:
            if then is None:
                yield {STATE: jobs}
            else:
                async with then(app) as state:
                    yield {STATE: jobs, **(state or {})}
        finally:
            with anyio.CancelScope(shield=True):
                if console is not None:
                    await anyio.to_thread.run_sync(console.close)
                await anyio.to_thread.run_sync(jobs.close)

    return running


def scheduler_of(connection: HTTPConnection) -> Scheduler:
    """The Scheduler of the app that got this request. Raises ConfigError."""
    found: Scheduler | None = getattr(connection.state, STATE, None)
    if found is None:
        raise ConfigError(
            "this app has no Scheduler: make it with lifespan=lifespan(jobs), and have its lifespan run; a TestClient "
            "does that in  with TestClient(app) as client:"
        )
    return found


def shown(task: TaskInfo) -> dict[str, Any]:
    """The text of an event about a task. Its error and its result are not in it: a page's visitor may not see them."""
    return {
        "id": task.id,
        "kind": task.kind,
        "state": str(task.state),
        "status": task.state.simple,
        "attempt": task.attempt,
        "progress": task.progress,
        "message": task.progress_message,
    }


class ProgressResponse(StreamingResponse):
    """A task's progress and its end as server-sent events; 404 where there is no such task.

    Each change is an event ``progress``; the last one is ``end``, and the stream ends. Their data is JSON, made by
    ``data(task)``, :func:`shown` by default. ``every``: seconds between looks at the task.
    """

    def __init__(
        self,
        jobs: Scheduler,
        task_id: int,
        *,
        every: float | timedelta | str = 0.5,
        data: Callable[[TaskInfo], Any] = shown,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._progress: Progress = jobs.progress_async(task_id, every)
        self._data = data
        self._first: TaskInfo | None = None
        # Nginx keeps a stream back until it has a page of it, unless it is told.
        usual = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(self._events(), headers={**usual, **(headers or {})}, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._first = await self._progress.changed(0)
        except UnknownTaskError as error:
            await PlainTextResponse(f"{error}\n", 404)(scope, receive, send)
            return
        await super().__call__(scope, receive, send)

    async def _events(self) -> AsyncIterator[str]:
        task = self._first
        while True:
            if task is None:
                yield ": still there\n\n"
            else:
                name = "end" if task.state.terminal else "progress"
                yield f"event: {name}\ndata: {json.dumps(self._data(task))}\n\n"
                if task.state.terminal:
                    return
            task = await self._progress.changed(PING)


__all__ = ["ProgressResponse", "lifespan", "scheduler_of", "shown"]

"""The store that tasks of Celery's style go to, and the results in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from scheduler.app import Scheduler
from scheduler.errors import ConfigError, TaskCancelledError, TaskFailedError
from scheduler.model.spec import TaskId
from scheduler.model.state import TaskState
from scheduler.model.task import Task as TaskType
from scheduler.model.task import TaskFunction

_LOCK = threading.RLock()
_shared: dict[str, TaskFunction[..., Any]] = {}  # by name: a module that is imported again brings its tasks anew
_made: list[App] = []
_STATES = {
    TaskState.RUNNING: "STARTED",
    TaskState.RETRY: "RETRY",
    TaskState.SUCCESS: "SUCCESS",
    TaskState.FAILED: "FAILURE",
    TaskState.DEAD: "FAILURE",
    TaskState.SKIPPED: "FAILURE",
    TaskState.CANCELLED: "REVOKED",
}


class Join(TaskType, kind="celery.join"):
    """Gathers the results of a group, in its order, for the task that follows it."""

    parts: int

    def run(self, ctx: Any) -> list[Any]:
        found = ctx._by_name(ctx.results())
        return [found[str(part)] for part in range(self.parts)]


class App:
    """A Scheduler, made when it is first used, and the tasks that are registered with it.

    ``url``: of the store; without one the configuration file says it.
    """

    def __init__(self, main: str | None = None, url: str | None = None, scheduler: Scheduler | None = None) -> None:
        self.main = main
        self.tasks: dict[str, TaskFunction[..., Any]] = {}
        self._url = url
        self._scheduler: Scheduler | None = None
        _made.append(self)
        if scheduler is not None:
            self.use(scheduler)

    @property
    def scheduler(self) -> Scheduler:
        """The Scheduler that stores its tasks, and runs them within ``with app:``. Raises ConfigError."""
        with _LOCK:
            if self._scheduler is None:
                self.use(Scheduler(self._url) if self._url is not None else _configured())
            assert self._scheduler is not None
            return self._scheduler

    def use(self, scheduler: Scheduler) -> None:
        """Store its tasks with this Scheduler. Raises ConfigError."""
        with _LOCK:
            before = self._scheduler
            if before is not scheduler:
                self._scheduler = scheduler
                try:
                    self._register_all()
                except BaseException:  # else the next use would go on with a part of the tasks
                    self._scheduler = before
                    raise

    def _register_all(self) -> None:
        known: list[Any] = [Join, *_shared.values(), *self.tasks.values()]
        for task in known:
            self.scheduler.registry.add(task)


def _configured() -> Scheduler:
    from scheduler.config.load import load
    from scheduler.config.task_modules import make_scheduler

    return make_scheduler(load(), Scheduler)


def current_app() -> App:
    """The app that was made last; before any, one whose store the configuration file says."""
    return _made[-1] if _made else App()


def share(task: TaskFunction[..., Any]) -> None:
    """Let each app have this task."""
    _shared[task.task_options.kind] = task


def find_task(app: App, name: Any) -> TaskFunction[..., Any]:
    """The task of this name. Raises ConfigError."""
    known = _shared | app.tasks
    if name not in known:
        raise ConfigError(f"there is no task {name!r:.80}; there are {', '.join(sorted(known)) or 'none'}")
    return known[name]


class AsyncResult:
    """A stored task, by its id."""

    def __init__(self, id: int | str, app: App | None = None) -> None:
        if not isinstance(id, int) and not (isinstance(id, str) and id.isascii() and id.isdigit()):
            raise ConfigError(f"the id of a task is a number such as 42, not {id!r:.80}")
        self._id = id if isinstance(id, TaskId) else int(id)
        self._app = app

    @property
    def id(self) -> str:
        return str(int(self._id))

    task_id = id

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def _jobs(self) -> Scheduler:
        return (self._app or current_app()).scheduler

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED. Raises UnknownTaskError."""
        return _STATES.get(self._jobs.get_task_status(self._id), "PENDING")

    status = state

    def ready(self) -> bool:
        """Whether it has ended. Raises UnknownTaskError."""
        return self._jobs.get_task_status(self._id).terminal

    def successful(self) -> bool:
        """Whether it has succeeded. Raises UnknownTaskError."""
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        """Whether it has failed for good. Raises UnknownTaskError."""
        return self.state == "FAILURE"

    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:
        """Wait for its end, and return its result. ``propagate=False``: return the error, too.

        Raises TaskFailedError, TaskCancelledError, TimeoutError, as ``Scheduler.result`` does; ConfigError in a task.
        """
        try:
            return self._jobs.result(self._id, timeout)
        except (TaskFailedError, TaskCancelledError) as error:
            if propagate:
                raise
            return error

    @property
    def result(self) -> Any:
        """Its result, or its error; None before it has ended."""
        return self.get(0, propagate=False) if self.ready() else None

    def revoke(self, terminate: bool = False) -> None:
        """Cancel it. A run that is under way is asked to end, whether ``terminate`` is set or not."""
        self._jobs.cancel_task(self._id)


class GroupResult(Sequence[AsyncResult]):
    """The results of a group, in its order."""

    def __init__(self, results: Sequence[AsyncResult]) -> None:
        self.results = list(results)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[AsyncResult]:
        return iter(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    def get(self, timeout: float | None = None, propagate: bool = True) -> list[Any]:
        """Wait for all, and return their results. Raises what :meth:`AsyncResult.get` raises."""
        if self.results:
            self.results[0]._jobs.wait([one._id for one in self.results], timeout)
        return [one.get(None, propagate) for one in self.results]

    def ready(self) -> bool:
        """Whether all have ended."""
        return all(one.ready() for one in self.results)

    def successful(self) -> bool:
        """Whether all have succeeded."""
        return all(one.successful() for one in self.results)

    def failed(self) -> bool:
        """Whether one has failed for good."""
        return any(one.failed() for one in self.results)

    def completed_count(self) -> int:
        """How many have succeeded."""
        return sum(one.successful() for one in self.results)

    def revoke(self, terminate: bool = False) -> None:
        """Cancel all."""
        for one in self.results:
            one.revoke(terminate)

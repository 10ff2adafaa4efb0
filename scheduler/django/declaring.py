"""Django's task with what schedd can do beside: retries, timeouts, keys, dependencies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from scheduler.django.standard import base, plain_task, task_backends
from scheduler.model.retry import RetryPolicy

OPTIONS = ("retry", "timeout", "key", "fairness_key", "depends_on", "queue")
_SAME: Any = object()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task(base.Task):
    """A task of Django's. ``retry``: a RetryPolicy, or how many attempts there are at most. ``timeout``: seconds or a
    timedelta that one attempt may take. ``key``: the name of this piece of work, which is stored once.
    ``fairness_key``: whose turn it takes, such as a customer. ``depends_on``: results or their ids, after whose success
    it runs. ``queue``: another word for ``queue_name``.
    """

    priority: int = base.DEFAULT_TASK_PRIORITY  # these have no defaults in Django 6.0
    queue_name: str = base.DEFAULT_TASK_QUEUE_NAME
    run_after: datetime | None = None
    retry: RetryPolicy | int | None = None
    timeout: float | timedelta | None = None
    key: str | None = None
    fairness_key: str | None = None
    depends_on: Any = ()
    queue: str | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            object.__setattr__(self, "queue_name", self.queue)
            object.__setattr__(self, "queue", None)
        base.Task.__post_init__(self)  # a class with slots is made twice: super() knows the first one

    def using(
        self,
        *,
        retry: RetryPolicy | int | None = _SAME,
        timeout: float | timedelta | None = _SAME,
        key: str | None = _SAME,
        fairness_key: str | None = _SAME,
        depends_on: Iterable[Any] | Any = _SAME,
        queue: str | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        run_after: Any = None,
        backend: str | None = None,
    ) -> Any:
        """The task with these in place of its own. Raises InvalidTask."""
        given = {
            "retry": retry,
            "timeout": timeout,
            "key": key,
            "fairness_key": fairness_key,
            "depends_on": depends_on,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not _SAME}
        standard = {"priority": priority, "run_after": run_after, "backend": backend, "queue_name": queue or queue_name}
        changes |= {name: value for name, value in standard.items() if value is not None}
        return dataclasses.replace(self, **changes)


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Django's ``@task``, which takes schedd's options, too, before Django 6.1 as well. Raises InvalidTask."""
    if function is None:
        return lambda found: task(found, **options)
    own = {name: options.pop(name) for name in OPTIONS if name in options}
    if not own:
        return plain_task(function, **options) if not options else plain_task(**options)(function)
    backend = options.pop("backend", base.DEFAULT_TASK_BACKEND_ALIAS)
    made: type[Any] = getattr(task_backends[backend], "task_class", base.Task)
    if not issubclass(made, Task):
        made = Task
    known = {"priority", "queue_name", "takes_context"}
    if not set(options) <= known:
        raise TypeError(f"task() got an unexpected keyword argument {min(set(options) - known)!r}")
    return made(func=function, backend=backend, **options, **own)

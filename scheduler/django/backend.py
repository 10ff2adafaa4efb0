"""TaskBackend: tasks of Django's, stored and run by schedd."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from scheduler.client.builder import TaskBuilder
from scheduler.django import handlers, options, results, running
from scheduler.django.declaring import Task
from scheduler.django.standard import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    base,
    normalize_json,
    task_enqueued,
)
from scheduler.django.stores import Store
from scheduler.errors import SchedulerError, UnknownDependencyError
from scheduler.model.lanes import MAX_RANK, check_fairness_key
from scheduler.model.names import check_name, check_text
from scheduler.model.priority import Priority
from scheduler.model.spec import MAX_KEY, TaskId
from scheduler.model.times import span_us

_LEVELS = {1: Priority.HIGH, 0: Priority.MEDIUM, -1: Priority.LOW}
_REGISTERING = threading.Lock()
LATER = "django-"  # begins the id of a result whose task is stored elsewhere, once Django commits


class TaskBackend(BaseTaskBackend):
    """Keeps tasks in Django's database (or in another one), where schedd's workers run them.

    ``OPTIONS``: ``database``, the alias of the database of Django that has the store; ``url``, of a store elsewhere;
    ``modules``, with tasks beside ``tasks`` of each app; sections of the configuration. ``QUEUES``: an empty list
    allows any name.
    """

    is_schedd = True
    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        known = (*options.OPTIONS, *(name for name, value in self.options.items() if isinstance(value, dict)))
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: there is no option {unknown[0]!r}; there are {', '.join(options.OPTIONS)}"
            )
        self.modules = list(self.options.get("modules", []))

    @property
    def store(self) -> Store:
        """Where its tasks are. Raises ImproperlyConfigured."""
        return Store(self.options)

    # the standard's

    def validate_task(self, task: Any) -> None:
        """Raises InvalidTask for what no worker could run."""
        super().validate_task(task)
        try:
            check_name("queue", task.queue_name)
            if getattr(task, "retry", None) is not None:
                running.policy(task.retry)
            if getattr(task, "timeout", None) is not None:
                span_us(task.timeout, "timeout", positive=True)
            if getattr(task, "key", None) is not None:
                check_text(task.key, "key", MAX_KEY)
            if getattr(task, "fairness_key", None) is not None:
                check_fairness_key(task.fairness_key)
            _ids(getattr(task, "depends_on", ()))
        except SchedulerError as error:
            raise InvalidTask(str(error)) from None

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store the task, in the transaction that Django has open. Raises InvalidTask, StoreUnavailableError."""
        self.validate_task(task)
        store = self.store
        result = results.new(self, task, "", normalize_json(list(args)), normalize_json(dict(kwargs)))
        builder = self._builder(store, task, result)
        if store.alias is None and store.in_transaction():
            self._store_later(store, builder, result)
        else:
            result = self._store(store, builder, result)
        task_enqueued.send(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result with this id, as it is now. Raises TaskResultDoesNotExist, StoreUnavailableError."""
        store = self.store
        number = self._number(store, result_id)
        with store.reading() as tx:
            return results.read(tx, number, self)

    def check(self, **given: Any) -> Iterable[checks.CheckMessage]:
        """What is wrong with the settings."""
        yield from super().check(**given)
        try:
            store = self.store
            _ = store.url
            handlers.import_all(handlers.own_modules(self.modules))
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id="schedd.E001")
            return
        except ImportError as error:
            yield checks.Error(f"a module of tasks cannot be imported: {error}", id="schedd.E002")
        from django.apps import apps

        if store.alias is not None and not apps.is_installed("scheduler.django"):
            yield checks.Warning(
                "schedd's tables are not made by `manage.py migrate`",
                hint='Add "scheduler.django" to INSTALLED_APPS.',
                id="schedd.W001",
            )

    # ours

    def result_in_attempt(self, ctx: Any, call: Any) -> Any:
        """The result that a handler hands to its function: read where there were attempts before."""
        if ctx.attempt > 1:
            try:
                return self.get_result(str(ctx.id))
            except (TaskResultDoesNotExist, SchedulerError):
                pass  # the run matters more than what is known of earlier ones
        path = call.path or ctx.kind
        payload = {"priority": call.priority, "run_after": call.run_after, "context": call.context}
        made = results.new(self, results.task_of(path, ctx.queue, payload, self), str(ctx.id), call.args, call.kwargs)
        object.__setattr__(made, "enqueued_at", ctx.created_at)
        return made

    def _builder(self, store: Store, task: Any, result: Any) -> TaskBuilder[Any]:
        function = task.func
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        payload: dict[str, Any] = {
            "args": result.args,
            "kwargs": result.kwargs,
            "backend": self.alias,
            "context": task.takes_context,
            "priority": task.priority,
            "run_after": None if run_after is None else run_after.isoformat(),
        }
        jobs = store.jobs
        if handlers.has_own_kind(function, handlers.own_modules(self.modules)):
            kind = running.path(function)
            with _REGISTERING:
                if jobs.registry.get(kind) is None:
                    jobs.register(handlers.make_handler(task, handlers.__name__))
        else:
            asynchronous = handlers.is_async(function)
            made = handlers.AnyAsyncCall if asynchronous else handlers.AnyCall
            kind = handlers.ANY_ASYNC if asynchronous else handlers.ANY
            jobs.register(made)
            payload["path"] = running.path(function)
        level, rank = _level(task.priority)
        builder = jobs.task(kind, payload).queue(task.queue_name).priority(level).rank(rank)
        if run_after is not None:
            builder.at(run_after)
        if getattr(task, "retry", None) is not None:
            builder.with_retry(running.policy(task.retry))
        if getattr(task, "timeout", None) is not None:
            builder.timeout(task.timeout)
        if getattr(task, "key", None) is not None:
            builder.key(task.key)
        if getattr(task, "fairness_key", None) is not None:
            builder.fairness_key(task.fairness_key)
        parents = [self._number(store, one) for one in _ids(getattr(task, "depends_on", ()))]
        return builder.depend_on(parents) if parents else builder

    def _store(self, store: Store, builder: TaskBuilder[Any], result: Any) -> Any:
        try:
            stored: TaskId = builder.schedule(connection=store.connection)
        except UnknownDependencyError as error:
            raise InvalidTask(str(error)) from None
        if not stored.created:
            return self.get_result(str(int(stored)))
        object.__setattr__(result, "id", str(int(stored)))
        object.__setattr__(result, "enqueued_at", datetime.now(UTC))
        return result

    def _store_later(self, store: Store, builder: TaskBuilder[Any], result: Any) -> None:
        """Elsewhere no transaction is Django's: the task is stored once that has committed, under a name made now."""
        name = LATER + secrets.token_hex(16)
        object.__setattr__(result, "id", name)
        object.__setattr__(result, "enqueued_at", datetime.now(UTC))
        builder.correlation(name)

        def store_now() -> None:
            stored: TaskId = builder.schedule()
            if not stored.created:
                object.__setattr__(result, "id", str(int(stored)))

        transaction.on_commit(store_now, using=store.database)

    def _number(self, store: Store, result_id: str) -> int:
        """The task's id. Raises TaskResultDoesNotExist."""
        result_id = str(result_id)  # a path converter of Django may have made a number of it
        if result_id.isascii() and result_id.isdigit() and len(result_id) < 20:
            return int(result_id)
        if result_id.startswith(LATER) and store.alias is None and not store.jobs.database.missing():
            found = store.jobs.list_tasks(correlation=result_id, limit=1000)
            if found:
                return min(one.id for one in found)
        raise TaskResultDoesNotExist(f"there is no task {result_id!r}")


def _level(priority: int) -> tuple[Priority, int]:
    """The pool's priority, and the rank in it: 67 of Django's priorities, -100 to 100, have one pool."""
    band = (priority > MAX_RANK) - (priority < -MAX_RANK)
    return _LEVELS[band], int(priority) - band * (2 * MAX_RANK + 1)


def _ids(given: Any) -> list[str]:
    """The ids of results, or of one. Raises InvalidTask."""
    found = []
    for one in given if isinstance(given, (list, tuple, set, frozenset)) else (given,):
        if isinstance(one, base.TaskResult):
            one = one.id
        if not isinstance(one, (str, int)) or isinstance(one, bool):
            raise InvalidTask(f"depends_on takes results of tasks or their ids, not {one!r:.80}")
        found.append(str(one))
    return found

"""A task type of schedd's for each function that Django's ``@task`` has wrapped.

A function of a module that workers import has a kind of its own, by its path. Any other one is a ``django.task``, which
finds it by its path when it runs.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.db import close_old_connections, connections
from django.utils.module_loading import module_has_submodule

from scheduler.django import running
from scheduler.django.standard import base
from scheduler.model.names import is_name
from scheduler.model.task import Task

ANY, ANY_ASYNC = "django.task", "django.async_task"
MODULE = "tasks"


class FunctionCall(Task):
    """The payload: the call of a function. ``backend``: by its alias; ``context``: it takes Django's TaskContext."""

    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    backend: str = base.DEFAULT_TASK_BACKEND_ALIAS
    context: bool = False
    priority: int = 0
    run_after: str | None = None
    path: str = ""  # of the function, where the kind does not say it

    def on_failed(self, ctx: Any, error: BaseException) -> Any:
        close_old_connections()
        try:
            running.failed(self, ctx, error)
        finally:
            close_old_connections()


def path_of(kind: str, payload: Mapping[str, Any]) -> str:
    """The path of the function that a stored task calls."""
    return str(payload.get("path") or kind)


def found_at(path: str) -> Any:
    """What is at this path: a task of Django's, or its function. Raises ImportError."""
    module, name = path, ""
    while True:
        module, _, last = module.rpartition(".")
        if not module:
            raise ImportError(f"there is no {path}")
        name = f"{last}.{name}" if name else last
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module + ".").startswith(error.name + "."):
                continue
            raise
        for part in name.split("."):
            if not hasattr(found, part):
                raise ImportError(f"there is no {part!r} in {path}")
            found = getattr(found, part)
        return found


def function_of(path: str) -> Any:
    """The function at this path. Raises ImportError."""
    found = found_at(path)
    return found.func if isinstance(found, base.Task) else found


def own_modules(more: list[str]) -> list[str]:
    """The modules with tasks that workers import: ``tasks`` of each app, and ``more``."""
    found = [f"{app.name}.{MODULE}" for app in apps.get_app_configs() if module_has_submodule(app.module, MODULE)]
    return list(dict.fromkeys([*found, *more]))


def has_own_kind(function: Any, modules: list[str]) -> bool:
    """Whether workers know this function beforehand."""
    place = function.__module__
    known = any(place == module or place.startswith(f"{module}.") for module in modules)
    return known and "." not in function.__qualname__ and is_name(f"{place}.{function.__qualname__}")


def import_all(modules: list[str]) -> list[types.ModuleType]:
    """Import these modules, and what is in those that are packages."""
    found = []
    for name in modules:
        module = importlib.import_module(name)
        found.append(module)
        for one in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            found.append(importlib.import_module(one.name))
    return found


def tasks_in(module: types.ModuleType) -> Iterator[Any]:
    """The tasks of Django's whose functions are the module's own."""
    for value in list(vars(module).values()):
        if isinstance(value, base.Task) and value.func.__module__ == module.__name__:
            yield value


def make_handler(found: Any, place: str) -> type[Task]:
    """The task type of one task of Django's. ``place``: the module that will hold it, where child processes find it."""
    kind = f"{found.func.__module__}.{found.func.__qualname__}"
    options: dict[str, Any] = {"kind": kind, "queue": found.queue_name, "ranked": True}
    if getattr(found, "retry", None) is not None:
        options["retry"] = running.policy(found.retry)
    if getattr(found, "timeout", None) is not None:
        options["timeout"] = found.timeout
    return _made(kind, found.func, options, place)


def _made(kind: str, function: Any, options: dict[str, Any], place: str) -> type[Task]:
    run: Any
    if inspect.iscoroutinefunction(function):

        async def run_async(self: FunctionCall, ctx: Any) -> Any:
            return await _run_async(function, self, ctx)

        run = run_async
    else:

        def run_sync(self: FunctionCall, ctx: Any) -> Any:
            return running.run(function, self, ctx)

        run = run_sync
    name = kind.replace(".", "/")  # a reference ends at a dot
    run.__qualname__, run.__name__, run.__module__ = f"{name}.run", "run", place

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__module__=place, __qualname__=name, __doc__=function.__doc__, run=run)
        if inspect.iscoroutinefunction(function):
            namespace["on_failed"] = _failed_async

    made = types.new_class(name, (FunctionCall,), options, fill)
    setattr(sys.modules[place], name, made)
    return made


@asynccontextmanager
async def _as_a_request() -> AsyncIterator[None]:
    """A thread for what is not asynchronous, as each request of Django's has under ASGI, and connections of its own."""
    async with ThreadSensitiveContext():
        try:
            yield
        finally:
            await sync_to_async(connections.close_all)()


async def _run_async(function: Any, call: FunctionCall, ctx: Any) -> Any:
    async with _as_a_request():
        return await running.run_async(function, call, ctx)


async def _failed_async(self: FunctionCall, ctx: Any, error: BaseException) -> None:
    async with _as_a_request():
        await sync_to_async(running.failed)(self, ctx, error)


class AnyCall(FunctionCall, kind=ANY, ranked=True):
    """The call of a function that no worker knows beforehand."""

    def run(self, ctx: Any) -> Any:
        return running.run(function_of(self.path), self, ctx)


class AnyAsyncCall(FunctionCall, kind=ANY_ASYNC, ranked=True):
    """The same for a coroutine function."""

    async def run(self, ctx: Any) -> Any:
        return await _run_async(function_of(self.path), self, ctx)

    on_failed = _failed_async


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


def payload_of(text: str | None) -> dict[str, Any]:
    """A stored payload; empty for one that is no call."""
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}

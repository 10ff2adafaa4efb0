"""The module that a worker of a Django project imports: ``[tasks] modules = ["scheduler.django.worker"]``.

It sets Django up where nobody has, imports ``tasks`` of the installed apps, and holds a task type for each task found.
Child processes find the types here, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.apps import apps

from scheduler.django import options

if not apps.ready:  # in a daemon without manage.py, or in a child process
    django.setup()
    options.keep_one_log()

from django.db import close_old_connections

from scheduler.config.task_modules import task_types
from scheduler.django import handlers, stores

_MODULES = handlers.import_all(handlers.own_modules(stores.modules()))
for _module in _MODULES:
    for _task in handlers.tasks_in(_module):
        handlers.make_handler(_task, __name__)


def own_types() -> list[str]:
    """Those of the modules that have task types of schedd's own, or a ``setup()``."""
    return [one.__name__ for one in _MODULES if hasattr(one, "setup") or any(True for _ in task_types(one))]


def types() -> list[Any]:
    """The task types of all that was found, schedd's own included."""
    here = sys.modules[__name__]
    return [one for module in (here, *_MODULES) for one in task_types(module)]


@contextmanager
def around_run(_ctx: Any) -> Iterator[None]:
    """As around a request: a connection that broke or grew old while nothing ran is made anew."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def setup(jobs: Any) -> None:
    """Called by the worker before it starts."""
    for one in (handlers.AnyCall, handlers.AnyAsyncCall):
        jobs.register(one)
    if jobs.around_run is None:
        jobs.around_run = around_run

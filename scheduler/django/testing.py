"""For tests of a project: running its tasks within the test."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from scheduler.app import Scheduler
from scheduler.django import options
from scheduler.django.standard import base, task_backends
from scheduler.testing import drain


def run_tasks(
    backend: str = base.DEFAULT_TASK_BACKEND_ALIAS, *, queue: str | None = None, raise_errors: bool = False
) -> int:
    """Run every task that is due, the highest priority first, in this thread; returns how many attempts ran.

    ``queue``: those of one queue only. ``raise_errors``: raise what the first failing function raised, with its
    traceback, once its attempt is recorded.

    For a TransactionTestCase: what a TestCase stores is never committed, so that nothing else sees it. Raises
    ImproperlyConfigured for a database of tests that lies in memory.
    """
    from scheduler.django import worker

    store = task_backends[backend].store
    if store.alias is not None and options.is_memory(store.alias):
        raise ImproperlyConfigured(
            'run_tasks() needs a database of tests in a file: DATABASES["default"]["TEST"] = {"NAME": "test.sqlite3"}'
        )
    with_types = Scheduler(store.url)
    for one in worker.types():
        with_types.register(one)
    worker.setup(with_types)
    try:
        return drain(with_types, queue=queue, raise_errors=raise_errors)
    finally:
        with_types.close()

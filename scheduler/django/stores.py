"""The stores of a project: one for each place that its backends name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from scheduler.app import Scheduler
from scheduler.config.task_modules import task_types
from scheduler.django import handlers, options
from scheduler.django.standard import base, task_backends
from scheduler.store.admin.gc import flush
from scheduler.store.db import migrate
from scheduler.store.db.tx import CallersTx, Tx
from scheduler.store.tasks.enqueue import callers_connection

_LOCK = threading.Lock()
_JOBS: dict[str, Scheduler] = {}  # by URL: tests come to another database than the program


def backends() -> list[Any]:
    """The backends of ``TASKS`` that are schedd's."""
    return [backend for backend in task_backends.all() if getattr(backend, "is_schedd", False)]


def modules() -> list[str]:
    """The modules with tasks that the backends name beside ``tasks`` of each app."""
    return list(dict.fromkeys(name for backend in backends() for name in backend.modules))


def get_jobs(backend: str = base.DEFAULT_TASK_BACKEND_ALIAS) -> Scheduler:
    """The Scheduler of a backend's store, for schedd's own API. It runs nothing; workers do.

    The task types of schedd's own in the project's modules of tasks are registered. Raises ImproperlyConfigured.
    """
    chosen = task_backends[backend]
    if not getattr(chosen, "is_schedd", False):
        raise ImproperlyConfigured(f"TASKS[{backend!r}] is not scheduler.django.TaskBackend, which has a Scheduler")
    jobs: Scheduler = chosen.store.jobs
    for module in handlers.import_all(handlers.own_modules(chosen.modules)):
        for one in task_types(module):
            jobs.register(one)
    return jobs


def stores_in(alias: str) -> list[Store]:
    """The stores in a database of Django."""
    found = {store.alias: store for store in (backend.store for backend in backends()) if store.alias == alias}
    return list(found.values())


class Store:
    """Where a backend's tasks are. ``alias``: the database of Django that they share; None: they are elsewhere."""

    def __init__(self, given: dict[str, Any]) -> None:
        url = options.url_of(given)
        self.database = options.database_of(given)
        self.alias: str | None = None
        if url is None or url == options.django_url(self.database):
            self.alias = self.database
        self._url = url

    @property
    def url(self) -> str:
        """Where it is, at this moment."""
        return self._url if self.alias is None and self._url is not None else options.django_url(self.database)

    @property
    def jobs(self) -> Scheduler:
        """The Scheduler of this process for it, which runs nothing."""
        url = self.url
        with _LOCK:
            found = _JOBS.get(url)
            if found is None:
                found = _JOBS[url] = Scheduler(url)
            return found

    @property
    def connection(self) -> Any:
        """Django's connection, of this thread; None: the store is elsewhere."""
        return None if self.alias is None else connections[self.alias]

    @contextmanager
    def reading(self) -> Iterator[Tx]:
        """A transaction that reads, and sees what Django's own has written. Raises StoreUnavailableError."""
        jobs = self.jobs
        if self.alias is None:
            with jobs.database.read() as tx:
                yield tx
            return
        with callers_connection(self.connection, reads=True) as own:
            jobs.database.open_beside(own)
            yield CallersTx(own, jobs.database.now())

    def in_transaction(self) -> bool:
        """Whether Django has a transaction open, whose commit the store is to wait for."""
        return bool(transaction.get_connection(self.database).in_atomic_block)

    def migrate(self) -> None:
        """Make the store, or bring it to this program's schema. Raises StoreUnavailableError."""
        with callers_connection(self.connection) as own:
            version = migrate.current(own)
            if version is None:
                migrate.make_on(own)
        if version is not None and not migrate.works_on(version):
            migrate.upgrade(self.url)

    def flush(self) -> None:
        """Empty it."""
        with callers_connection(self.connection) as own:
            if migrate.current(own) is not None:
                flush(CallersTx(own, self.jobs.database.now()))

"""Desk: the store that an operation works on, and how it wakes the workers there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from scheduler.errors import SchedulerError
from scheduler.ports import SystemClock
from scheduler.store.db.bounded import ReadTooLongError as ReadTooLongError
from scheduler.store.db.bounded import bounded_read
from scheduler.store.db.bounded import change_token as change_token
from scheduler.store.db.database import Database as Database
from scheduler.store.db.deadline import in_time as in_time
from scheduler.store.db.notifier import make_notifier
from scheduler.store.db.tx import Tx as Tx
from scheduler.store.db.urls import parse_url as parse_url
from scheduler.system.processes import user as user

if TYPE_CHECKING:
    from scheduler.model.registry import Registry

T = TypeVar("T")


class Desk(NamedTuple):
    """``wake``: has workers look for work, after a commit; ``registry``: the task types of this program, if any."""

    database: Database
    wake: Callable[[], object]
    registry: Registry | None = None

    def read(self) -> AbstractContextManager[Tx]:
        """A transaction that only reads. Raises StoreUnavailableError."""
        return self.database.read()

    def bounded_read(self, seconds: float) -> AbstractContextManager[Tx]:
        """The same, none of whose statements takes longer; raises ReadTooLongError then."""
        return bounded_read(self.database, seconds)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Do the work in one transaction, then wake the workers. Raises StoreUnavailableError."""
        done = self.database.change(work)
        self.wake()
        return done

    def plan(self, work: Callable[[Tx], T], *, dry_run: bool) -> T:
        """:meth:`write`; or, as a dry run, the same work in a transaction that only reads."""
        if not dry_run:
            return self.write(work)
        with self.read() as tx:
            return work(tx)


def open_desk(url: str, *, notify: bool = True) -> Desk:
    """The desk of a store that a command works on. It opens nothing before the first use, and migrates nothing."""
    database = Database(url, SystemClock(), auto_migrate=False, notify=notify)

    def wake() -> None:
        with contextlib.suppress(OSError, SchedulerError):
            notifier = make_notifier(database)
            try:
                notifier.notify()
            finally:
                notifier.close()

    return Desk(database, wake)

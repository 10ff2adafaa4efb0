"""Desk: the store that an operation works on, and how it wakes the workers there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from scheduler.model.registry import Registry
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx as Tx

T = TypeVar("T")


class Desk(NamedTuple):
    """``wake``: has workers look for work, after a commit; ``registry``: the task types of this program, if any."""

    database: Database
    wake: Callable[[], object]
    registry: Registry | None = None

    def read(self) -> AbstractContextManager[Tx]:
        """A transaction that only reads. Raises StoreUnavailableError."""
        return self.database.read()

    def write(self, work: Callable[[Tx], T]) -> T:
        """Do the work in one transaction, then wake the workers. Raises StoreUnavailableError."""
        done = self.database.change(work)
        self.wake()
        return done

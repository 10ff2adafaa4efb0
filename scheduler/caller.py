"""What builders need of their scheduler: where to store, what is registered, whom to wake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.model.registry import Registry
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.store import schedules
from scheduler.store.database import Database
from scheduler.store.doorbell import Bell, ring_after_commit
from scheduler.store.enqueue import callers_connection, enqueue, enqueue_alone, insert_alone, is_one_row
from scheduler.store.schedules import ScheduleSpec


class Caller:
    """What builders need of their scheduler."""

    def __init__(
        self,
        database: Database,
        registry: Registry,
        ring: Callable[..., None],
        bell: Callable[[], Bell],
        timezone: str = "UTC",
        before_schedule: Callable[[Any], Any] | None = None,
    ) -> None:
        self.database = database
        self.registry = registry
        self.ring = ring
        self.bell = bell
        self.timezone = timezone
        self.before_schedule = before_schedule

    def store_one(self, spec: TaskSpec, connection: Any = None) -> TaskId:
        """:meth:`store` a single task."""
        if connection is not None or not is_one_row(spec):
            return self.store([spec], connection)[0]
        if self.database.dialect.name == "sqlite":
            new_id = insert_alone(self.database, spec)
            self.ring()
            return new_id
        bell = self.bell()  # before a connection is held, for which a stop may wait
        one = enqueue_alone(self.database, spec, bell)
        self.ring(others=not one.rung)
        return one.id

    def store(self, specs: list[TaskSpec], connection: Any = None) -> list[TaskId]:
        """Store tasks, in the caller's transaction if there is one, and ring once they are committed."""
        if connection is not None:
            own = callers_connection(connection)
            self.database.open()
            ids = enqueue(own, specs, self.database.now(), ours=False)
            ring_after_commit(own, self.ring)
            return ids
        if len(specs) == 1 and is_one_row(specs[0]):
            return [self.store_one(specs[0])]
        stored = self.database.change(lambda c: enqueue(c, specs, self.database.now(), ours=True))
        self.ring()
        return stored

    def register_schedule(self, spec: ScheduleSpec) -> None:
        dialect = self.database.dialect
        self.database.change(lambda c: schedules.register(c, dialect, spec, self.database.now()))
        self.ring()

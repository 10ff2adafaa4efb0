"""Recurring schedules: list, pause, resume, trigger, delete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from scheduler.client.info import ScheduleInfo, schedule_info
from scheduler.model.spec import TaskId
from scheduler.model.times import to_datetime
from scheduler.store import schedules
from scheduler.store.read import schedules as read_schedules

if TYPE_CHECKING:
    from scheduler.client.tasks import TaskOperations


class Schedules:
    """``jobs.schedules``: the recurring schedules."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner

    def list(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        with self._owner.database.read() as connection:
            return [schedule_info(record) for record in read_schedules.records(connection)]

    def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises UnknownScheduleError."""
        with self._owner.database.read() as connection:
            return schedule_info(read_schedules.record(connection, name))

    def pause(self, name: str) -> None:
        """Fire nothing until resumed. Raises UnknownScheduleError."""
        self._pause(name, True)

    def resume(self, name: str) -> None:
        """Continue with the next fire time. Raises UnknownScheduleError."""
        self._pause(name, False)

    def _pause(self, name: str, paused: bool) -> None:
        with self._owner.database.write() as connection:
            schedules.pause(connection, name, self._owner.database.now(), paused)
        self._owner._notify()

    def trigger(self, name: str) -> TaskId:
        """Run it once now, besides its fire times. Raises UnknownScheduleError."""
        with self._owner.database.write() as connection:
            made = schedules.trigger(connection, name, self._owner.database.now())
        self._owner._notify()
        return made

    def delete(self, name: str) -> None:
        """Delete the schedule; tasks that it made stay. Raises UnknownScheduleError."""
        with self._owner.database.write() as connection:
            schedules.delete(connection, name, self._owner.database.now())
        self._owner._forget_schedule(name)

    def next(self, name: str, n: int = 1) -> Sequence[datetime]:
        """Its next ``n`` fire times, UTC; of overdue ones only those that will still run.

        Raises UnknownScheduleError."""
        with self._owner.database.read() as connection:
            found = read_schedules.record(connection, name)
        return [to_datetime(us) for us in read_schedules.upcoming(found, n, self._owner.database.now())]

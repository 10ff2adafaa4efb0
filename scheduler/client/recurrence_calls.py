"""The calls that say when something recurs: common to builders of single tasks and of graphs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Generic, Literal, Self, TypeVar

from scheduler.client.submitter import TaskSubmitter
from scheduler.errors import ConfigError, InvalidScheduleError
from scheduler.model import recurrence as recur
from scheduler.model.catchup import CATCHUPS, MAX_JITTER, OVERLAPS
from scheduler.model.recurrence import Recurrence, Weekday
from scheduler.model.times import SECOND, instant_us, span_us

B = TypeVar("B")
_SETTINGS = ("_catchup", "_overlap", "_run_on_startup", "_jitter", "_starts_at", "_ends_at")
_NAMES = frozenset(_SETTINGS)


class RecurrenceCalls(Generic[B]):
    """Needs ``_caller``, and ``_recurring``, which gives the builder of type ``B`` a recurrence."""

    # Class attributes: most builders of a large batch keep the defaults, and need no memory for them.
    _caller: TaskSubmitter
    _recurrence: Recurrence | None = None
    _catchup: str | None = None
    _overlap: str | None = None
    _run_on_startup = False
    _jitter = 0
    _starts_at: datetime | None = None
    _ends_at: datetime | None = None

    def _recurring(self, recurrence: Recurrence) -> B:
        raise NotImplementedError

    def _zone(self, tz: str | None) -> str:
        return self._caller.timezone if tz is None else tz

    def cron(self, expression: str, tz: str | None = None) -> B:
        """Fire as a cron expression of five fields says. Raises InvalidScheduleError."""
        return self._recurring(recur.cron(expression, self._zone(tz)))

    def daily_at(self, hour: int, minute: int, tz: str | None = None) -> B:
        """Every day at this time. Raises InvalidScheduleError."""
        return self._recurring(recur.daily_at(hour, minute, self._zone(tz)))

    def hourly_at(self, minute: int, tz: str | None = None) -> B:
        """Every hour at this minute. Raises InvalidScheduleError."""
        return self._recurring(recur.hourly_at(minute, self._zone(tz)))

    def weekly_on(self, weekday: Weekday, hour: int, minute: int, tz: str | None = None) -> B:
        """Every week on this day at this time. Raises InvalidScheduleError."""
        return self._recurring(recur.weekly_on(weekday, hour, minute, self._zone(tz)))

    def monthly_on(self, day: int, hour: int, minute: int, tz: str | None = None) -> B:
        """Every month that has this day, at this time. Raises InvalidScheduleError."""
        return self._recurring(recur.monthly_on(day, hour, minute, self._zone(tz)))

    def every(self, interval: float | timedelta | str, mode: Literal["fixed_rate", "fixed_delay"] = "fixed_rate") -> B:
        """Fire at an interval: fixed rate counts from the first registration, fixed delay from the end of each run.

        Raises InvalidScheduleError.
        """
        return self._recurring(recur.every(interval, mode))

    def at_start(self) -> B:
        """When a worker starts and no other is live: once for all of them, as ``@reboot`` of cron."""
        return self._recurring(recur.at_start())

    def catchup(self, policy: Literal["skip", "last", "all", "none"]) -> Self:
        """Set what happens to missed fire times. Raises ConfigError."""
        if policy not in CATCHUPS:
            raise ConfigError(f"catchup must be one of {', '.join(CATCHUPS)}, not {policy!r}")
        self._catchup = policy
        return self

    def overlap(self, policy: Literal["allow", "skip"]) -> Self:
        """Set whether the schedule fires while its previous run has not ended. Raises ConfigError."""
        if policy not in OVERLAPS:
            raise ConfigError(f"overlap must be one of {', '.join(OVERLAPS)}, not {policy!r}")
        self._overlap = policy
        return self

    def run_on_startup(self) -> Self:
        """Run once at registration if the schedule is new or overdue."""
        self._run_on_startup = True
        return self

    def jitter(self, most: float | timedelta | str) -> Self:
        """Let each run be due up to this long after its fire time: seconds or timedelta, 24 hours at most.

        How long is the same for the same schedule and fire time. Raises ConfigError.
        """
        jitter = span_us(most, "jitter")
        if jitter > MAX_JITTER:
            raise ConfigError(f"jitter is at most 24 hours, not {most!r}")
        self._jitter = jitter
        return self

    def starts_at(self, when: datetime) -> Self:
        """No fire time before this instant (aware); a fixed rate counts from it. Raises InvalidScheduleError."""
        instant_us(when, "starts_at")
        self._starts_at = when
        return self

    def ends_at(self, when: datetime) -> Self:
        """No fire time after this instant (aware). Raises InvalidScheduleError."""
        instant_us(when, "ends_at")
        self._ends_at = when
        return self

    def _bounded_recurrence(self, name: str) -> Recurrence:
        """The recurrence of the schedule with this name, from its start to its end. Raises InvalidScheduleError."""
        assert self._recurrence is not None
        made = self._recurrence.named(name).within(self._starts_at, self._ends_at)
        if made.kind == "interval" and self._jitter >= made.interval_us:
            raise InvalidScheduleError(f"a jitter of {self._jitter / SECOND:g} s is not shorter than the interval")
        return made

    def _refuse_recurrence_settings(self) -> None:
        """Raises InvalidScheduleError if something was set that only a recurrence has."""
        if _NAMES.isdisjoint(self.__dict__):
            return  # quick, for each task of a batch comes here
        given = [name for name in _SETTINGS if self.__dict__.get(name)]
        if given:
            listed = ", ".join(name.removeprefix("_") for name in given)
            raise InvalidScheduleError(f"{listed}: this needs a recurrence such as cron() or every()")

"""Parts of builders: the arguments given, and the calls that say when something recurs and where it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

from scheduler.client.submitter import TaskSubmitter
from scheduler.errors import ConfigError, InvalidScheduleError, PayloadError
from scheduler.model import recurrence
from scheduler.model.catchup import CATCHUPS, MAX_JITTER, OVERLAPS
from scheduler.model.recurrence import Recurrence, Weekday
from scheduler.model.registry import Kind, context_hint
from scheduler.model.resources import Resources
from scheduler.model.spec import TaskSpec
from scheduler.model.task import TaskFunction
from scheduler.model.times import SECOND, instant_us, span_us
from scheduler.operations.new_task import set_executor, set_option
from scheduler.operations.published import PublishedKind

B = TypeVar("B")
_SETTINGS = ("_catchup", "_overlap", "_run_on_startup", "_jitter", "_starts_at", "_ends_at")
_NAMES = frozenset(_SETTINGS)


class Given(NamedTuple):
    """The payload that a builder was made with, by its names.

    ``parameters``: of a @task function; None for others, whose parents may have any names.
    """

    kind: Kind | PublishedKind
    parameters: tuple[str, ...] | None
    given: tuple[str, ...]

    def free(self) -> str | None:
        """The first parameter without an argument."""
        return next((name for name in self.parameters or () if name not in self.given), None)

    def check(self, name: str) -> None:
        """Raise ConfigError if no parent can have this name."""
        kind = self.kind.name
        if self.parameters is not None and name not in self.parameters:
            there = f"there are {', '.join(self.parameters)}" if self.parameters else "it has none"
            raise ConfigError(f"{kind} has no parameter {name!r} for the result of a parent: {there}")
        if name in self.given:
            raise ConfigError(f"{kind} gets {name!r} twice: as an argument, and from a parent")

    def refuse_lacking(self, lacking: frozenset[str], payload: str, names: Iterable[str]) -> None:
        """Raise PayloadError for an argument that the caller has not given and no parent of its name brings."""
        missing = lacking - frozenset(names)
        if not missing:
            return
        if self.parameters is None:
            self.kind.without(lacking - missing).decode(payload)  # says what it misses
        first = next(name for name in self.parameters or sorted(missing) if name in missing)
        source = getattr(self.kind, "source", None)
        hint = context_hint(source) if isinstance(source, TaskFunction) else ""
        raise PayloadError(
            f"payload of {self.kind.name} does not fit: missing a required argument: {first!r}{hint}; "
            f"pass it, or name a parent so: depend_on(parent, name={first!r})"
        )


class RecurrenceCalls(Generic[B]):
    """The calls that say when something recurs, common to builders of single tasks and of graphs.

    Needs ``_caller``, and ``_recurring``, which gives the builder of type ``B`` a recurrence.
    """

    # Class attributes: most builders of a large batch keep the defaults, and need no memory for them.
    _caller: TaskSubmitter
    _recurrence: Recurrence | None = None
    _catchup: str | None = None
    _overlap: str | None = None
    _run_on_startup = False
    _jitter = 0
    _starts_at: datetime | None = None
    _ends_at: datetime | None = None

    def _recurring(self, rule: Recurrence) -> B:
        raise NotImplementedError

    def _zone(self, tz: str | None) -> str:
        return self._caller.timezone if tz is None else tz

    def cron(self, expression: str, tz: str | None = None) -> B:
        """Fire as a cron expression of five fields says. Raises InvalidScheduleError."""
        return self._recurring(recurrence.cron(expression, self._zone(tz)))

    def daily_at(self, hour: int, minute: int, tz: str | None = None) -> B:
        """Every day at this time. Raises InvalidScheduleError."""
        return self._recurring(recurrence.daily_at(hour, minute, self._zone(tz)))

    def hourly_at(self, minute: int, tz: str | None = None) -> B:
        """Every hour at this minute. Raises InvalidScheduleError."""
        return self._recurring(recurrence.hourly_at(minute, self._zone(tz)))

    def weekly_on(self, weekday: Weekday, hour: int, minute: int, tz: str | None = None) -> B:
        """Every week on this day at this time. Raises InvalidScheduleError."""
        return self._recurring(recurrence.weekly_on(weekday, hour, minute, self._zone(tz)))

    def monthly_on(self, day: int, hour: int, minute: int, tz: str | None = None) -> B:
        """Every month that has this day, at this time. Raises InvalidScheduleError."""
        return self._recurring(recurrence.monthly_on(day, hour, minute, self._zone(tz)))

    def every(self, interval: float | timedelta | str, mode: Literal["fixed_rate", "fixed_delay"] = "fixed_rate") -> B:
        """Fire at an interval: fixed rate counts from the first registration, fixed delay from the end of each run.

        Raises InvalidScheduleError.
        """
        return self._recurring(recurrence.every(interval, mode))

    def at_start(self) -> B:
        """When a worker starts and no other is live: once for all of them, as ``@reboot`` of cron."""
        return self._recurring(recurrence.at_start())

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


class PlacingCalls:
    """The calls that say where a task runs. Needs ``_spec``."""

    _spec: TaskSpec

    def executor(self, name: str, options: Mapping[str, Any] | None = None) -> Self:
        """Run the task as a job of ``[executors.NAME]``; ``"local"``: in a worker, whatever its kind says.

        ``options``: the executor's own, such as a partition; without them the kind's count, if it names the same
        executor. Raises ConfigError.
        """
        set_executor(self._spec, name, options)
        return self

    def resources(
        self,
        cpu: float | None = None,
        memory: int | str | None = None,
        gpu: int | None = None,
        disk: int | str | None = None,
    ) -> Self:
        """The needs of the task of the machine that its executor finds, in place of those of its kind.

        ``cpu``: cores; ``memory``, ``disk``: bytes, or a text such as ``"32G"``. Workers do not look at it. Raises
        ConfigError.
        """
        set_option(self._spec, "resources", Resources(cpu=cpu, memory=memory, gpu=gpu, disk=disk))
        return self

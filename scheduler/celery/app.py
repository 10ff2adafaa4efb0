"""Celery, the app that a program makes; its schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from scheduler.app import Scheduler
from scheduler.celery import apps, options
from scheduler.celery.apps import App, find_task, share
from scheduler.celery.task import Task
from scheduler.client.builder import RecurringBuilder
from scheduler.errors import ConfigError, InvalidScheduleError, PayloadError
from scheduler.model.cron import parse

_ENTRY = ("task", "schedule", "args", "kwargs", "options")
_SETTINGS = ("beat_schedule", "timezone")


class CelerySettings:
    """``app.conf``: ``beat_schedule`` and ``timezone``. Other settings are refused."""

    def __init__(self) -> None:
        self.beat_schedule: dict[str, Any] = {}
        self.timezone: str | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        given = {name: value}
        options.take_always("app.conf", given)
        if given and name not in _SETTINGS:
            options.refuse("app.conf", name, _SETTINGS)
        if given:
            super().__setattr__(name, value)

    def update(self, given: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Set several. Raises ConfigError."""
        for name, value in {**(given or {}), **more}.items():
            setattr(self, name, value)


class Celery(App):
    """An app whose tasks are stored and run by schedd.

    ``broker``: the URL of the store, SQLite or PostgreSQL; without one ``scheduler`` is used, else the configuration
    file says it. A daemon that has registered its tasks takes the place of both. ``setup = app.setup`` at the end of a
    module has the daemon fire ``conf.beat_schedule``. Raises ConfigError.
    """

    def __init__(
        self, main: str | None = None, broker: str | None = None, *, scheduler: Scheduler | None = None, **others: Any
    ) -> None:
        for name in others:
            options.refuse("Celery()", name, ("broker", "scheduler"))
        if broker is not None and broker.partition(":")[0].partition("+")[0] not in ("sqlite", "postgresql"):
            raise ConfigError(
                f"Celery(): broker: the database is the queue: write sqlite:///jobs.db or postgresql://user@host/db, "
                f"not {broker.partition(':')[0]}:…"
            )
        super().__init__(main, broker, scheduler)
        self.conf = CelerySettings()

    if not TYPE_CHECKING:  # type checkers shall refuse these names, too

        def __getattr__(self, name: str) -> Any:
            instead = options.METHODS.get(name)
            known = "" if instead is None else f": {instead}"
            raise AttributeError(f"scheduler.celery.Celery has no {name!r}{known}", name=name, obj=self)

    @overload
    def task(self, function: Callable[..., Any], /) -> Task: ...
    @overload
    def task(self, /, **options: Any) -> Callable[[Callable[..., Any]], Task]: ...
    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Make a task of a function. Takes Celery's options where they mean the same here, and all of ``@task``.

        Raises ConfigError, which names the replacement of an option that is refused.
        """
        if function is None:
            return lambda function: self._make(function, options)
        return self._make(function, options)

    def _make(self, function: Callable[..., Any], options: dict[str, Any]) -> Task:
        made = Task(function, options, self)
        self.tasks[made.name] = made
        if self._scheduler is not None:
            self._scheduler.registry.add(made)
        return made

    def AsyncResult(self, id: int | str) -> apps.AsyncResult:
        """A task of this app's store, by its id."""
        return apps.AsyncResult(id, self)

    def setup(self, scheduler: Scheduler | None = None) -> None:
        """Store tasks with this Scheduler, and make its schedules those of ``conf.beat_schedule``, no more and no less.

        Raises ConfigError, InvalidScheduleError, StoreUnavailableError.
        """
        if scheduler is not None:
            self.use(scheduler)
        self._register_all()
        wanted = [self._recurring(name, entry) for name, entry in self.conf.beat_schedule.items()]
        self.scheduler.schedules.sync(wanted, owner="celery" if self.main is None else f"celery-{self.main}")

    def _recurring(self, name: str, entry: Mapping[str, Any]) -> RecurringBuilder:
        where, jobs = f"beat_schedule[{name!r:.80}]", self.scheduler
        for key in entry:
            if key not in _ENTRY:
                options.refuse(where, key, _ENTRY)
        when: Any = entry.get("schedule")
        try:
            task = find_task(self, entry.get("task"))
            builder = jobs.task(task, *entry.get("args", ()), **entry.get("kwargs", {})).key(name)
            made = builder.cron(when, self.conf.timezone) if _is_cron(when) else builder.every(when)
            options.configure(made, entry.get("options", {}), where, jobs.database.now())
        except (ConfigError, InvalidScheduleError, PayloadError) as error:
            raise type(error)(f"{where}: {error}") from None
        return made

    def __enter__(self) -> Self:
        """Run tasks, and fire schedules, until the block ends."""
        self.setup()
        self.scheduler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.scheduler.__exit__(kind, error, trace)


def _is_cron(when: Any) -> bool:
    return isinstance(when, str) and len(when.split()) > 1


@overload
def shared_task(function: Callable[..., Any], /) -> Task: ...
@overload
def shared_task(**options: Any) -> Callable[[Callable[..., Any]], Task]: ...
def shared_task(function: Any = None, /, **options: Any) -> Any:
    """Make a task that belongs to no app: :meth:`Celery.task` for modules that do not import it."""

    def make(function: Callable[..., Any]) -> Task:
        made = Task(function, options)
        share(made)
        return made

    return make if function is None else make(function)


def crontab(
    minute: int | str | Iterable[int] = "*",
    hour: int | str | Iterable[int] = "*",
    *,
    day_of_week: int | str | Iterable[int] = "*",
    day_of_month: int | str | Iterable[int] = "*",
    month_of_year: int | str | Iterable[int] = "*",
) -> str:
    """A cron expression for ``beat_schedule``. Raises ConfigError, InvalidScheduleError."""
    fields = [_field(one) for one in (minute, hour, day_of_month, month_of_year, day_of_week)]
    if not fields[2].startswith("*") and not fields[4].startswith("*"):
        raise ConfigError(
            "crontab(): day_of_month and day_of_week: here either one fires, not both together; "
            "take one of them, and let the task look at the other"
        )
    parse(found := " ".join(fields))
    return found


def _field(given: int | str | Iterable[int]) -> str:
    if isinstance(given, int | str):
        return "".join(str(given).split())
    return ",".join(str(one) for one in sorted(given))

"""The options of Celery, as schedd's. One with another meaning is refused, with the name of its replacement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn

from scheduler.client.builder import RecurringBuilder, TaskBuilder
from scheduler.errors import ConfigError, Retry
from scheduler.model.retry import RetryPolicy
from scheduler.model.task import OPTION_NAMES
from scheduler.model.times import instant_us

_ALWAYS: dict[str, Any] = {  # what Celery can be told, and schedd always does
    "acks_late": True,
    "reject_on_worker_lost": True,
    "track_started": True,
    "serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "enable_utc": True,
}
RETRIES = (
    *("autoretry_for", "retry_backoff", "retry_backoff_max", "retry_jitter", "retry_kwargs"),
    *("max_retries", "default_retry_delay"),
)
OF_TASKS = frozenset({*OPTION_NAMES, *RETRIES, "name", "bind", "time_limit"}) - {"kind"}
LINKS = ("link", "link_error")
_CALLS = {
    "countdown": "after",
    "eta": "at",
    "expires": "max_duration",
    "headers": "headers",
    "key": "key",
    "priority": "priority",
    "queue": "queue",
}
_LATE = "a task is acknowledged after its run, always: leave it out, and let a second run do no harm"
_JSON = "payloads are JSON: leave it out, and pass dicts, lists, texts and numbers"
_INSTEAD = {
    "accept_content": _JSON,
    "acks_late": _LATE,
    "backend": "leave it out: results are in the store",
    "base": "pass around_run= to the Scheduler for what surrounds each run",
    "dont_autoretry_for": "raise scheduler.PermanentError where no retry helps",
    "enable_utc": "times are stored in UTC: leave it out, and set timezone for beat_schedule",
    "exchange": "take queue=",
    "ignore_result": "leave it out: a result is kept for 24 hours, or as long as result_ttl= says",
    "include": "import the modules, or list them in [tasks] modules",
    "reject_on_worker_lost": _LATE,
    "result_serializer": _JSON,
    "routing_key": "take queue=",
    "serializer": _JSON,
    "soft_time_limit": "take timeout=, which raises TaskTimeout at the next call of self.ctx, or at an await",
    "task_id": "take key=, which names a piece of work; the id is that of the returned AsyncResult",
    "throws": "raise scheduler.PermanentError for errors that are expected",
    "track_started": "the state STARTED is always there: leave it out",
}

METHODS = {  # of Celery's app
    "autodiscover_tasks": "import the modules of your tasks, or list them in [tasks] modules",
    "config_from_object": "set conf.beat_schedule and conf.timezone; all else is in config.toml",
    "control": "take `schedctl`, or app.scheduler",
    "events": "take `schedctl top`, or the console",
    "send_task": "app.scheduler.submit(name, payload) stores a task by its name",
    "signature": "import the task and call its s()",
    "start": "run `schedd`, or your program within `with app:`",
    "worker_main": "run `schedd`, or your program within `with app:`",
    "Worker": "run `schedd`, or your program within `with app:`",
    "Beat": "run `schedd`, or your program within `with app:`",
}


def refuse(where: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raises ConfigError that says what to write in place of this option."""
    instead = _INSTEAD.get(name) or _INSTEAD.get(name.removeprefix("task_"))
    raise ConfigError(f"{where}: {name}: {instead or 'there is no such option; there are ' + ', '.join(sorted(known))}")


def take_always(where: str, options: dict[str, Any]) -> None:
    """Take out the options that ask for what is always so. Raises ConfigError for those that ask for the contrary."""
    for name in list(options):
        plain = name if name == "task_id" else name.removeprefix("task_")
        if plain in _ALWAYS and options.pop(name) != _ALWAYS[plain]:
            refuse(where, name, ())


def task_options(name: str, given: dict[str, Any], *, retries: bool, ends: bool) -> dict[str, Any]:
    """The options of a task type, of those of ``@app.task``. Raises ConfigError.

    ``retries``: whether it may ask for retries; ``ends``: whether a run can be ended from outside.
    """
    where = f"task {name}"
    take_always(where, given)
    for option in given:
        if option not in OF_TASKS:
            refuse(where, option, OF_TASKS)
    asked = [option for option in RETRIES if option in given]
    if asked and "retry" in given:
        raise ConfigError(f"{where}: retry= says it all: leave {asked[0]} out")
    options = {option: given.pop(option) for option in asked}
    if (asked or retries) and "retry" not in given:
        given["retry"] = _policy(where, options)
    if given.get("time_limit") is not None:
        if not ends:
            raise ConfigError(
                f'{where}: time_limit: add isolation="process", whose runs are killed when their time is up; or take '
                "timeout=, which a thread notices at its next call of self.ctx"
            )
        given["timeout"] = given.pop("time_limit")
    rate = given.get("rate_limit")
    if isinstance(rate, int):
        given["rate_limit"] = f"{rate}/s"
    return {option: value for option, value in given.items() if value is not None}


def _policy(where: str, given: dict[str, Any]) -> RetryPolicy:
    """Celery's defaults: three retries, 180 s apart. Raises ConfigError."""
    always = dict(given.get("retry_kwargs") or {})
    most = always.pop("max_retries", given.get("max_retries", 3))
    delay = always.pop("countdown", given.get("default_retry_delay", 180))
    if always:
        raise ConfigError(f"{where}: retry_kwargs takes max_retries and countdown, not {min(always)}")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
        raise ConfigError(f"{where}: max_retries must be a whole number from 0, or None for unlimited, not {most!r}")
    attempts = None if most is None else most + 1
    errors = given.get("autoretry_for") or Retry  # which a run asks for itself
    backoff, longest = given.get("retry_backoff", False), given.get("retry_backoff_max", 600)
    if backoff:
        jitter = 0.1 if given.get("retry_jitter", True) else 0.0
        return RetryPolicy(min(max(1, int(backoff)), longest), longest, attempts, jitter=jitter, retry_on=errors)
    return RetryPolicy(delay, timedelta(days=3660), attempts, jitter=0.0, strategy="fixed", retry_on=errors)


def configure(builder: TaskBuilder[Any] | RecurringBuilder, given: Mapping[str, Any], where: str, now: int) -> None:
    """Give a builder the options of ``apply_async``. Raises ConfigError, InvalidScheduleError, PayloadError."""
    options = {name: value for name, value in given.items() if value is not None and name not in LINKS}
    take_always(where, options)
    for name, value in options.items():
        if name not in _CALLS:
            refuse(where, name, {*_CALLS, *LINKS, "connection"})
        if name == "expires" and isinstance(value, datetime):
            left = instant_us(value, "expires") - now
            if left <= 0:
                raise ConfigError(f"{where}: expires is past: {value.isoformat()}")
            value = timedelta(microseconds=left)
        getattr(builder, _CALLS[name])(value)

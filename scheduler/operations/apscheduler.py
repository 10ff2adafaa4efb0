"""Jobs of APScheduler 3 as schedules and tasks of ours, and what of each is not as it was.

Job stores keep jobs as pickles, and a pickle may run any code. These are read without that: a pickle may name triggers
of APScheduler, which become plain records, and dates; a job that names anything else is left out.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from scheduler.errors import InvalidScheduleError, PayloadError, SchedulerError, UnregisteredKindError
from scheduler.model.recurrence import Recurrence, cron, every
from scheduler.model.spec import TaskSpec
from scheduler.model.texts import counted, rfc3339
from scheduler.model.times import instant_us, span_us
from scheduler.model.zoned import zone_of
from scheduler.operations.desk import Desk
from scheduler.operations.published import PublishedKind, get_published, root_of
from scheduler.store import schedule_sets, schedules
from scheduler.store.admin.apscheduler_rows import TABLE, rows
from scheduler.store.db.tx import Tx
from scheduler.store.schedules import ScheduleSpec
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.tasks.keys import holder_of

_HEX_ID = re.compile(r"[0-9a-f]{32}")
_ALL_DAYS = tuple(range(7))  # 0 is Monday, as in APScheduler
_NO_JOB = SimpleNamespace()


class ApschedulerJob(NamedTuple):
    """A job as it was. ``trouble``: why it could not be read."""

    id: str
    function: str = ""
    trigger: Any = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    paused: bool = False
    misfire: int | None = None
    coalesce: bool = True
    instances: int = 1
    executor: str = "default"
    trouble: str | None = None


class ApschedulerLine(NamedTuple):
    """What a job becomes: a schedule, or a task that runs once. ``left_out``: why it becomes neither; ``notes``: what
    differs. ``action``: added, updated, unchanged or left out."""

    job: str
    function: str
    name: str | None
    schedule: ScheduleSpec | None
    task: TaskSpec | None
    paused: bool
    left_out: str | None
    notes: list[str]
    action: str = ""

    @property
    def when(self) -> str | None:
        """The recurrence, or the time of the one run."""
        if self.schedule is not None:
            return self.schedule.recurrence.describe()
        return None if self.task is None else rfc3339(self.task.run_at, exact=False)

    def __str__(self) -> str:
        head = f"{self.job} ({self.function}): {self.action}"
        what = "" if self.name is None else f" {self.name}, {self.when}"
        return "; ".join([head + what, *([self.left_out] if self.left_out else []), *self.notes])


def jobs_in(url: str, table: str = TABLE) -> list[ApschedulerJob]:
    """The jobs of an SQLAlchemyJobStore. No code that its pickles name is run. Raises ConfigError."""
    return [_unpickled(job_id, state) for job_id, state in rows(url, table)]


def jobs_of(scheduler: Any) -> list[ApschedulerJob]:
    """The jobs of an APScheduler in this program, from all its job stores."""
    return [_job(one.id, one) for one in scheduler.get_jobs()]


def move(
    desk: Desk, jobs: Sequence[ApschedulerJob], kinds: Mapping[str, str] | None = None, *, dry_run: bool = False
) -> list[ApschedulerLine]:
    """Store the jobs, all or none. ``kinds``: function -> kind, where that is not the function's name.

    Returns what each job becomes. Raises DuplicateScheduleError.
    """

    def work(tx: Tx) -> list[ApschedulerLine]:
        lines = [_line(tx, job, kinds or {}) for job in jobs]
        specs = [line.schedule for line in lines if line.schedule is not None]
        done = schedule_sets.sync(tx, specs, "", dry_run=True)
        actions = {name: action for action in ("added", "updated", "unchanged") for name in getattr(done, action)}
        tasks = [line.task for line in lines if line.task is not None]
        if dry_run:
            held = [spec.key for spec in tasks if spec.key is not None and holder_of(tx, spec.kind, spec.key)]
            actions |= dict.fromkeys(held, "unchanged")
        else:
            schedule_sets.register_all(tx, specs)
            for spec, made in zip(tasks, enqueue(tx, tasks), strict=True):
                actions[spec.key or ""] = "added" if made.created else "unchanged"
        for line in lines:
            if line.schedule is not None and line.paused and actions[line.schedule.name] == "added" and not dry_run:
                schedules.pause(tx, line.schedule.name, True)
        return [
            line._replace(action="left out" if line.name is None else actions.get(line.name, "added")) for line in lines
        ]

    return desk.plan(work, dry_run=dry_run)


# Reading


class _UnreadError(Exception):
    """A pickle names what is not read."""


class _Record:
    """Stands for an object of APScheduler: its attributes, and none of its code."""

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            vars(self).update(part or {})


def _zone(name: str, *_: Any) -> tzinfo:
    return zone_of(name)


def _attribute(of: Any, name: str) -> Any:
    if of is ZoneInfo and name == "_unpickle":
        return _zone
    raise _UnreadError(f"getattr of {name}")


_SAFE: Mapping[tuple[str, str], Any] = {
    **{("datetime", one.__name__): one for one in (date, datetime, time, timedelta, timezone)},
    ("zoneinfo", "ZoneInfo"): ZoneInfo,
    ("zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("builtins", "getattr"): _attribute,
    ("pytz", "_p"): _zone,
    ("pytz", "_UTC"): lambda: UTC,
}


class _PickleReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("apscheduler.triggers."):
            return type(name, (_Record,), {})
        found = _SAFE.get((module, name))
        if found is None:
            raise _UnreadError(f"{module}.{name}")
        return found


def _unpickled(job_id: str, state: bytes) -> ApschedulerJob:
    try:
        found = _PickleReader(io.BytesIO(state)).load()
        return _job(job_id, SimpleNamespace(**{**found, "func_ref": found["func"]}))
    except _UnreadError as error:
        text = f"its pickle names {error}, which is not read: move it from the running scheduler"
        return ApschedulerJob(job_id, trouble=text)
    except InvalidScheduleError as error:  # a zone that this machine does not have
        return ApschedulerJob(job_id, trouble=str(error))
    except Exception as error:  # a pickle may be broken in any way
        return ApschedulerJob(job_id, trouble=f"its pickle cannot be read: {type(error).__name__}")


def _job(job_id: str, found: Any) -> ApschedulerJob:
    """One that has no scheduler yet lacks what that would give it."""
    return ApschedulerJob(
        job_id,
        str(found.func_ref or getattr(found, "func", "")),
        found.trigger,
        list(found.args),
        dict(found.kwargs),
        getattr(found, "next_run_time", _NO_JOB) is None,
        getattr(found, "misfire_grace_time", 1),
        bool(getattr(found, "coalesce", True)),
        int(getattr(found, "max_instances", 1)),
        str(getattr(found, "executor", "default")),
    )


# One job


def _line(tx: Tx, job: ApschedulerJob, kinds: Mapping[str, str]) -> ApschedulerLine:
    left = ApschedulerLine(job.id, job.function, None, None, None, job.paused, job.trouble, [])
    if job.trouble is not None:
        return left
    function = job.function.rpartition(":")[2].rpartition(".")[2]
    kind = kinds.get(job.function) or kinds.get(function) or function
    name = f"{function}-{job.id[:8]}" if _HEX_ID.fullmatch(job.id) else job.id
    try:
        task = _task(tx, kind, job)
        sort = type(job.trigger).__name__
        if sort == "DateTrigger":
            if job.paused:
                return left._replace(left_out="it is paused, and runs once: there is no schedule to pause")
            task.key, task.run_at = f"apscheduler/{job.id}", instant_us(job.trigger.run_date, "run_date")
            return left._replace(name=task.key, task=task, notes=_notes(job, once=True))
        convert = _TRIGGERS.get(sort)
        if convert is None:
            return left._replace(left_out=f"there is no recurrence like {sort}: write two schedules, or one cron")
        recurrence = convert(job.trigger)
        missed = "none" if job.misfire is not None else "skip" if job.coalesce else "all"
        jitter = span_us(getattr(job.trigger, "jitter", None) or 0, "jitter")
        overlap = "skip" if job.instances == 1 else "allow"
        spec = ScheduleSpec(name, recurrence.named(name), task, missed, overlap, jitter=jitter)
    except UnregisteredKindError:
        why = f"no worker has published a kind {kind}: make the function a @task, and start a worker once"
        return left._replace(left_out=why)
    except (SchedulerError, ValueError) as error:
        return left._replace(left_out=str(error))
    return left._replace(name=name, schedule=spec, notes=_notes(job, once=False))


def _task(tx: Tx, kind: str, job: ApschedulerJob) -> TaskSpec:
    """Raises UnregisteredKindError, PayloadError."""
    record = get_published(tx, kind)
    payload = dict(job.kwargs)
    names = list(root_of(record.schema).get("properties", {}))
    if len(job.args) > len(names):
        raise PayloadError(
            f"{counted(len(job.args), 'positional argument')}, and {kind} has {counted(len(names), 'field')}"
        )
    payload.update(zip(names, job.args, strict=False))
    return PublishedKind(record).spec(payload)


def _notes(job: ApschedulerJob, *, once: bool) -> list[str]:
    found = []
    if job.executor != "default":
        found.append(f"executor {job.executor}: the kind's options say where it runs")
    if once:
        if job.misfire is not None:
            found.append(f"it runs however late, not only within {job.misfire} s")
        return found
    if job.misfire is not None:
        found.append(f"a run is missed after [schedules] misfire_grace, not {job.misfire} s; missed ones are left out")
    if job.instances > 1:
        found.append(f"up to {job.instances} at once: max_concurrency={job.instances} of the kind says that")
    if job.paused:
        found.append("it is paused, as it was")
    return found


# Triggers


def _cron(trigger: Any) -> Recurrence:
    fields = {field.name: field for field in trigger.fields}
    for name in ("year", "week"):
        if not _is_star(fields[name]):
            raise InvalidScheduleError(f"{name} is no field of a cron expression here")
    if [_bounds(one) for one in fields["second"].expressions] != [(0, 0, None)]:
        raise InvalidScheduleError("it fires at other seconds than 0: every(…) takes an interval from 1 s")
    day, weekday = _days(fields["day"], fields["day_of_week"])
    rest = {name: ",".join(map(_term, fields[name].expressions)) for name in ("minute", "hour", "month")}
    text = f"{rest['minute']} {rest['hour']} {day} {rest['month']} {weekday}"
    return cron(text, _zone_name(trigger.timezone)).within(trigger.start_date, trigger.end_date)


def _interval(trigger: Any) -> Recurrence:
    return every(trigger.interval).within(trigger.start_date, trigger.end_date)


_TRIGGERS: Mapping[str, Callable[[Any], Recurrence]] = {"CronTrigger": _cron, "IntervalTrigger": _interval}


def _days(day: Any, weekday: Any) -> tuple[str, str]:
    """The two fields of days, both of which have to match. Raises InvalidScheduleError."""
    nth = [one for one in day.expressions if type(one).__name__ == "WeekdayPositionExpression"]
    if nth:
        if len(nth) < len(day.expressions) or not _is_star(weekday):
            raise InvalidScheduleError("days like 2nd mon go with no other days")
        return "*", ",".join(_nth(one.option_num, one.weekday) for one in nth)
    days = ",".join("L" if type(one).__name__.startswith("LastDay") else _term(one) for one in day.expressions)
    if _is_star(weekday):
        return days, "*"
    wanted = sorted({number for one in weekday.expressions for number in _weekdays(one)})
    if not days.startswith("*"):
        raise InvalidScheduleError("day and day_of_week both have to match, and one would be enough here")
    return days, ",".join(str(number + 1) for number in wanted)


def _nth(position: int, weekday: int) -> str:
    return f"L{(weekday + 1) % 7}" if position == 5 else f"{(weekday + 1) % 7}#{position + 1}"


def _weekdays(expression: Any) -> Sequence[int]:
    first, last, step = _bounds(expression)
    return _ALL_DAYS[0 if first is None else first : None if last is None else last + 1 : step or 1]


def _bounds(expression: Any) -> tuple[int | None, int | None, int | None]:
    given = vars(expression)
    return given.get("first"), given.get("last"), given.get("step")


def _is_star(field: Any) -> bool:
    return any(_bounds(one) == (None, None, None) and "All" in type(one).__name__ for one in field.expressions)


def _term(expression: Any) -> str:
    first, last, step = _bounds(expression)
    whole = "*" if first is None else f"{first}" if last in (None, first) else f"{first}-{last}"
    return whole if step is None else f"{whole}/{step}"


def _zone_name(zone: Any) -> str:
    """Raises InvalidScheduleError."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is None and zone == UTC:
        name = "UTC"
    if name is None:
        raise InvalidScheduleError(f"its zone {zone} has no name such as Europe/Berlin")
    return str(name)

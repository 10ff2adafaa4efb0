"""What all schedules will run in the next hours, for how long, and where that is more than the slots take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from scheduler.errors import ConfigError, InvalidScheduleError
from scheduler.model.capacity import SLOT_TYPES, THREAD
from scheduler.model.critical_path import Expected
from scheduler.model.defaults import POOLS
from scheduler.model.demand import Collision, Use, collisions, load
from scheduler.model.spec import TaskSpec
from scheduler.model.times import brief
from scheduler.model.zoned import offset_us, zone_of
from scheduler.ports import FOREVER, SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.read.estimate import slots_of
from scheduler.store.read.schedules import ScheduleRecord, records, upcoming
from scheduler.store.read.unserved import unserved_schedules
from scheduler.store.read.workers import read_fleet
from scheduler.store.rollups import expected
from scheduler.store.schedule_runs import GRAPH, decode_graph

MAX_HOURS = 7 * 24.0
MAX_FIRES = 300  # of one schedule that are kept apart; one with more wants its slots all the time
_MAX_USES = 100_000  # of slots, by all schedules
_MAX_TASKS = 1_000  # of a recurring graph whose places in time are worked out
LOAD_BUCKETS = 144  # ten minutes each, of a day
_OPTIONS = "SELECT name, options FROM schedd_schedules ORDER BY name"


class ScheduleForecast(NamedTuple):
    """The runs that one schedule will make. Instants and spans are microseconds.

    ``fires``: its fire times, the first 300; ``fire_count``: how many there are. ``every``: of one with more, how far
    apart they are on average. ``tasks``: of one run; ``pools``: where those run. ``p50``, ``p90``: how long a run
    takes, None if one of its kinds has not run lately. ``approximate``: it counts from the ends of its runs.
    ``trouble``: why there is no forecast. ``unserved``: why no live worker would run its tasks.
    """

    name: str
    kind: str
    recurrence: str
    tz: str
    paused: bool
    fires: list[int]
    fire_count: int
    every: int | None
    tasks: int
    pools: tuple[str, ...]
    p50: int | None
    p90: int | None
    approximate: bool = False
    trouble: str | None = None
    unserved: str | None = None


class ClockChange(NamedTuple):
    """The clock of a zone is changed at ``at``: its offset from UTC before and after (microseconds)."""

    tz: str
    at: int
    before: int
    after: int
    names: tuple[str, ...]


class Forecast(NamedTuple):
    """From ``since`` to ``until`` (microseconds). ``slots``: of the live workers, by (priority, slot type).

    ``load``: how many of these the schedules want on average, in 144 equal parts of the time. ``truncated``: there are
    too many runs to say all of it. Whatever else is scheduled comes on top.
    """

    since: int
    until: int
    schedules: list[ScheduleForecast]
    collisions: list[Collision]
    clock_changes: list[ClockChange]
    slots: dict[object, int]
    load: dict[object, list[float]]
    truncated: bool


class _Run(NamedTuple):
    """One run of a schedule: how long, and its tasks' (group, begin, end) in it; None for what is not known."""

    p50: int | None
    p90: int | None
    uses: list[tuple[object, int, int]]
    tasks: int
    pools: tuple[str, ...]


def forecast(tx: Tx, hours: float = 24.0) -> Forecast:
    """What the schedules will run in the next ``hours``, 168 at most. Raises ConfigError."""
    if not isinstance(hours, (int, float)) or isinstance(hours, bool) or not 0 < hours <= MAX_HOURS:
        raise ConfigError(f"hours must be a number above 0 and at most {MAX_HOURS:g}, not {brief(hours)}")
    now = tx.now
    until = now + round(hours * 3600 * SECOND)
    fleet, schedules = read_fleet(tx), records(tx)
    unserved = {one.name: one.reason for one in unserved_schedules(tx, fleet)}
    options = {row[0]: row[1] for row in tx.rows(_OPTIONS)}
    templates = [_template(schedule, options.get(schedule.name, "{}")) for schedule in schedules]
    usual = expected(tx, {spec.kind for template in templates for spec in template})
    found: list[ScheduleForecast] = []
    uses: list[Use] = []
    base: dict[object, float] = {}
    truncated = False
    for schedule, template in zip(schedules, templates, strict=True):
        run = _run(template, usual, fleet.slot_types)
        one = _of(schedule, run, now, until)._replace(unserved=unserved.get(schedule.name))
        found.append(one)
        if one.paused:
            continue
        if one.every:
            for group, start, end in run.uses:
                base[group] = base.get(group, 0.0) + (end - start) / one.every
        elif len(uses) + len(one.fires) * len(run.uses) > _MAX_USES:
            truncated = True
        else:
            uses += [Use(g, at + start, at + end, one.name) for at in one.fires for g, start, end in run.uses]
    groups = {use.group for use in uses} | set(base)
    slots = slots_of(fleet, groups)  # type: ignore[arg-type]
    drawn = load(uses, now, until, LOAD_BUCKETS)
    for group, steady in base.items():
        drawn[group] = [value + steady for value in drawn.get(group, [0.0] * LOAD_BUCKETS)]
    return Forecast(
        now,
        until,
        found,
        [*_always(base, slots, now, until, found), *collisions(uses, slots, base)],
        _clock_changes(found, now, until),
        slots,
        drawn,
        truncated,
    )


def _template(schedule: ScheduleRecord, options: str) -> list[TaskSpec]:
    """The tasks of each run; none for texts that no version of schedd wrote."""
    try:
        if schedule.graph is not None:
            return decode_graph(schedule.graph)
        return [msgspec.json.decode(options, type=TaskSpec)]
    except msgspec.MsgspecError:
        return []


def _run(template: Sequence[TaskSpec], usual: Mapping[str, Expected], sorts: Mapping[str, int]) -> _Run:
    """Each task begins when the last one that it waits for has ended."""
    pools = tuple(dict.fromkeys(POOLS[spec.priority] for spec in template if spec.priority in range(len(POOLS))))
    if any(spec.kind not in usual for spec in template) or not 0 < len(template) <= _MAX_TASKS:
        return _Run(None, None, [], len(template), pools)
    ends: list[tuple[int, int]] = []
    uses: list[tuple[object, int, int]] = []
    for spec in template:  # parents come first
        parents = [ends[edge.parent] for edge in spec.edges if edge.local and edge.parent < len(ends)]
        start, late = (max((end[i] for end in parents), default=0) for i in (0, 1))
        own = usual[spec.kind]
        ends.append((start + own.p50, late + own.p90))
        uses.append(((spec.priority, sorts.get(spec.kind, THREAD)), start, start + own.p50))
    return _Run(max(e[0] for e in ends), max(e[1] for e in ends), uses, len(template), pools)


def _of(schedule: ScheduleRecord, run: _Run, now: int, until: int) -> ScheduleForecast:
    recurrence = schedule.recurrence
    delay = recurrence.mode == "fixed_delay"
    one = ScheduleForecast(
        name=schedule.name,
        kind="graph" if schedule.kind == GRAPH else schedule.kind,
        recurrence=recurrence.describe(),
        tz=recurrence.tz or "UTC",
        paused=schedule.paused,
        fires=[],
        fire_count=0,
        every=None,
        tasks=run.tasks,
        pools=run.pools,
        p50=run.p50,
        p90=run.p90,
        approximate=delay,
    )
    if schedule.trouble is not None:
        return one._replace(trouble=schedule.trouble)
    try:
        coming = upcoming(schedule, 1, now)
        if not coming:
            under_way = delay and schedule.next_at == FOREVER
            return one._replace(trouble="its run is under way; the delay counts from its end" if under_way else None)
        first = max(now, coming[0])
        if first > until:
            return one
        fires = [first]
        following = _after_delay(schedule, first, run) if delay else _following(schedule, first)
        for at in following:
            if at > until:
                break
            fires.append(at)
            if len(fires) > MAX_FIRES:
                break
        if len(fires) <= MAX_FIRES:
            return one._replace(fires=fires, fire_count=len(fires))
        if delay:
            step = recurrence.interval_us + (run.p50 or 0)
            count = 1 + (until - first) // max(1, step)
        else:
            count = 1 + recurrence.count_between(first, until, schedule.anchor)
        return one._replace(fires=fires[:MAX_FIRES], fire_count=count, every=max(1, (until - now) // count))
    except InvalidScheduleError as error:
        return one._replace(trouble=str(error))


def _following(schedule: ScheduleRecord, at: int) -> Iterator[int]:
    while True:
        at = schedule.recurrence.next_after(at, schedule.anchor)
        yield at


def _after_delay(schedule: ScheduleRecord, at: int, run: _Run) -> Iterator[int]:
    while True:
        at += schedule.recurrence.interval_us + (run.p50 or 0)
        yield at


def _always(
    base: Mapping[object, float],
    slots: Mapping[object, int],
    since: int,
    until: int,
    found: Sequence[ScheduleForecast],
) -> list[Collision]:
    """Groups whose slots are wanted all the time, by more than there are."""
    names = tuple(one.name for one in found if one.every and not one.paused)
    return [
        Collision(group, since, until, round(wants), slots[group], names)
        for group, wants in base.items()
        if slots.get(group, 0) > 0 and wants > slots[group]
    ]


def _clock_changes(found: Sequence[ScheduleForecast], since: int, until: int) -> list[ClockChange]:
    names: dict[str, list[str]] = {}
    for one in found:
        if one.trouble is None and one.tz != "UTC":
            names.setdefault(one.tz, []).append(one.name)
    changes = []
    for tz, some in sorted(names.items()):
        zone = zone_of(tz)
        before, after = offset_us(zone, since), offset_us(zone, until)
        if before == after:  # a change that is undone within a week is none that a schedule needs to hear of
            continue
        low, high = since, until
        while high - low > SECOND:
            middle = (low + high) // 2
            low, high = (middle, high) if offset_us(zone, middle) == before else (low, middle)
        changes.append(ClockChange(tz, high // SECOND * SECOND, before, after, tuple(some)))
    return changes


def group_text(group: object) -> str:
    """``medium thread``: what a collision is about."""
    assert isinstance(group, tuple)
    priority, slot_type = group
    return f"{POOLS[priority]} {SLOT_TYPES[slot_type]}"

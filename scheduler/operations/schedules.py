"""Recurring schedules: which there are, what each will run and has run; pause, resume, trigger, backfill, delete."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scheduler.model.recurrence import ZoneMark, fold_marks
from scheduler.model.spec import TaskId
from scheduler.operations.desk import Desk
from scheduler.ports import FOREVER
from scheduler.store import schedule_sets, schedules
from scheduler.store.db.tx import Tx
from scheduler.store.read.forecast import Forecast as Forecast
from scheduler.store.read.forecast import ScheduleForecast as ScheduleForecast
from scheduler.store.read.forecast import forecast as forecast
from scheduler.store.read.forecast import group_text as group_text
from scheduler.store.read.kinds import KindRecord, get_kind
from scheduler.store.read.schedules import RunRecord as RunRecord
from scheduler.store.read.schedules import ScheduleRecord as ScheduleRecord
from scheduler.store.read.schedules import exists as exists
from scheduler.store.read.schedules import local_time as local_time
from scheduler.store.read.schedules import record as record
from scheduler.store.read.schedules import records as records
from scheduler.store.read.schedules import runs as runs
from scheduler.store.read.schedules import upcoming as upcoming
from scheduler.store.read.unserved import describe, unserved_schedules
from scheduler.store.read.workers import Fleet, read_fleet
from scheduler.store.schedule_runs import GRAPH as GRAPH
from scheduler.store.schedule_runs import decode_graph as decode_graph
from scheduler.store.schedule_sets import SetChange as SetChange
from scheduler.store.schedules import ScheduleSpec as ScheduleSpec
from scheduler.store.tasks.control import CancelResult as CancelResult

_HOUR = 3_600 * 1_000_000
_UNDER_WAY = "its run is under way; the delay counts from its end"


class SchedulesNow(NamedTuple):
    """All schedules by name. ``unserved``: why no worker would run the tasks of some; ``orphans``: names of those that
    their program no longer registers; ``notes``: the same for people; ``fleet``: the workers that take new work."""

    at: int
    found: list[ScheduleRecord]
    unserved: Mapping[str, str]
    orphans: set[str]
    notes: list[str]
    fleet: Fleet


class ScheduleAhead(NamedTuple):
    """One schedule, and the fire times that it still has, each beside the mark before it."""

    at: int
    one: ScheduleRecord
    kind: KindRecord | None
    slots: list[int]
    marks: list[tuple[ZoneMark, ZoneMark]]
    unserved: list[str]

    @property
    def notes(self) -> list[str]:
        """Why it does not run, or will not."""
        found = list(self.unserved)
        if self.one.paused:
            found.append(f"schedule {self.one.name!r} is paused")
        return found if self.nothing is None else [*found, self.nothing]

    @property
    def nothing(self) -> str | None:
        """Why no fire time can be named; None: there is one."""
        if self.one.recurrence.kind == "start":
            return "it runs when a worker starts and no other is live"
        if self.slots:
            return None
        return _UNDER_WAY if self.one.next_at == FOREVER else "its last fire time has passed"


class Triggered(NamedTuple):
    """``beside``: the first task of the run that goes on, where overlap is skip."""

    made: TaskId
    beside: int | None


class BackfillResult(NamedTuple):
    """Fire times (microseconds) that are run, or would be, and those that have run already."""

    run: list[int]
    left_out: list[int]


def seen(tx: Tx) -> SchedulesNow:
    """All schedules, and what is wrong with them."""
    found = records(tx)
    fleet = read_fleet(tx)
    unserved = unserved_schedules(tx, fleet)
    notes = [text for text, _ in describe(unserved)] if fleet.claiming else []
    return SchedulesNow(tx.now, found, {one.name: one.reason for one in unserved}, _orphans(found), notes, fleet)


def ahead(tx: Tx, name: str, count: int, *, even_broken: bool = False) -> ScheduleAhead:
    """The next fire times of a schedule. Of overdue ones only those are there that are still to be run.

    ``even_broken``: none of a schedule that cannot be read; else raises InvalidScheduleError. Raises
    UnknownScheduleError.
    """
    one = record(tx, name)
    unserved = [text for text, _ in describe(u for u in unserved_schedules(tx, read_fleet(tx)) if u.name == name)]
    slots = [] if even_broken and one.trouble is not None else upcoming(one, count, tx.now)
    marks = fold_marks([tx.now, *slots], one.recurrence.tz or "UTC")  # the first may be the first after a change
    return ScheduleAhead(tx.now, one, get_kind(tx, one.kind), slots, list(itertools.pairwise(marks)), unserved)


def nodes(one: ScheduleRecord) -> list[dict[str, Any]] | None:
    """The tasks of a recurring graph: names, kinds, and the names of those that each waits for; None for no graph."""
    if one.graph is None:
        return None
    tasks = decode_graph(one.graph)
    return [
        {"name": spec.key, "kind": spec.kind, "depends_on": [tasks[edge.parent].key for edge in spec.edges]}
        for spec in tasks
    ]


def register(desk: Desk, spec: ScheduleSpec) -> bool:
    """Store a schedule, or change the one of this name. Returns whether it is new. Raises InvalidScheduleError."""
    return desk.write(lambda tx: schedules.register(tx, spec))


def pause(desk: Desk, name: str) -> ScheduleRecord:
    """Fire nothing until resumed. Raises UnknownScheduleError."""
    return _pause(desk, name, True)


def resume(desk: Desk, name: str) -> ScheduleRecord:
    """Go on with the next fire time; those that passed meanwhile are left out. Raises UnknownScheduleError."""
    return _pause(desk, name, False)


def trigger(desk: Desk, name: str, slot: int | None = None) -> Triggered:
    """Run it once now, beside its fire times; or ``slot``: the run of this fire time, if it has not run.

    Raises UnknownScheduleError; InvalidScheduleError for an instant that is no fire time of it.
    """

    def work(tx: Tx) -> Triggered:
        beside = schedule_sets.run_beside(tx, name)
        return Triggered(schedule_sets.trigger(tx, name, slot), beside)

    return desk.write(work)


def backfill(
    desk: Desk, name: str, start: int, end: int | None, limit: int, *, dry_run: bool = False
) -> BackfillResult:
    """Run every missed fire time in a period, each once, however often this is called. ``end`` None: now.

    Raises UnknownScheduleError; ConfigError if there are more than ``limit``; InvalidScheduleError.
    """
    with desk.read() as tx:
        now = tx.now
        plan = schedule_sets.plan_backfill(tx, name, start, now if end is None else end, limit)
    done = plan.missing
    if not dry_run:
        done = []
        for some in schedule_sets.batches(plan):
            done += desk.write(lambda tx, some=some: schedule_sets.backfill(tx, name, some))  # type: ignore[misc]
    here = set(done)
    return BackfillResult(done, sorted([*plan.present, *(slot for slot in plan.missing if slot not in here)]))


def cancel_runs(desk: Desk, name: str, *, slot: int | None = None, run: str | None = None) -> CancelResult:
    """Cancel the tasks of its runs that have not ended: of all runs, of that of a fire time, or of the named one."""
    return desk.write(lambda tx: schedule_sets.cancel_runs(tx, name, slot=slot, run=run))


def delete(desk: Desk, name: str) -> None:
    """Forget a schedule; tasks that it made stay. Raises UnknownScheduleError."""
    desk.write(lambda tx: schedules.delete(tx, name))


def sync(desk: Desk, specs: Sequence[ScheduleSpec], owner: str, *, dry_run: bool = False) -> SetChange:
    """Make these the schedules of ``owner``, all or none. Raises DuplicateScheduleError."""
    return desk.plan(lambda tx: schedule_sets.sync(tx, specs, owner, dry_run=dry_run), dry_run=dry_run)


def _pause(desk: Desk, name: str, paused: bool) -> ScheduleRecord:
    def work(tx: Tx) -> ScheduleRecord:
        schedules.pause(tx, name, paused)
        return record(tx, name)

    return desk.write(work)


def _orphans(found: Iterable[ScheduleRecord]) -> set[str]:
    """Schedules without a key that their program no longer registers. They are named after their payload.

    It still registers another one of the kind, an hour or more after it last registered this one.
    """
    unnamed: dict[str, list[ScheduleRecord]] = {}
    for one in found:
        if re.fullmatch(re.escape(one.kind) + r"-[0-9a-f]{12}", one.name):
            unnamed.setdefault(one.kind, []).append(one)
    left = set()
    for group in unnamed.values():
        newest = max(one.seen_at for one in group)
        left |= {one.name for one in group if one.seen_at < newest - _HOUR}
    return left

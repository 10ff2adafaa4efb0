"""Changes of schedules by hand and as sets: an exact set of one owner, runs beside the fire times, cancelled runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError, InvalidScheduleError, UnknownScheduleError
from scheduler.model.catchup import Fire
from scheduler.model.recurrence import Recurrence
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.state import FIRST_TERMINAL
from scheduler.model.texts import rfc3339, storable
from scheduler.ports import FOREVER
from scheduler.store import audit
from scheduler.store.broken_rows import unreadable
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.schedule_runs import have_run, specs_by_hand, specs_of_run, template_of
from scheduler.store.schedules import ROW, ScheduleSpec, changes_of, check_change, delete, register
from scheduler.store.tasks.control import CancelResult, cancel
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.unknown import schedule_name

if TYPE_CHECKING:
    import sqlalchemy as sa


class SetChange(NamedTuple):
    """What applying a set of schedules changed: names in the order of the set, removed ones by name."""

    added: tuple[str, ...]
    updated: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def sync(tx: Tx, specs: Sequence[ScheduleSpec], owner: str, *, dry_run: bool = False) -> SetChange:
    """Make these the schedules of ``owner``: register each, and delete what the owner has besides.

    Schedules without an owner become the owner's if they are in the set; those of another owner are refused and never
    deleted. ``dry_run``: change nothing. Raises DuplicateScheduleError.
    """
    rows = tx.run(
        f"{ROW} WHERE owner = :owner OR name IN (SELECT name FROM {tx.dialect.rows({'name': str})} j) "
        f"ORDER BY name {'' if dry_run else tx.dialect.lock}",
        owner=owner,
        rows=bind_rows([(spec.name,) for spec in specs]),
    ).fetchall()
    present = {row.name: row for row in rows}
    added: list[str] = []
    updated: list[str] = []
    unchanged: list[str] = []
    for spec in specs:
        row = present.get(spec.name)
        if row is None:
            added.append(spec.name)
        else:
            check_change(row, spec)
            (updated if changes_of(row, spec) else unchanged).append(spec.name)
    wanted = {spec.name for spec in specs}
    removed = [row.name for row in rows if row.owner == owner and row.name not in wanted]
    if not dry_run:
        for spec in specs:
            register(tx, spec)
        for name in removed:
            delete(tx, name)
    return SetChange(tuple(added), tuple(updated), tuple(unchanged), tuple(removed))


def register_all(tx: Tx, specs: Sequence[ScheduleSpec]) -> None:
    """Register each, and delete none. Raises DuplicateScheduleError."""
    for spec in specs:
        register(tx, spec)


def read(tx: Tx, name: str, lock: str = "") -> tuple[sa.Row[Any], Recurrence, list[TaskSpec]]:
    """A schedule's row, recurrence and tasks. Raises UnknownScheduleError, InvalidScheduleError if unreadable."""
    row = tx.run(f"{ROW} WHERE name = :name {lock}", name=schedule_name(name)).first()
    if row is None:
        raise UnknownScheduleError(name)
    try:
        return row, Recurrence.from_json(row.recurrence), template_of(row)
    except (msgspec.MsgspecError, InvalidScheduleError) as error:
        raise unreadable(name, error) from None


# Not by walking up the primary keys.
_FIRST_OF_SLOT = (
    "SELECT min(r.id) FROM (SELECT t.id + 0 AS id FROM schedd_tasks t WHERE t.schedule = :name AND t.slot = :slot "
    "UNION ALL SELECT o.task_id + 0 FROM schedd_outcomes o WHERE o.schedule = :name AND o.slot = :slot) r"
)


def trigger(tx: Tx, name: str, slot: int | None = None) -> TaskId:
    """One run now: beside the fire times, or the one of a fire time that has not run. Returns its first task.

    Of a fire time that has run the id of that run, also if it was removed, with ``created`` False. Raises
    UnknownScheduleError, InvalidScheduleError if it cannot be read, and for an instant that is no fire time of it.
    """
    row, recurrence, template = read(tx, name, tx.dialect.lock)
    about = f"schedule {name}"
    if slot is None:
        made = enqueue(tx, specs_by_hand(row, template))
        audit.record(tx, "schedule triggered", tasks=[int(i) for i in made], subject=about)
        return made[0]
    _check_slot(row, recurrence, slot)
    there = tx.run(_FIRST_OF_SLOT, name=name, slot=slot).scalar()
    if there is None and slot == row.last_slot:
        there = row.last_task  # whose outcome is forgotten
    if there is not None:
        return TaskId(there, created=False)
    cause = f"trigger:{rfc3339(tx.now, exact=False)}"
    made = enqueue(tx, specs_of_run(row, template, Fire(slot), 0, at=tx.now, causation=cause))
    audit.record(tx, "schedule triggered", tasks=[int(i) for i in made], subject=about, slot=rfc3339(slot))
    return made[0]


def run_beside(tx: Tx, name: str) -> int | None:
    """The first task that has not ended of the last run by a fire time, where the schedule skips runs that overlap.

    A run by hand is not kept from beginning beside it. None if nothing goes on, or overlaps are allowed.
    """
    row = tx.run(f"{ROW} WHERE name = :name", name=schedule_name(name)).first()
    if row is None or row.overlap != "skip" or row.last_slot is None:
        return None
    first = tx.run(
        "SELECT min(t.id + 0) FROM schedd_tasks t WHERE t.schedule = :name AND t.slot = :slot "
        f"AND t.state < {FIRST_TERMINAL}",
        name=name,
        slot=row.last_slot,
    ).scalar()
    return None if first is None else int(first)


def _check_slot(row: sa.Row[Any], recurrence: Recurrence, slot: int) -> None:
    refuse_fixed_delay(row.name, recurrence)
    following = recurrence.next_after(slot - 1, row.anchor)
    if following == slot:
        return
    day = 86_400_000_000
    before = recurrence.newest_between(slot - 400 * day, slot, row.anchor)
    near = [rfc3339(at) for at in (before, following) if at is not None and at < FOREVER]
    hint = f"; near it are {' and '.join(near)}" if near else ""
    raise InvalidScheduleError(f"{rfc3339(slot)} is no slot of schedule {row.name!r}{hint}")


def refuse_fixed_delay(name: str, recurrence: Recurrence) -> None:
    """Raises InvalidScheduleError for a fixed delay, whose fire times follow from the ends of its runs."""
    if recurrence.mode == "fixed_delay":
        raise InvalidScheduleError(f"schedule {name!r} has a fixed delay: its slots follow from the ends of its runs")


def cancel_runs(tx: Tx, name: str, *, slot: int | None = None, run: str | None = None) -> CancelResult:
    """Cancel all tasks of the schedule's runs that have not ended, or of one run: by its fire time or its name.

    Raises UnknownScheduleError if there is no such schedule, nor a task of it.
    """
    one = "" if slot is None else " AND t.slot = :slot"
    run = None if run is None else storable(run)  # no run has another name
    if run is not None:
        one += " AND (t.key = :run OR t.correlation = :run OR CAST(t.id AS text) = :run)"
    given = {"slot": slot, "run": run}
    bound = {"name": schedule_name(name)} | {key: value for key, value in given.items() if value is not None}
    rows = tx.run(
        f"SELECT t.id, t.state FROM schedd_tasks t WHERE t.schedule = :name{one} ORDER BY t.id", **bound
    ).fetchall()
    if not rows:
        read(tx, name)
    return cancel(tx, [row.id for row in rows if row.state < FIRST_TERMINAL])


BACKFILL_BATCH = 500  # tasks that one transaction of a backfill stores


class Backfill(NamedTuple):
    """The fire times of a backfill, in microseconds: those to be run, and those that have run already."""

    missing: list[int]
    present: list[int]
    tasks: int  # of one run


def plan_backfill(tx: Tx, name: str, start: int, end: int, limit: int) -> Backfill:
    """The fire times from ``start`` to ``end`` (both included), by whether they have run.

    What retention has removed is remembered as long as outcomes are. Raises UnknownScheduleError,
    InvalidScheduleError, and ConfigError for more than ``limit`` fire times.
    """
    row, recurrence, template = read(tx, name)
    refuse_fixed_delay(name, recurrence)
    if end > tx.now:
        raise InvalidScheduleError(f"{rfc3339(end)} is still to come: a backfill ends now at the latest")
    if start > end:
        raise InvalidScheduleError(f"a backfill from {rfc3339(start)} to {rfc3339(end)} runs backwards")
    slots, more = recurrence.slots_between(start - 1, end, limit, row.anchor)
    if more:
        count = recurrence.count_between(start - 1, end, row.anchor)
        raise ConfigError(f"there are {count} slots, over the limit of {limit}: take a shorter time, or a higher limit")
    there = _have_run(tx, row, slots)
    return Backfill([s for s in slots if s not in there], [s for s in slots if s in there], len(template))


def _have_run(tx: Tx, row: sa.Row[Any], slots: Sequence[int]) -> set[int]:
    return {slot for _, slot in have_run(tx, [(row.name, slot) for slot in slots])} | {row.last_slot}


def backfill(tx: Tx, name: str, slots: Sequence[int]) -> list[int]:
    """Store the runs of those of these fire times that have none, due at once. Returns the fire times stored.

    Their cause is ``backfill:<when>``. Raises UnknownScheduleError, InvalidScheduleError if it cannot be read.
    """
    row, _, template = read(tx, name, tx.dialect.lock)
    there = _have_run(tx, row, slots)
    missing = [slot for slot in slots if slot not in there]
    cause = f"backfill:{rfc3339(tx.now, exact=False)}"
    tasks: list[TaskSpec] = []
    for slot in missing:
        tasks += specs_of_run(row, template, Fire(slot), len(tasks), at=tx.now, causation=cause)
    if tasks:
        enqueue(tx, tasks)
        ends = {"from": rfc3339(missing[0]), "to": rfc3339(missing[-1])}
        audit.record(tx, "schedule backfilled", subject=f"schedule {name}", window=ends, count=len(missing))
    return missing


def batches(plan: Backfill) -> list[list[int]]:
    """The fire times to be run, cut so that one transaction stores no more than some hundred tasks."""
    size = max(1, BACKFILL_BATCH // plan.tasks)
    return [plan.missing[at : at + size] for at in range(0, len(plan.missing), size)]

"""Recurring schedules as people see them: what is stored of each, and what it will run next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.errors import InvalidScheduleError, UnknownScheduleError
from scheduler.model.recurrence import Recurrence, UnreadableRule, fold_marks
from scheduler.model.state import RETRY, SUCCESS, TaskState
from scheduler.model.times import LAST
from scheduler.ports import FOREVER
from scheduler.store.broken_rows import unreadable
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.table_names import NUMBERS
from scheduler.store.db.tx import Tx
from scheduler.store.schedule_runs import slot_key
from scheduler.store.unknown import schedule_name

if TYPE_CHECKING:
    import sqlalchemy as sa


class ScheduleRecord(NamedTuple):
    """A stored schedule. Instants are microseconds, UTC; ``next_at`` is FOREVER while a fixed-delay run goes on.

    NEVER once its end has passed. ``jitter``: microseconds. ``graph``: the tasks of each run as JSON, None for
    one task. ``trouble`` says why the recurrence cannot be read, if it cannot.
    """

    name: str
    kind: str
    payload: str
    recurrence: Recurrence
    catchup: str
    overlap: str
    anchor: int
    next_at: int
    paused: bool
    last_slot: int | None
    last_task: int | None
    created_at: int
    updated_at: int
    seen_at: int
    jitter: int = 0
    owner: str | None = None
    graph: str | None = None
    trouble: str | None = None


_RECORD = (
    "SELECT name, kind, payload, recurrence, catchup, overlap, anchor, next_at, paused, last_slot, last_task, "
    "created_at, updated_at, seen_at, jitter, owner, graph FROM schedd_schedules"
)


_NUMBERS = [name for name in NUMBERS["schedd_schedules"] if name != "paused"]


def _record_of(row: sa.Row[tuple[object, ...]]) -> ScheduleRecord:
    values = row._asdict()
    values["paused"] = bool(row.paused)
    try:
        values["recurrence"] = Recurrence.from_json(row.recurrence)
    except InvalidScheduleError as error:
        values |= {"recurrence": UnreadableRule("cron", str(error)), "trouble": str(error)}
    for name in _NUMBERS:
        if values[name] is not None and not isinstance(values[name], int):
            trouble = f"{name} is no number; see `schedctl doctor`"
            values |= {name: FOREVER, "recurrence": UnreadableRule("cron", trouble), "trouble": trouble}
    return ScheduleRecord(**values)


def records(tx: Tx) -> list[ScheduleRecord]:
    """All schedules, by name."""
    return [_record_of(row) for row in tx.run(f"{_RECORD} ORDER BY name")]


def record(tx: Tx, name: str) -> ScheduleRecord:
    """One schedule. Raises UnknownScheduleError."""
    row = tx.run(f"{_RECORD} WHERE name = :name", name=schedule_name(name)).first()
    if row is None:
        raise UnknownScheduleError(name)
    return _record_of(row)


def exists(tx: Tx, name: str) -> bool:
    return tx.run("SELECT 1 FROM schedd_schedules WHERE name = :name", name=name).first() is not None


def local_time(schedule: ScheduleRecord) -> str | None:
    """Its next fire time on the clock of its zone: ``09:00 Asia/Tokyo``. A schedule in a wrong zone shows it here."""
    tz = schedule.recurrence.tz
    if not tz or schedule.trouble is not None or schedule.next_at >= FOREVER:
        return None
    try:
        (mark,) = fold_marks([schedule.next_at], tz)
    except InvalidScheduleError:
        return None
    return f"{mark.local[11:16]} {tz}"


def upcoming(schedule: ScheduleRecord, count: int, now: int) -> list[int]:
    """Its next instants, microseconds; for a fixed delay only the one that is known, if it is. Of slots that are
    overdue only those that are still to be run. Fewer where the calendar ends.

    Raises InvalidScheduleError if it cannot be read.
    """
    if schedule.trouble is not None:
        raise unreadable(schedule.name, schedule.trouble)
    if schedule.next_at >= FOREVER:
        return []
    instants = [_first(schedule, now)]
    if instants[0] >= FOREVER:
        return []
    while len(instants) < count and schedule.recurrence.mode != "fixed_delay":
        after = instants[-1] if schedule.catchup == "all" else max(instants[-1], now)
        try:
            following = schedule.recurrence.next_after(after, schedule.anchor)
        except InvalidScheduleError:
            break
        if following > LAST:
            break
        instants.append(following)
    return instants


def _first(schedule: ScheduleRecord, now: int) -> int:
    recurrence, next_at, anchor = schedule.recurrence, schedule.next_at, schedule.anchor
    if next_at > now:
        return next_at
    if schedule.paused or schedule.catchup == "none":
        return recurrence.next_after(now, anchor)
    if schedule.catchup == "all" or recurrence.mode == "fixed_delay":
        return next_at
    newest = recurrence.newest_between(next_at - 1, now, anchor)  # which one run for all of them has
    return next_at if newest is None else newest


class RunRecord(NamedTuple):
    """One run of a schedule, as :class:`scheduler.client.info.RunInfo` has it. Instants are microseconds, UTC."""

    schedule: str
    run: str
    slot: int | None
    origin: str
    state: TaskState
    states: dict[TaskState, int]
    first: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    error: str | None


_OF_STATE = ", ".join(f"sum(CASE WHEN t.state = {s.code} THEN 1 ELSE 0 END) AS s{s.code}" for s in TaskState)
# A task alone that was triggered has no key, and the tasks of a graph have one correlation.
_BY_HAND = (
    "CASE WHEN t.slot IS NOT NULL THEN NULL WHEN t.key IS NULL THEN CAST(t.id AS text) "
    "ELSE coalesce(t.correlation, CAST(t.id AS text)) END"
)
_RUNS = (
    f"SELECT t.slot, {_BY_HAND} AS by_hand, min(t.id) AS first, min(t.created_at) AS created_at, "
    "min(t.started_at) AS started_at, max(t.finished_at) AS finished_at, min(t.causation) AS causation, "
    f"min(CASE WHEN t.state > {SUCCESS} THEN t.error END) AS error, {_OF_STATE} "
    f"FROM schedd_tasks t WHERE t.schedule = :name AND {{which}} GROUP BY t.slot, {_BY_HAND}"
)
# Which runs there are, without their tasks: by the index of slots alone, but for those by hand.
_FIRSTS = (
    "SELECT slot, by_hand, first FROM ("
    "SELECT t.slot, CAST(NULL AS text) AS by_hand, min(t.id) AS first FROM schedd_tasks t "
    "WHERE {of_it} AND t.slot IS NOT NULL GROUP BY t.slot UNION ALL "
    f"SELECT NULL, {_BY_HAND}, min(t.id) FROM schedd_tasks t WHERE {{of_it}} AND t.slot IS NULL GROUP BY {_BY_HAND}"
    ") r WHERE first < :cursor ORDER BY first DESC LIMIT :limit"
)
_ALL = _FIRSTS.format(of_it="t.schedule = :name")
# Not by the index of slots: a schedule that fires often has its newest runs among the newest tasks of all.
_AMONG_NEWEST = _FIRSTS.format(of_it="t.id >= :low AND t.id < :cursor AND coalesce(t.schedule, '') = :name")
_NEWEST = 2_000  # tasks


def runs(tx: Tx, name: str, limit: int, cursor: int | None = None) -> list[RunRecord]:
    """The runs of a schedule whose tasks are still there, newest first. ``cursor``: only those before this first id.

    Also of a schedule that was deleted. Raises UnknownScheduleError if there is neither the schedule nor a run.
    """
    before = int(tx.run("SELECT max(id) FROM schedd_tasks").scalar() or 0) + 1 if cursor is None else cursor
    bound = {"name": schedule_name(name), "limit": limit, "cursor": before}
    chosen = tx.run(_AMONG_NEWEST, **bound, low=before - _NEWEST).fetchall()
    if len(chosen) < limit:
        chosen = tx.run(_ALL, **bound).fetchall()
    found = [_run_of(name, row) for row in _rows_of(tx, name, chosen)]
    if not found and cursor is None:
        record(tx, name)
    return sorted(found, key=lambda run: run.first, reverse=True)


def _rows_of(tx: Tx, name: str, chosen: Sequence[sa.Row[Any]]) -> Iterator[sa.Row[Any]]:
    slots = [row.slot for row in chosen if row.slot is not None]
    by_hand = [row.by_hand for row in chosen if row.slot is None]
    alone = [row.first for row in chosen if row.slot is None and row.by_hand == str(row.first)]
    names = f"(SELECT run FROM {tx.dialect.rows({'run': str})} j)"
    for which, values in (
        (tx.dialect.among("t.slot"), {"ids": tx.dialect.bind_ids(slots)} if slots else {}),
        (f"t.slot IS NULL AND {tx.dialect.among('t.id')}", {"ids": tx.dialect.bind_ids(alone)} if alone else {}),
        (
            f"t.slot IS NULL AND t.correlation IN {names}",
            {"rows": bind_rows([(run,) for run in by_hand])} if len(by_hand) > len(alone) else {},
        ),
    ):
        if values:
            yield from tx.run(_RUNS.format(which=which), name=name, **values)


def _run_of(name: str, row: sa.Row[Any]) -> RunRecord:
    states = {s: int(count) for s in TaskState if (count := getattr(row, f"s{s.code}"))}
    state = _state_of(states)
    cause = (row.causation or "").partition(":")[0]
    origin = cause if cause in ("backfill", "trigger") else "schedule"
    return RunRecord(
        name,
        row.by_hand if row.slot is None else slot_key(name, row.slot),
        row.slot,
        "trigger" if row.slot is None else origin,
        state,
        states,
        row.first,
        row.created_at,
        row.started_at,
        row.finished_at if state.terminal else None,
        row.error,
    )


def _state_of(states: dict[TaskState, int]) -> TaskState:
    """The state of a run by those of its tasks: running once one has begun; how the worst has ended once all have."""
    if len(states) == 1:
        return next(iter(states))
    if any(not state.terminal for state in states):
        begun = any(state.code >= RETRY for state in states)
        return TaskState.RUNNING if begun else TaskState.SCHEDULED
    for state in (TaskState.DEAD, TaskState.FAILED, TaskState.CANCELLED, TaskState.SUCCESS):
        if state in states:
            return state
    return TaskState.SKIPPED

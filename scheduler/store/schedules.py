"""Recurring schedules: registering them, and turning due slots into tasks, one per slot across the fleet."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from scheduler.errors import DuplicateScheduleError, InvalidScheduleError, UnknownScheduleError
from scheduler.model import state as st
from scheduler.model.catchup import PER_TICK, Fire, plan
from scheduler.model.fingerprint import describe
from scheduler.model.recurrence import Recurrence
from scheduler.model.retry import MAX_COUNT
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.times import to_datetime
from scheduler.ports import FOREVER
from scheduler.store import audit
from scheduler.store.broken_rows import unreadable
from scheduler.store.db.dialect import Dialect, bind_rows, dialect_of, prepared
from scheduler.store.db.statements import run
from scheduler.store.predicates import exists, same
from scheduler.store.tasks.enqueue import enqueue

log = logging.getLogger("scheduler.store")

_BATCH = 256  # schedules that one tick fires: work that waits goes on between two ticks
# By name, as everywhere: of a * PostgreSQL refuses what it has prepared once the next version has added a column.
_ROW = (
    "SELECT name, kind, payload, options, recurrence, catchup, overlap, anchor, next_at, paused, last_task "
    "FROM schedd_schedules t"
)
NEXT_LOOK = (
    f"SELECT min(CASE WHEN next_at >= {FOREVER} THEN 0 ELSE next_at END) FROM schedd_schedules "
    f"WHERE paused = 0 OR next_at >= {FOREVER}"
)


class ScheduleSpec(NamedTuple):
    """A recurrence to register: its name, when, and the task that each slot makes. ``replace``: also in place of a
    schedule of another kind."""

    name: str
    recurrence: Recurrence
    task: TaskSpec
    catchup: str = "skip"
    overlap: str = "allow"
    run_on_startup: bool = False
    replace: bool = False


class Fired(NamedTuple):
    """Tasks that one tick made of one schedule; or why it could not."""

    name: str
    ids: list[TaskId]
    trouble: str | None = None


def register(connection: sa.Connection, dialect: Dialect, spec: ScheduleSpec, now: int) -> bool:
    """Insert or update by name; the slot that stands keeps standing unless the recurrence changed.

    Returns whether the schedule is new. Raises DuplicateScheduleError if it is one of another kind, unless ``replace``.
    With ``run_on_startup`` a fresh or overdue schedule runs once now; with
    catch-up ``all`` an overdue one runs through the slots that it missed, which are due at once and none of them lost.
    """
    recurrence = spec.recurrence.to_json()
    bound = {
        "name": spec.name,
        "kind": spec.task.kind,
        "payload": spec.task.payload,
        "options": msgspec.json.encode(msgspec.structs.replace(spec.task, payload="")).decode(),
        "recurrence": recurrence,
        "catchup": spec.catchup,
        "overlap": spec.overlap,
        "now": now,
        "next_at": spec.recurrence.next_after(now, now),
    }
    fresh = (
        connection.execute(
            prepared(
                "INSERT INTO schedd_schedules (name, kind, payload, options, recurrence, catchup, overlap, anchor, "
                "next_at, created_at, updated_at, seen_at) VALUES (:name, :kind, :payload, :options, :recurrence, "
                ":catchup, :overlap, :now, :next_at, :now, :now, :now) ON CONFLICT (name) DO NOTHING RETURNING name"
            ),
            bound,
        ).first()
        is not None
    )
    if not fresh:
        row = _locked(connection, dialect, spec.name)
        _tell_change(row, spec)
        was, becomes = _shown(row), {name: bound[name] for name in _SHOWN}
        if was != becomes:
            before, after = _changed(was, becomes)
            about = f"schedule {spec.name}"
            audit.record(connection, now, "schedule replaced", subject=about, before=before, after=after)
        connection.execute(
            prepared(
                "UPDATE schedd_schedules SET kind = :kind, payload = :payload, options = :options, catchup = :catchup, "
                "overlap = :overlap, seen_at = :now, "
                "updated_at = CASE WHEN recurrence = :recurrence AND payload = :payload THEN updated_at ELSE :now END, "
                "anchor = CASE WHEN recurrence = :recurrence THEN anchor ELSE :now END, "
                "next_at = CASE WHEN recurrence = :recurrence THEN next_at ELSE :next_at END, "
                "recurrence = :recurrence WHERE name = :name"
            ),
            bound,
        )
    else:
        shown = {name: bound[name] for name in _SHOWN}
        audit.record(connection, now, "schedule registered", subject=f"schedule {spec.name}", after=shown)
        # it may have been deleted, and brought back while a run of it goes on; not by walking down the primary key
        connection.execute(
            prepared(
                "UPDATE schedd_schedules SET last_task = (SELECT max(t.id + 0) FROM schedd_tasks t "
                f"WHERE t.schedule = :name AND t.slot IS NOT NULL AND t.state < {st.FIRST_TERMINAL}) WHERE name = :name"
            ),
            {"name": spec.name},
        )
    if spec.run_on_startup:
        row = _locked(connection, dialect, spec.name)
        overdue = row is not None and not fresh and row.next_at <= now
        if row is not None and not row.paused and (fresh or (overdue and spec.catchup != "all")):
            fire = Fire(now)
            if overdue and spec.catchup == "last" and spec.recurrence.mode != "fixed_delay":
                fire = Fire(now, spec.recurrence.count_between(row.next_at - 1, now, row.anchor), row.next_at)
            _fire(connection, dialect, [_Due(row, [fire], _after(spec.recurrence, row.anchor, now))], now)
    return fresh


_SHOWN = ("kind", "payload", "options", "recurrence", "catchup", "overlap")  # in the audit


def _shown(row: sa.Row[Any] | None) -> dict[str, Any]:
    return {} if row is None else {name: row._mapping[name] for name in _SHOWN}


def _changed(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What differs, before and after."""
    names = [name for name in _SHOWN if before.get(name) != after[name]]
    return {name: before.get(name) for name in names}, {name: after[name] for name in names}


def _tell_change(row: sa.Row[Any] | None, spec: ScheduleSpec) -> None:
    """Names are chosen by people, and each is one schedule: what takes another's place by mistake is refused."""
    if row is None:
        return
    if row.kind != spec.task.kind:
        if not spec.replace:
            raise DuplicateScheduleError(
                spec.name,
                f"makes tasks of kind {row.kind}: give the one of kind {spec.task.kind} another key(), or say "
                f"schedule(replace=True), or delete the present one (`schedctl cron delete {spec.name}`)",
            )
        log.warning("schedule %r was one of kind %s, and is one of %s now", spec.name, row.kind, spec.task.kind)
    elif row.recurrence != spec.recurrence.to_json():
        try:
            before = Recurrence.from_json(row.recurrence).describe()
        except InvalidScheduleError:
            before = "unreadable"
        log.info("schedule %r was %s, and is %s now", spec.name, before, spec.recurrence.describe())


def _after(recurrence: Recurrence, anchor: int, now: int) -> int:
    return FOREVER if recurrence.mode == "fixed_delay" else recurrence.next_after(now, anchor)


def _locked(connection: sa.Connection, dialect: Dialect, name: str) -> sa.Row[Any] | None:
    return connection.execute(prepared(f"{_ROW} WHERE name = :name {dialect.lock}"), {"name": name}).first()


def next_due(connection: sa.Connection, dialect: Dialect, aside: Collection[str] = ()) -> int:
    """When the next schedule is due, but for those set ``aside``; FOREVER if none is."""
    found = connection.execute(
        prepared(f"SELECT min(next_at) FROM schedd_schedules WHERE paused = 0 {_but(dialect, aside)}"), _names(aside)
    ).scalar()
    return FOREVER if found is None else int(found)


def next_look(connection: sa.Connection) -> int:
    """When there may be something to do for :func:`tick`: 0 while a fixed-delay run goes on, FOREVER for never."""
    ((found,),) = run(connection, NEXT_LOOK, {})
    return FOREVER if found is None else int(found)


def _but(dialect: Dialect, aside: Collection[str]) -> str:
    return f"AND name NOT IN (SELECT name FROM {dialect.rows({'name': str})} j)" if aside else ""


def _names(aside: Collection[str]) -> dict[str, str]:
    return {"rows": bind_rows([(name,) for name in aside])} if aside else {}


class _Due(NamedTuple):
    """A schedule's row, the slots of it that are to become tasks, and when it is due next."""

    row: sa.Row[Any]
    fires: list[Fire]
    next_at: int


def tick(connection: sa.Connection, dialect: Dialect, now: int, grace: int, aside: Collection[str] = ()) -> list[Fired]:
    """Make the tasks of slots that are due, about a thousand at most. Engines that tick at once share the schedules
    out by row locks.

    ``aside``: names to skip. A schedule that cannot be read or fired is returned as trouble; it stops no other.
    """
    _, done = end_delays(connection, now, aside)
    rows = connection.execute(
        prepared(
            f"{_ROW} WHERE paused = 0 AND next_at <= :now {_but(dialect, aside)} "
            f"ORDER BY next_at LIMIT {_BATCH} {dialect.skip_locked}"
        ),
        {"now": now} | _names(aside),
    ).fetchall()
    due: list[_Due] = []
    planned = 0
    for row in rows:
        if planned >= PER_TICK:
            break
        try:
            recurrence = Recurrence.from_json(row.recurrence)
            fires, next_at = plan(recurrence, row.anchor, row.next_at, now, row.catchup, grace)
            _spec_of(row)
        except Exception as error:
            done.append(Fired(row.name, [], describe(error).text))
            continue
        planned += len(fires)
        due.append(_Due(row, fires, next_at))
    return done + _fire_apart(connection, dialect, due, now)


def _fire_apart(connection: sa.Connection, dialect: Dialect, due: list[_Due], now: int) -> list[Fired]:
    """Fire them together; one by one if the database refuses that, so that one schedule stops no other."""
    try:
        with connection.begin_nested() if due else nullcontext():
            made = _fire(connection, dialect, due, now)
    except (sa.exc.OperationalError, sa.exc.InterfaceError):
        raise  # trouble with the database, not with a row
    except Exception as error:
        if len(due) == 1:
            return [Fired(due[0].row.name, [], describe(error).text)]
        return [fired for one in due for fired in _fire_apart(connection, dialect, [one], now)]
    return [Fired(one.row.name, ids) for one, ids in zip(due, made, strict=True)]


def end_delays(connection: sa.Connection, now: int, aside: Collection[str] = ()) -> tuple[list[str], list[Fired]]:
    """A fixed delay counts from the end of its run: give those whose run has ended their next slot.

    Returns the names of those that have one now, and those for which that was not possible. What another transaction
    holds is passed over: the engine must not wait for it.
    """
    dialect = dialect_of(connection)
    rows = connection.execute(
        prepared(
            "SELECT t.name, t.recurrence, t.last_task, r.state, r.finished_at FROM schedd_schedules t "
            f"LEFT JOIN schedd_tasks r ON r.id = t.last_task WHERE t.next_at = {FOREVER} "
            f"AND (r.id IS NULL OR r.state >= {st.FIRST_TERMINAL}) {dialect.skip_locked}"
        )
    ).fetchall()
    ended: list[tuple[str, int, int]] = []
    troubles = []
    for row in rows:
        if row.name in aside:
            continue
        try:
            recurrence = Recurrence.from_json(row.recurrence)
            following = _after_end(recurrence, now if row.finished_at is None else row.finished_at, now)
        except Exception as error:
            troubles.append(Fired(row.name, [], describe(error).text))
            continue
        ended.append((row.name, following, row.last_task or 0))
    if not ended:
        return [], troubles
    # Another engine may have seen the same end, and have started the next run already.
    source = dialect.rows({"name": str, "following": int, "last": int})
    given = connection.execute(
        prepared(
            f"UPDATE schedd_schedules SET next_at = j.following FROM {source} j "
            f"WHERE schedd_schedules.name = j.name AND next_at = {FOREVER} AND coalesce(last_task, 0) = j.last "
            "RETURNING schedd_schedules.name"
        ),
        {"rows": bind_rows(ended)},
    )
    return [row[0] for row in given], troubles


def _after_end(recurrence: Recurrence, end: int, now: int) -> int:
    return recurrence.next_after(end, end) if recurrence.mode == "fixed_delay" else now


def _spec_of(row: sa.Row[Any]) -> TaskSpec:
    """The task that each slot of the schedule makes. Raises msgspec.MsgspecError."""
    spec = msgspec.json.decode(row.options, type=TaskSpec)
    spec.payload = row.payload
    return spec


def _fire(connection: sa.Connection, dialect: Dialect, due: Sequence[_Due], now: int) -> list[list[TaskId]]:
    """Make the tasks of these schedules' slots. Returns the new tasks of each schedule."""
    if not due:
        return []
    present = _present(connection, dialect, [(one.row.name, fire.slot) for one in due for fire in one.fires])
    in_turn = {one.row.name: one.row.last_task for one in due if one.row.overlap == "skip" or one.next_at >= FOREVER}
    going = _still_going(connection, dialect, [task_id for task_id in in_turn.values() if task_id is not None])
    left: list[list[Fire]] = []
    tasks: list[TaskSpec] = []
    for row, fires, _ in due:
        fires = [fire for fire in fires if (row.name, fire.slot) not in present]
        if in_turn.get(row.name) in going:
            fires = []  # a fixed delay that was changed meanwhile waits for that run: next_at is FOREVER
        elif row.overlap == "skip" and len(fires) > 1:  # several at once would overlap each other
            first, *_, last = fires
            fires = [last._replace(missed=first.missed, missed_since=first.missed_since)]
        left.append(fires)
        spec = _spec_of(row)
        tasks += [
            msgspec.structs.replace(
                spec,
                run_at=fire.slot,
                delay=0,
                key=slot_key(row.name, fire.slot),
                conflict="keep",
                schedule=row.name,
                slot=fire.slot,
                missed=None if fire.missed is None else min(fire.missed, MAX_COUNT),
                missed_since=fire.missed_since,
            )
            for fire in fires
        ]
    ids = iter(enqueue(connection, tasks, now, ours=True) if tasks else [])
    made = [list(islice(ids, len(fires))) for fires in left]
    changes = [
        (one.row.name, one.next_at, fires[-1].slot if fires else None, int(new[-1]) if new else None)
        for one, fires, new in zip(due, left, made, strict=True)
    ]
    source = dialect.rows({"name": str, "following": int, "slot": int, "task": int})
    connection.execute(
        prepared(
            "UPDATE schedd_schedules SET next_at = j.following, last_slot = coalesce(j.slot, last_slot), "
            f"last_task = coalesce(j.task, last_task) FROM {source} j WHERE schedd_schedules.name = j.name"
        ),
        {"rows": bind_rows(changes)},
    )
    return made


def _present(connection: sa.Connection, dialect: Dialect, slots: list[tuple[str, int]]) -> set[tuple[str, int]]:
    """Slots (schedule, time) that have a task already, whatever became of it: a clock that jumps back must not run them
    again."""
    if not slots:
        return set()
    there = exists("t.schedule", f"FROM schedd_tasks t WHERE {same('t.schedule', 'j.name')} AND t.slot = j.slot")
    rows = connection.execute(
        prepared(f"SELECT j.name, j.slot FROM {dialect.rows({'name': str, 'slot': int})} j WHERE {there}"),
        {"rows": bind_rows(slots)},
    )
    return {(row[0], row[1]) for row in rows}


def _still_going(connection: sa.Connection, dialect: Dialect, ids: list[int]) -> set[int]:
    """Those of these tasks that have not ended."""
    if not ids:
        return set()
    rows = connection.execute(
        prepared(f"SELECT t.id FROM schedd_tasks t WHERE t.id IN {dialect.ids()} AND t.state < {st.FIRST_TERMINAL}"),
        {"ids": bind_rows(ids)},
    )
    return {row[0] for row in rows}


def slot_key(name: str, slot: int) -> str:
    """The key of a slot's task: ``name@2026-01-31T02:30:00Z``."""
    return f"{name}@{to_datetime(slot).isoformat().replace('+00:00', 'Z')}"


def pause(connection: sa.Connection, name: str, now: int, paused: bool) -> None:
    """Fire nothing until resumed; resuming goes on with the next slot. Raises UnknownScheduleError."""
    row = _locked(connection, dialect_of(connection), name)  # an engine may be firing it at this moment
    if row is None:
        raise UnknownScheduleError(name)
    next_at, anchor = row.next_at, row.anchor
    if row.paused and not paused and next_at <= now:
        next_at = _readable(name, row.recurrence).next_after(now, anchor)
    elif row.paused and not paused and is_ahead(row, now):
        anchor = min(anchor, now)
        next_at = _readable(name, row.recurrence).next_after(now, anchor)
    connection.execute(
        prepared(
            "UPDATE schedd_schedules SET paused = :paused, next_at = :next, anchor = :anchor, updated_at = :now "
            "WHERE name = :name"
        ),
        {"name": name, "paused": int(paused), "next": next_at, "anchor": anchor, "now": now},
    )
    if bool(row.paused) != paused:
        audit.record(connection, now, f"schedule {'paused' if paused else 'resumed'}", subject=f"schedule {name}")


def is_ahead(row: sa.Row[Any], now: int) -> bool:
    """Whether its recurrence has a slot before the one that it waits for, which a clock that was ahead has found."""
    try:
        recurrence = Recurrence.from_json(row.recurrence)
    except InvalidScheduleError:
        return False
    next_at = int(row.next_at)
    return next_at < FOREVER and recurrence.next_after(now, min(row.anchor, now)) < next_at


def _readable(name: str, text: str) -> Recurrence:
    try:
        return Recurrence.from_json(text)
    except InvalidScheduleError as error:
        raise unreadable(name, error) from None


def trigger(connection: sa.Connection, name: str, now: int) -> TaskId:
    """One run now, beside the slots. Raises UnknownScheduleError, InvalidScheduleError if it cannot be read."""
    row = connection.execute(prepared(f"{_ROW} WHERE name = :name"), {"name": name}).first()
    if row is None:
        raise UnknownScheduleError(name)
    try:
        spec = msgspec.json.decode(row.options, type=TaskSpec)
    except msgspec.MsgspecError as error:
        raise unreadable(name, error) from None
    spec = msgspec.structs.replace(spec, payload=row.payload, key=None, run_at=0, delay=0, schedule=name)
    made = enqueue(connection, [spec], now, ours=True)[0]
    audit.record(connection, now, "schedule triggered", tasks=[int(made)], subject=f"schedule {name}")
    return made


def delete(connection: sa.Connection, name: str, now: int) -> None:
    """Forget the schedule; tasks it made stay. Raises UnknownScheduleError."""
    row = _locked(connection, dialect_of(connection), name)
    if row is None:
        raise UnknownScheduleError(name)
    connection.execute(prepared("DELETE FROM schedd_schedules WHERE name = :name"), {"name": name})
    audit.record(connection, now, "schedule deleted", subject=f"schedule {name}", before=_shown(row))

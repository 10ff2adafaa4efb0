"""Recurring schedules: registering them, and turning due slots into tasks, one per slot across the fleet."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from scheduler.errors import InvalidScheduleError, UnknownScheduleError
from scheduler.model import state as st
from scheduler.model.catchup import PER_TICK, Fire, plan
from scheduler.model.fingerprint import describe
from scheduler.model.recurrence import Recurrence
from scheduler.model.retry import MOST
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.times import to_datetime
from scheduler.ports import FOREVER
from scheduler.store.dialect import Dialect, bind_rows, dialect_of, prepared
from scheduler.store.enqueue import enqueue
from scheduler.store.read_schedules import unreadable
from scheduler.store.statement import run

log = logging.getLogger("scheduler.store")

_BATCH = 100
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
    """A recurrence to register: its name, when, and the task that each slot makes."""

    name: str
    recurrence: Recurrence
    task: TaskSpec
    catchup: str = "skip"
    overlap: str = "allow"
    run_on_startup: bool = False


class Fired(NamedTuple):
    """Tasks that one tick made of one schedule; or why it could not."""

    name: str
    ids: list[TaskId]
    trouble: str | None = None


def register(connection: sa.Connection, dialect: Dialect, spec: ScheduleSpec, now: int) -> bool:
    """Insert or update by name; the slot that stands keeps standing unless the recurrence changed.

    Returns whether the schedule is new. With ``run_on_startup`` a fresh or overdue schedule runs once now; with
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
        _tell_change(_locked(connection, dialect, spec.name), spec)
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
    else:  # it may have been deleted, and brought back while a run of it goes on; not by walking down the primary key
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
            _fire(connection, dialect, row, [fire], _after(spec.recurrence, row.anchor, now), now)
    return fresh


def _tell_change(row: sa.Row[Any] | None, spec: ScheduleSpec) -> None:
    """Names are chosen by people, and each is one schedule: what takes another's place by mistake is to be seen."""
    if row is None:
        return
    if row.kind != spec.task.kind:
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


def tick(connection: sa.Connection, dialect: Dialect, now: int, grace: int, aside: Collection[str] = ()) -> list[Fired]:
    """Make the tasks of slots that are due, about a thousand at most. Engines that tick at once share the schedules
    out by row locks.

    ``aside``: names that are left alone. A schedule that cannot be read or fired is told as trouble; it stops no other.
    """
    _, done = end_delays(connection, now, aside)
    rows = connection.execute(
        prepared(
            f"{_ROW} WHERE paused = 0 AND next_at <= :now {_but(dialect, aside)} "
            f"ORDER BY next_at LIMIT {_BATCH} {dialect.skip_locked}"
        ),
        {"now": now} | _names(aside),
    ).fetchall()
    made = 0
    for row in rows:
        if made >= PER_TICK:
            break
        try:
            with connection.begin_nested():
                recurrence = Recurrence.from_json(row.recurrence)
                planned = plan(recurrence, row.anchor, row.next_at, now, row.catchup, grace)
                ids = _fire(connection, dialect, row, planned.fires, planned.next_at, now)
        except (sa.exc.OperationalError, sa.exc.InterfaceError):
            raise  # trouble with the database, not with the row
        except Exception as error:
            done.append(Fired(row.name, [], describe(error).text))
            continue
        made += len(ids)
        done.append(Fired(row.name, ids))
    return done


def end_delays(connection: sa.Connection, now: int, aside: Collection[str] = ()) -> tuple[list[str], list[Fired]]:
    """A fixed delay counts from the end of its run: give those whose run has ended their next slot.

    Returns the names of those that have one now, and those for which that was not possible. What somebody's transaction
    holds is passed over: the engine must not wait for it.
    """
    skip_locked = dialect_of(connection).skip_locked
    rows = connection.execute(
        prepared(
            "SELECT t.name, t.recurrence, t.last_task, r.state, r.finished_at FROM schedd_schedules t "
            f"LEFT JOIN schedd_tasks r ON r.id = t.last_task WHERE t.next_at = {FOREVER} "
            f"AND (r.id IS NULL OR r.state >= {st.FIRST_TERMINAL}) {skip_locked}"
        )
    ).fetchall()
    given, troubles = [], []
    for row in rows:
        if row.name in aside:
            continue
        try:
            recurrence = Recurrence.from_json(row.recurrence)
            following = _after_end(recurrence, now if row.finished_at is None else row.finished_at, now)
        except Exception as error:
            troubles.append(Fired(row.name, [], describe(error).text))
            continue
        # Another engine may have seen the same end, and have started the next run already.
        done = connection.execute(
            prepared(
                f"UPDATE schedd_schedules SET next_at = :next WHERE name = :name AND next_at = {FOREVER} "
                "AND coalesce(last_task, 0) = :last"
            ),
            {"next": following, "name": row.name, "last": row.last_task or 0},
        )
        given += [row.name] * done.rowcount
    return given, troubles


def _after_end(recurrence: Recurrence, end: int, now: int) -> int:
    return recurrence.next_after(end, end) if recurrence.mode == "fixed_delay" else now


def _fire(
    connection: sa.Connection,
    dialect: Dialect,
    row: sa.Row[tuple[object, ...]],
    fires: list[Fire],
    next_at: int,
    now: int,
) -> list[TaskId]:
    spec = msgspec.json.decode(row.options, type=TaskSpec)
    spec.payload = row.payload
    done = _present(connection, dialect, row.name, [f.slot for f in fires])
    fires = [f for f in fires if f.slot not in done]
    if (row.overlap == "skip" or next_at >= FOREVER) and _still_going(connection, row.last_task):
        fires = []  # a fixed delay that was changed meanwhile waits for that run: next_at is FOREVER
    elif row.overlap == "skip" and len(fires) > 1:  # several at once would overlap each other
        first, *_, last = fires
        fires = [last._replace(missed=first.missed, missed_since=first.missed_since)]
    tasks = [
        msgspec.structs.replace(
            spec,
            run_at=f.slot,
            delay=0,
            key=slot_key(row.name, f.slot),
            conflict="keep",
            schedule=row.name,
            slot=f.slot,
            missed=None if f.missed is None else min(f.missed, MOST),
            missed_since=f.missed_since,
        )
        for f in fires
    ]
    ids = enqueue(connection, tasks, now, ours=True) if tasks else []
    connection.execute(
        prepared(
            "UPDATE schedd_schedules SET next_at = :next_at, last_slot = coalesce(:slot, last_slot), "
            "last_task = coalesce(:task, last_task) WHERE name = :name"
        ),
        {
            "name": row.name,
            "next_at": next_at,
            "slot": fires[-1].slot if fires else None,
            "task": int(ids[-1]) if ids else None,
        },
    )
    return ids


def _present(connection: sa.Connection, dialect: Dialect, name: str, slots: list[int]) -> set[int]:
    """Slots that have a task already, whatever became of it: a clock that jumps back must not run them again."""
    rows = connection.execute(
        prepared(f"SELECT slot FROM schedd_tasks WHERE schedule = :name AND slot IN {dialect.ids()}"),
        {"name": name, "ids": bind_rows(slots)},
    )
    return {row[0] for row in rows}


def _still_going(connection: sa.Connection, task_id: int | None) -> bool:
    if task_id is None:
        return False
    state = connection.execute(prepared("SELECT state FROM schedd_tasks WHERE id = :id"), {"id": task_id}).scalar()
    return state is not None and state < st.FIRST_TERMINAL


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
    return enqueue(connection, [spec], now, ours=True)[0]


def delete(connection: sa.Connection, name: str) -> None:
    """Forget the schedule; tasks it made stay. Raises UnknownScheduleError."""
    done = connection.execute(prepared("DELETE FROM schedd_schedules WHERE name = :name"), {"name": name})
    if done.rowcount == 0:
        raise UnknownScheduleError(name)

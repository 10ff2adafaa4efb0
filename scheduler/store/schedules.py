"""Recurring schedules: registering them, and turning due slots into tasks, one per slot across the fleet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import DuplicateScheduleError, InvalidScheduleError, UnknownScheduleError
from scheduler.model.catchup import PER_TICK, Fire, plan
from scheduler.model.defaults import MISFIRE_GRACE
from scheduler.model.fingerprint import describe
from scheduler.model.recurrence import Recurrence
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.state import FIRST_TERMINAL
from scheduler.model.texts import rfc3339
from scheduler.model.worker_states import LIVE
from scheduler.ports import FOREVER, SECOND
from scheduler.store import audit
from scheduler.store.broken_rows import unreadable
from scheduler.store.db.dialect import Dialect, bind_rows
from scheduler.store.db.lazy import sa
from scheduler.store.db.tx import Tx
from scheduler.store.masks import masks, unpublished
from scheduler.store.schedule_runs import (
    GRAPH,
    decode_graph,
    encode_graph,
    have_run,
    last_ends,
    specs_of_run,
    still_going,
    template_of,
)
from scheduler.store.schedule_times import after_change, by_present_rules, is_ahead
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.unknown import schedule_name
from scheduler.store.workers import EXECUTOR_HOST

log = logging.getLogger("scheduler.store")

_BATCH = 256  # schedules that one tick fires: work that waits goes on between two ticks
# By name, as everywhere: of a * PostgreSQL refuses what it has prepared once the next version has added a column.
ROW = (
    "SELECT name, kind, payload, options, graph, recurrence, catchup, overlap, jitter, owner, anchor, next_at, paused, "
    "last_slot, last_task, created_at FROM schedd_schedules t"
)
# Two looks at the index of the times: an idle engine asks each second, however many schedules there are.
NEXT_LOOK = (
    f"SELECT CASE WHEN EXISTS (SELECT 1 FROM schedd_schedules WHERE next_at = {FOREVER}) THEN 0 "
    "ELSE (SELECT next_at FROM schedd_schedules WHERE paused = 0 ORDER BY next_at LIMIT 1) END"
)
_EXECUTORS = f"SELECT 1 FROM schedd_workers WHERE host = '{EXECUTOR_HOST}' AND state = {LIVE} LIMIT 1"
_SERVED = (
    "SELECT DISTINCT k.kind FROM schedd_worker_kinds k JOIN schedd_workers w ON w.id = k.worker "
    f"WHERE w.state = {LIVE} AND w.lease_until >= :now"
)


class ScheduleSpec(NamedTuple):
    """A recurrence to register: its name, when, and the task that each slot makes, or the graph of tasks.

    ``replace``: also in place of a schedule of another kind or owner. ``jitter``: microseconds. ``owner``: the set that
    it belongs to (schedule_sets.py).
    """

    name: str
    recurrence: Recurrence
    task: TaskSpec
    catchup: str = "skip"
    overlap: str = "allow"
    run_on_startup: bool = False
    replace: bool = False
    jitter: int = 0
    owner: str | None = None
    graph: Sequence[TaskSpec] | None = None

    def kinds(self) -> set[str]:
        """The kinds of its tasks."""
        return {task.kind for task in ([self.task] if self.graph is None else self.graph)}

    def columns(self) -> dict[str, object]:
        """What the schedule's row says, but for its times."""
        own = self.graph is None
        return {
            "kind": self.task.kind if own else GRAPH,
            "payload": self.task.payload,
            "options": msgspec.json.encode(msgspec.structs.replace(self.task, payload="")).decode(),
            "graph": None if self.graph is None else encode_graph(self.graph),
            "recurrence": self.recurrence.to_json(),
            "catchup": self.catchup,
            "overlap": self.overlap,
            "jitter": self.jitter,
            "owner": self.owner,
        }


class Fired(NamedTuple):
    """Tasks that one tick made of one schedule; or why it could not."""

    name: str
    ids: list[TaskId]
    trouble: str | None = None


def register(tx: Tx, spec: ScheduleSpec) -> bool:
    """Insert or update by name; the slot that stands keeps standing unless the recurrence changed.

    Returns whether the schedule is new. Raises DuplicateScheduleError if it is one of another kind, or belongs to
    another owner's set, unless ``replace``.
    What was missed by the recurrence that it replaces runs now; versions of a program that register others in turn do
    not keep it from firing. With ``run_on_startup`` a fresh or overdue schedule runs once now; with
    catch-up ``all`` an overdue one runs through the slots that it missed, which are due at once and none of them lost.
    """
    columns = spec.columns()
    following = spec.recurrence.next_after(tx.now, tx.now)
    bound = columns | {"name": spec.name, "now": tx.now, "anchor": tx.now, "next_at": following}
    fresh = (
        tx.run(
            f"INSERT INTO schedd_schedules (name, {', '.join(columns)}, anchor, next_at, created_at, updated_at, "
            f"seen_at) VALUES (:name, {', '.join(f':{name}' for name in columns)}, :anchor, :next_at, :now, :now, "
            ":now) ON CONFLICT (name) DO NOTHING RETURNING name",
            **bound,
        ).first()
        is not None
    )
    if not fresh:
        row = _locked(tx, spec.name)
        changed = log_change(row, spec)
        fires: list[Fire] = []
        if row is not None and changed:
            before = {name: row._mapping[name] for name in changed}
            after = {name: columns[name] for name in changed}
            about = f"schedule {spec.name}"
            kinds = _kinds(row.kind, row.graph) | spec.kinds()
            before, after = (_without_secrets(tx, kinds, values) for values in (before, after))
            audit.record(tx, "schedule replaced", subject=about, before=before, after=after)
        if row is not None and "recurrence" in changed:
            fires, times = _replaced(tx, row, spec)
            bound |= times
        elif row is not None:
            bound |= {"anchor": row.anchor, "next_at": by_present_rules(row) or row.next_at}
        tx.run(
            f"UPDATE schedd_schedules SET {', '.join(f'{n} = :{n}' for n in columns)}, "
            "seen_at = :now, updated_at = CASE WHEN :changed = 0 THEN updated_at ELSE :now END, "
            "anchor = :anchor, next_at = :next_at WHERE name = :name",
            **(bound | {"changed": len(changed)}),
        )
        if fires and (row := _locked(tx, spec.name)) is not None:
            following = FOREVER if spec.recurrence.mode == "fixed_delay" else row.next_at
            _fire(tx, [_Due(row, template_of(row), fires, following, at=tx.now)])
    else:
        shown = {name: value for name, value in columns.items() if value is not None}
        shown = _without_secrets(tx, spec.kinds(), shown)
        audit.record(tx, "schedule registered", subject=f"schedule {spec.name}", after=shown)
        # it may have been deleted, and brought back while a run of it goes on; not by walking down the primary key
        going = f"FROM schedd_tasks t WHERE t.schedule = :name AND t.slot IS NOT NULL AND t.state < {FIRST_TERMINAL}"
        tx.run(
            f"UPDATE schedd_schedules SET last_task = (SELECT max(t.id + 0) {going}), "
            f"last_slot = (SELECT max(t.slot) {going}) WHERE name = :name",
            name=spec.name,
        )
    if spec.run_on_startup:
        row = _locked(tx, spec.name)
        overdue = row is not None and not fresh and row.next_at <= tx.now
        if row is not None and not row.paused and (fresh or (overdue and spec.catchup != "all")):
            fire = Fire(tx.now)
            if overdue and spec.catchup == "last" and spec.recurrence.mode != "fixed_delay":
                fire = Fire(tx.now, spec.recurrence.count_between(row.next_at - 1, tx.now, row.anchor), row.next_at)
            following = _after(spec.recurrence, row.anchor, tx.now)
            _fire(tx, [_Due(row, template_of(row), [fire], following, at=tx.now)])
    return fresh


_SHOWN = ("kind", "payload", "options", "graph", "recurrence", "catchup", "overlap", "jitter", "owner")  # in the audit


def _shown(tx: Tx, row: sa.Row[Any]) -> dict[str, Any]:
    shown = {name: value for name in _SHOWN if (value := row._mapping[name]) is not None}
    return _without_secrets(tx, _kinds(row.kind, row.graph), shown)


def _kinds(kind: str, graph: str | None) -> set[str]:
    try:
        return {kind} if graph is None else {spec.kind for spec in decode_graph(graph)}
    except msgspec.MsgspecError:
        return {kind}  # which no worker publishes: it is a graph's


def _without_secrets(tx: Tx, kinds: set[str], columns: dict[str, Any]) -> dict[str, Any]:
    """Columns for the audit. Payloads are left out if they have secrets, or may have: no worker has published their
    kind yet."""
    if not unpublished(tx, kinds) and not masks(tx, kinds):
        return columns
    return columns | {name: "not recorded" for name in ("payload", "graph") if columns.get(name) is not None}


def changes_of(row: sa.Row[Any], spec: ScheduleSpec) -> list[str]:
    """The columns that registering the schedule would change."""
    return [name for name, value in spec.columns().items() if getattr(row, name) != value]


def check_change(row: sa.Row[Any], spec: ScheduleSpec) -> None:
    """Names are chosen by people, and each is one schedule: what takes another's place by mistake is refused.

    Raises DuplicateScheduleError.
    """
    if spec.replace:
        return
    kind = spec.columns()["kind"]
    whose = None
    if row.owner is not None and row.owner != spec.owner:
        whose = f"belongs to the set of {row.owner!r} (schedules.sync): give this one another key()"
    elif row.kind != kind:
        whose = f"makes tasks of kind {row.kind}: give the one of kind {kind} another key()"
    if whose is not None:
        raise DuplicateScheduleError(
            spec.name,
            f"{whose}, or say schedule(replace=True), or delete the present one (`schedctl cron delete {spec.name}`)",
        )


def _replaced(tx: Tx, row: sa.Row[Any], spec: ScheduleSpec) -> tuple[list[Fire], dict[str, int]]:
    """What is to run now by the recurrence that this one replaces, and the times by the new one."""
    try:
        old = Recurrence.from_json(row.recurrence)
        fires, dropped = _missed(row, old, spec, tx.now)
    except InvalidScheduleError:
        return [], {}
    if dropped:
        slots, since = "1 missed slot" if dropped == 1 else f"{dropped} missed slots", rfc3339(row.next_at, exact=False)
        log.warning("schedule %r: %s dropped, as it has another recurrence now", spec.name, slots)
        audit.record(tx, "schedule slots dropped", subject=f"schedule {spec.name}", missed=dropped, since=since)
    last = fires[-1].slot if fires else row.last_slot
    anchor, next_at = after_change(row, old, spec.recurrence, tx.now, last)
    return fires, {"anchor": anchor, "next_at": next_at}


def _missed(row: sa.Row[Any], old: Recurrence, spec: ScheduleSpec, now: int) -> tuple[list[Fire], int]:
    """The fire times of a recurrence that is replaced which are due and did not run: those to run now, by the catch-up
    that is registered with the other one, and how many are dropped."""
    if row.paused or row.next_at > now:
        return [], 0
    fires: list[Fire] = []
    if _kinds(row.kind, row.graph) == spec.kinds():
        fires = plan(old, row.anchor, row.next_at, now, spec.catchup, round(MISFIRE_GRACE * SECOND)).fires
    count = max(1, old.count_between(row.next_at - 1, now, row.anchor))
    return fires, count - len(fires) if spec.catchup == "all" or not fires else 0


def log_change(row: sa.Row[Any] | None, spec: ScheduleSpec) -> list[str]:
    """Check and log what registering the schedule changes; returns the columns. Raises DuplicateScheduleError."""
    if row is None:
        return []
    check_change(row, spec)
    changed = changes_of(row, spec)
    kind = spec.columns()["kind"]
    if row.owner is not None and row.owner != spec.owner:
        log.warning("schedule %r is no longer in the set of %r", spec.name, row.owner)
    if row.kind != kind:
        log.warning("schedule %r was one of kind %s, and is one of %s now", spec.name, row.kind, kind)
    elif "recurrence" in changed:
        try:
            before = Recurrence.from_json(row.recurrence).describe()
        except InvalidScheduleError:
            before = "unreadable"
        log.info("schedule %r was %s, and is %s now", spec.name, before, spec.recurrence.describe())
    elif changed:
        log.info("schedule %r has another %s now", spec.name, ", ".join(changed))
    return changed


def _after(recurrence: Recurrence, anchor: int, now: int) -> int:
    return FOREVER if recurrence.mode == "fixed_delay" else recurrence.next_after(now, anchor)


def _locked(tx: Tx, name: str) -> sa.Row[Any] | None:
    return tx.run(f"{ROW} WHERE name = :name {tx.dialect.lock}", name=schedule_name(name)).first()


def next_due(tx: Tx, aside: Collection[str] = ()) -> int:
    """When the next schedule is due, but for those set ``aside``; FOREVER if none is."""
    found = tx.run(
        f"SELECT min(next_at) FROM schedd_schedules WHERE paused = 0 {_but(tx.dialect, aside)}", **_names(aside)
    ).scalar()
    return FOREVER if found is None else int(found)


def next_look(tx: Tx) -> int:
    """When there may be something to do for :func:`tick`: 0 while a fixed-delay run goes on, FOREVER for never."""
    ((found,),) = tx.rows(NEXT_LOOK)
    return FOREVER if found is None else int(found)


def _but(dialect: Dialect, aside: Collection[str]) -> str:
    return f"AND name NOT IN (SELECT name FROM {dialect.rows({'name': str})} j)" if aside else ""


def _names(aside: Collection[str]) -> dict[str, str]:
    return {"rows": bind_rows([(name,) for name in aside])} if aside else {}


class _Due(NamedTuple):
    """A schedule's row, the tasks of each run, the slots of it that are to become runs, and when it is due next.

    ``at``: when the runs are due, if not at their slots.
    """

    row: sa.Row[Any]
    template: list[TaskSpec]
    fires: list[Fire]
    next_at: int
    at: int | None = None


def tick(tx: Tx, grace: int, aside: Collection[str] = (), serves: Callable[[str], object] | None = None) -> list[Fired]:
    """Make the tasks of slots that are due, about a thousand at most. Engines that tick at once share the schedules
    out by row locks.

    ``serves``: whether the worker that ticks knows a kind. One that no live worker knows has one run waiting at most,
    unless its catch-up runs through all slots.
    ``aside``: names to skip. A schedule that cannot be read or fired is returned as trouble; it stops no other.
    """
    _, done = end_delays(tx, aside)
    rows = tx.run(
        f"{ROW} WHERE paused = 0 AND next_at <= :now {_but(tx.dialect, aside)} "
        f"ORDER BY next_at LIMIT {_BATCH} {tx.dialect.skip_locked}",
        **({"now": tx.now} | _names(aside)),
    ).fetchall()
    due: list[_Due] = []
    planned = 0
    for row in rows:
        if planned >= PER_TICK:
            break
        try:
            recurrence = Recurrence.from_json(row.recurrence)
            template = template_of(row)
            most = max(1, PER_TICK // len(template))
            fires, next_at = plan(recurrence, row.anchor, row.next_at, tx.now, row.catchup, grace, most)
        except Exception as error:
            done.append(Fired(row.name, [], describe(error).text))
            continue
        planned += len(fires) * len(template)
        due.append(_Due(row, template, fires, next_at))
    if serves is not None:
        due = _hold_back(tx, due, serves)
    return done + _fire_apart(tx, due)


def _hold_back(tx: Tx, due: list[_Due], serves: Callable[[str], object]) -> list[_Due]:
    """Without the runs of schedules that have one waiting which no live worker would run."""
    foreign = [one for one in due if one.row.catchup != "all" and not all(serves(spec.kind) for spec in one.template)]
    if not foreign or tx.run(_EXECUTORS).first() is not None:
        return due  # an executor may start a worker for what waits
    served = {row[0] for row in tx.run(_SERVED, now=tx.now)}
    unserved = [one for one in foreign if any(spec.kind not in served for spec in one.template)]
    waiting = still_going(tx, [one.row for one in unserved])
    return [one._replace(fires=[]) if one in unserved and one.row.name in waiting else one for one in due]


def _fire_apart(tx: Tx, due: list[_Due]) -> list[Fired]:
    """Fire them together; one by one if the database refuses that, so that one schedule stops no other."""
    try:
        with tx.connection.begin_nested() if due else nullcontext():
            made = _fire(tx, due)
    except (sa.exc.OperationalError, sa.exc.InterfaceError):
        raise  # trouble with the database, not with a row
    except Exception as error:
        if len(due) == 1:
            return [Fired(due[0].row.name, [], describe(error).text)]
        return [fired for one in due for fired in _fire_apart(tx, [one])]
    return [Fired(one.row.name, ids) for one, ids in zip(due, made, strict=True)]


def end_delays(tx: Tx, aside: Collection[str] = ()) -> tuple[list[str], list[Fired]]:
    """A fixed delay counts from the end of its run: give those whose run has ended their next slot.

    Returns the names of those that have one now, and those for which that was not possible. What another transaction
    holds is passed over: the engine must not wait for it.
    """
    rows = tx.run(
        "SELECT t.name, t.graph, t.recurrence, t.last_task, t.last_slot, r.state, r.finished_at "
        "FROM schedd_schedules t "
        f"LEFT JOIN schedd_tasks r ON r.id = t.last_task WHERE t.next_at = {FOREVER} "
        f"AND (r.id IS NULL OR r.state >= {FIRST_TERMINAL}) {tx.dialect.skip_locked}"
    ).fetchall()
    graphs = [row for row in rows if row.graph is not None]
    going, finished = still_going(tx, graphs), last_ends(tx, graphs)
    rows = [row for row in rows if row.name not in going]
    ended: list[tuple[str, int, int]] = []
    troubles = []
    for row in rows:
        if row.name in aside:
            continue
        try:
            recurrence = Recurrence.from_json(row.recurrence)
            end = finished.get(row.name, row.finished_at)
            following = _after_end(recurrence, tx.now if end is None else end, tx.now)
        except Exception as error:
            troubles.append(Fired(row.name, [], describe(error).text))
            continue
        ended.append((row.name, following, row.last_task or 0))
    if not ended:
        return [], troubles
    # Another engine may have seen the same end, and have started the next run already.
    source = tx.dialect.rows({"name": str, "following": int, "last": int})
    given = tx.run(
        f"UPDATE schedd_schedules SET next_at = j.following FROM {source} j "
        f"WHERE schedd_schedules.name = j.name AND next_at = {FOREVER} AND coalesce(last_task, 0) = j.last "
        "RETURNING schedd_schedules.name",
        rows=bind_rows(ended),
    )
    return [row[0] for row in given], troubles


def _after_end(recurrence: Recurrence, end: int, now: int) -> int:
    return recurrence.next_after(end, end) if recurrence.mode == "fixed_delay" else now


def _fire(tx: Tx, due: Sequence[_Due]) -> list[list[TaskId]]:
    """Make the tasks of these schedules' slots. Returns the new tasks of each schedule."""
    if not due:
        return []
    there = have_run(tx, [(one.row.name, fire.slot) for one in due for fire in one.fires])
    in_turn = [one.row for one in due if one.row.overlap == "skip" or one.next_at == FOREVER]
    going = still_going(tx, in_turn)
    left: list[list[Fire]] = []
    tasks: list[TaskSpec] = []
    for row, template, fires, _, at in due:
        fires = [fire for fire in fires if (row.name, fire.slot) not in there]
        if row.name in going:
            fires = []  # a fixed delay that was changed meanwhile waits for that run: next_at is FOREVER
        elif row.overlap == "skip" and len(fires) > 1:  # several at once would overlap each other
            first, *_, last = fires
            fires = [last._replace(missed=first.missed, missed_since=first.missed_since)]
        left.append(fires)
        for fire in fires:
            tasks += specs_of_run(row, template, fire, len(tasks), at=at)
    ids = iter(enqueue(tx, tasks) if tasks else [])
    made = [list(islice(ids, len(fires) * len(one.template))) for one, fires in zip(due, left, strict=True)]
    changes = [
        (one.row.name, one.next_at, fires[-1].slot if fires else None, int(new[-1]) if new else None)
        for one, fires, new in zip(due, left, made, strict=True)
    ]
    source = tx.dialect.rows({"name": str, "following": int, "slot": int, "task": int})
    tx.run(
        "UPDATE schedd_schedules SET next_at = j.following, last_slot = coalesce(j.slot, last_slot), "
        f"last_task = coalesce(j.task, last_task) FROM {source} j WHERE schedd_schedules.name = j.name",
        rows=bind_rows(changes),
    )
    return made


def pause(tx: Tx, name: str, paused: bool) -> None:
    """Fire nothing until resumed; resuming goes on with the next slot. Raises UnknownScheduleError."""
    row = _locked(tx, name)  # an engine may be firing it at this moment
    if row is None:
        raise UnknownScheduleError(name)
    next_at, anchor = row.next_at, row.anchor
    if row.paused and not paused and next_at <= tx.now:
        next_at = _readable(name, row.recurrence).next_after(tx.now, anchor)
    elif row.paused and not paused and is_ahead(row, tx.now):
        anchor = min(anchor, tx.now)
        next_at = _readable(name, row.recurrence).next_after(tx.now, anchor)
    elif row.paused and not paused:
        next_at = by_present_rules(row) or next_at
    tx.run(
        "UPDATE schedd_schedules SET paused = :paused, next_at = :next, anchor = :anchor, updated_at = :now "
        "WHERE name = :name",
        name=name,
        paused=int(paused),
        next=next_at,
        anchor=anchor,
        now=tx.now,
    )
    if bool(row.paused) != paused:
        audit.record(tx, f"schedule {'paused' if paused else 'resumed'}", subject=f"schedule {name}")


def _readable(name: str, text: str) -> Recurrence:
    try:
        return Recurrence.from_json(text)
    except InvalidScheduleError as error:
        raise unreadable(name, error) from None


def delete(tx: Tx, name: str) -> None:
    """Forget the schedule; tasks it made stay. Raises UnknownScheduleError."""
    row = _locked(tx, name)
    if row is None:
        raise UnknownScheduleError(name)
    tx.run("DELETE FROM schedd_schedules WHERE name = :name", name=name)
    audit.record(tx, "schedule deleted", subject=f"schedule {name}", before=_shown(tx, row))

"""Makes and runs bulks with a frozen scope: cancel, retry, rerun, replay, purge of what a filter chose once.

The scope is a list of ids, so that a bulk changes what its plan showed and nothing else. Each transaction changes
100 of them and records what became of each, so that a person may have any process go on where another one has died:
no task is changed twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler.errors import ConfigError, DuplicateKeyError, InvalidTransitionError, SchedulerError
from scheduler.model import state as st
from scheduler.model.actor import acting
from scheduler.model.bulk import BATCH, BulkOptions, BulkState, ItemResult, Verb
from scheduler.model.secrets import has_secret_name
from scheduler.model.state import HELD, TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.store import bulks
from scheduler.store.admin.bulk_plan import CHANGES, BulkPlan, dependants_of, of_key, plan, rows_of
from scheduler.store.admin.canaries import canary_of
from scheduler.store.admin.purge import remove_dead
from scheduler.store.admin.replay import replay
from scheduler.store.admin.uncancel import UNBEGUN, uncancel_all
from scheduler.store.bulks import BulkRecord
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.masks import masks
from scheduler.store.tasks import control
from scheduler.store.tasks.patch import NewPayload, StoredPayload, stored_payloads
from scheduler.store.tasks.rerun import rerun

# Makes a payload with other fields: of a transaction, the present payload and the fields.
Patched = Callable[[Tx, StoredPayload, dict[str, Any]], NewPayload]
CANARY_EVERY_S = 0.5  # between two looks whether the task that goes first has ended


def create(
    database: Database,
    verb: Verb,
    wanted: TaskFilter,
    options: BulkOptions = BulkOptions(),  # noqa: B008
    patched: Patched | None = None,
) -> BulkRecord:
    """Freeze what a filter chooses now, with a plan. Nothing is changed before :func:`start`.

    ``patched``: makes the payloads of :attr:`BulkOptions.fields`. Raises ConfigError; PayloadError if a payload with
    those fields does not fit its kind.
    """
    made = plan(database, verb, wanted, options)
    if options.fields is not None:
        with database.read() as tx:
            _check_fields(tx, made, options.fields, patched)
    return store(database, made, options, wanted.chosen())


def _check_fields(tx: Tx, made: BulkPlan, fields: dict[str, Any], patched: Patched | None) -> None:
    """Refuse fields that are secrets, which everybody would see, or that a payload of each kind does not fit."""
    if made.verb != "replay" or not fields:
        raise ConfigError("fields are those that a replay changes: give at least one")
    for kind, mask in masks(tx, list(made.kinds)).items():
        hidden = [
            name
            for name, value in fields.items()
            if has_secret_name({name: value}) or mask.secrets(msgspec.json.encode({name: "a secret"}).decode())
        ]
        if hidden:
            raise ConfigError(f"{', '.join(hidden)} of {kind} is a secret, which a bulk would show: replay one by one")
    seen = set[str]()
    for row in rows_of(tx, made.ids).values() if len(made.kinds) else ():
        if row.kind not in seen:
            seen.add(row.kind)
            _patched(tx, row, fields, patched)


def _patched(tx: Tx, row: sa.Row[Any], fields: dict[str, Any], patched: Patched | None) -> NewPayload:
    if patched is None:
        raise ConfigError("this bulk changes payloads, which this process does not check")
    return patched(tx, stored_payloads(tx, [row.id])[0], fields)


def store(database: Database, made: BulkPlan, options: BulkOptions, chosen: dict[str, Any]) -> BulkRecord:
    """Store a bulk of this plan."""

    def work(tx: Tx) -> BulkRecord:
        name = bulks.insert(tx, made.verb, made.ids, options=options, chosen=chosen, plan=made.shown())
        return bulks.get(tx, name)

    return database.change(work)


def undo(database: Database, name: str) -> BulkRecord:
    """Make a bulk that takes back a cancel of what had not begun: those tasks wait, or are scheduled, again.

    It is planned, as any other; the old one has ended, also if it was running, stopped or interrupted. Raises
    UnknownBulkError; InvalidTransitionError if nothing of it can be taken back.
    """

    def work(tx: Tx) -> BulkRecord:
        bulk = bulks.get(tx, name, tx.dialect.lock)
        codes = ", ".join(str(state.code) for state in UNBEGUN)
        rows = tx.run(
            "SELECT task_id FROM schedd_bulk_items WHERE bulk = :name "
            f"AND result = {ItemResult.DONE.code} AND before IN ({codes}) ORDER BY task_id",
            name=name,
        ).fetchall()
        if bulk.verb != "cancel" or not rows:
            raise InvalidTransitionError(
                f"bulk {name} cannot be undone: only a cancel of tasks that had not begun can be taken back"
            )
        bulks.end_undone(tx, bulk)
        made = bulks.insert(tx, "uncancel", [row[0] for row in rows], chosen={"bulk": name}, undoes=name)
        return bulks.get(tx, made)

    return database.change(work)


def run(
    database: Database,
    name: str,
    *,
    runner: str | None = None,
    each: Callable[[BulkRecord], object] = lambda _: None,
    stop: threading.Event | None = None,
    patched: Patched | None = None,
    wait: Callable[[float], object] = time.sleep,
    patient: bool = True,
) -> BulkRecord:
    """Run a started bulk until it is done or stopped. ``each``: called after each transaction.

    What breaks it off, or ``stop``, leaves it interrupted. ``patched``: makes payloads with other fields. ``wait``:
    waits so many seconds. Without ``patient`` this returns while the task that goes first has not ended; ``runner``
    then calls again within a minute. Raises UnknownBulkError; InvalidTransitionError if another process runs it;
    StoreUnavailableError.
    """
    runner = secrets.token_hex(8) if runner is None else runner
    with database.read() as tx:
        position = bulks.get(tx, name).position
    try:
        while True:
            bulk = database.change(lambda tx: step(tx, name, runner, patched))
            if bulk.state is not BulkState.RUNNING:
                return bulk
            moved, position = bulk.position - position, bulk.position
            if moved:
                each(bulk)
            if stop is not None and stop.is_set():
                database.change(lambda tx: bulks.leave(tx, name, runner))
                return bulk
            if not moved and not patient:
                return bulk
            if not moved:
                wait(CANARY_EVERY_S)
            elif bulk.options.rate is not None:
                wait(moved / bulk.options.rate)
    except BaseException:
        with suppress(SchedulerError):  # if that fails, too, its time runs out
            database.change(lambda tx: bulks.leave(tx, name, runner))
        raise


def step(tx: Tx, name: str, runner: str, patched: Patched | None = None) -> BulkRecord:
    """Change the next 100 tasks of a bulk, and record it. One that is not to be run comes back as it is.

    With a canary the first that is changed is alone: while it has not ended, the bulk comes back unchanged. It stops if
    no worker would run that one.
    """
    bulk = bulks.take(tx, name, runner)
    if bulk.state is not BulkState.RUNNING:
        return bulk
    alone = bulk.options.canary and bulk.done == 0
    canary = canary_of(tx, bulk)
    if canary is not None and canary.end is not TaskState.SUCCESS:
        if canary.end is None and canary.hindered is None:
            return bulks.keep(tx, bulk)
        with acting(bulk.who):
            return bulks.stop_after_canary(tx, bulk, canary.task_id, canary.end, canary.hindered)
    some, _ = bulks.items(tx, name, limit=1 if alone else _batch(bulk.options.rate), cursor=bulk.position - 1)
    places = {item.task_id: item.position for item in some}
    with acting(bulk.who):
        results, dependants = _APPLY[bulk.verb](tx, list(places), bulk.options, patched)
    rows = [(places[task_id], before, result, note) for task_id, (before, result, note) in results.items()]
    return bulks.write(tx, bulk, rows, dependants)


def _batch(rate: float | None) -> int:
    """How many tasks a transaction changes: with a rate what is due in a second, so that nothing comes in bursts."""
    return BATCH if rate is None else max(1, min(BATCH, round(rate)))


_Results = dict[int, tuple[int | None, ItemResult, str | None]]  # id -> (state before, result, note)


def _passed(tx: Tx, verb: str, ids: Sequence[int], rows: dict[int, sa.Row[Any]]) -> _Results:
    changes, _ = CHANGES[verb]
    found: _Results = {}
    for task_id in ids:
        row = rows.get(task_id)
        if row is None:
            found[task_id] = (None, ItemResult.PASSED, "is not there any more")
        elif (state := TaskState.from_code(row.state)) not in changes:
            found[task_id] = (row.state, ItemResult.PASSED, f"is {state}")
    return found


def _cancel(tx: Tx, ids: Sequence[int], options: BulkOptions, _: Patched | None) -> tuple[_Results, int]:
    rows = rows_of(tx, ids, tx.dialect.lock)
    found = _passed(tx, "cancel", ids, rows)
    live = [task_id for task_id in ids if task_id not in found]
    done = control.cancel(tx, live, cascade=options.cascade, force=options.force)
    for task_id in live:
        held = TaskState.from_code(rows[task_id].state) in HELD
        found[task_id] = (rows[task_id].state, ItemResult.DONE, "was asked to end" if held else None)
    return found, len({*done.affected, *done.requested}.difference(ids))


def _purge(tx: Tx, ids: Sequence[int], options: BulkOptions, _: Patched | None) -> tuple[_Results, int]:
    rows = rows_of(tx, ids, tx.dialect.lock)
    found = _passed(tx, "purge", ids, rows)
    dead = {task_id: rows[task_id].error for task_id in ids if task_id not in found}
    remove_dead(tx, dead)
    return found | dict.fromkeys(dead, (st.DEAD, ItemResult.DONE, None)), 0


def _one_by_one(verb: str, change: Callable[[Tx, sa.Row[Any], BulkOptions, Patched | None], object]) -> Any:
    """Apply a verb that may be refused to each task, each below a savepoint."""

    def apply(tx: Tx, ids: Sequence[int], options: BulkOptions, patched: Patched | None) -> tuple[_Results, int]:
        found: _Results = {}
        also = dependants_of(tx, verb, ids, options)
        for task_id in ids:
            rows = rows_of(tx, [task_id], tx.dialect.lock)  # it may have come back with another one
            found |= _passed(tx, verb, [task_id], rows)
            if task_id in found:
                continue
            before = rows[task_id].state
            try:
                with tx.connection.begin_nested():
                    change(tx, rows[task_id], options, patched)
                found[task_id] = (before, ItemResult.DONE, None)
            except DuplicateKeyError as error:
                note = f"{of_key(error.completed)}: {error.existing_id}"
                found[task_id] = (before, ItemResult.PASSED, note)
            except InvalidTransitionError as error:
                found[task_id] = (before, ItemResult.PASSED, str(error))
            except SchedulerError as error:
                found[task_id] = (before, ItemResult.FAILED, str(error))
        done = any(result is ItemResult.DONE for _, result, _ in found.values())
        return found, len(also.difference(ids)) if done else 0

    return apply


def _uncancel(tx: Tx, ids: Sequence[int], options: BulkOptions, _: Patched | None) -> tuple[_Results, int]:
    also = dependants_of(tx, "uncancel", ids, options)
    rows = rows_of(tx, ids)
    found = _passed(tx, "uncancel", ids, rows)
    refused = uncancel_all(tx, [task_id for task_id in ids if task_id not in found])
    for task_id in ids:
        error = refused.get(task_id)
        if isinstance(error, DuplicateKeyError):
            found[task_id] = (st.CANCELLED, ItemResult.PASSED, f"{of_key(error.completed)}: {error.existing_id}")
        elif error is not None:
            found[task_id] = (st.CANCELLED, ItemResult.PASSED, str(error))
        else:
            found.setdefault(task_id, (st.CANCELLED, ItemResult.DONE, None))
    done = any(result is ItemResult.DONE for _, result, _ in found.values())
    return found, len(also.difference(ids)) if done else 0


def _replay(tx: Tx, row: sa.Row[Any], options: BulkOptions, patched: Patched | None) -> None:
    replay(tx, row.id, payload=None if options.fields is None else _patched(tx, row, options.fields, patched))


_APPLY: dict[str, Callable[[Tx, Sequence[int], BulkOptions, Patched | None], tuple[_Results, int]]] = {
    "cancel": _cancel,
    "purge": _purge,
    "retry": _one_by_one("retry", lambda tx, row, o, _: control.retry(tx, row.id, downstream=o.downstream)),
    "rerun": _one_by_one("rerun", lambda tx, row, o, _: rerun(tx, row.id, downstream=o.downstream)),
    "replay": _one_by_one("replay", _replay),
    "uncancel": _uncancel,
}

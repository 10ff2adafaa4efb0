"""The change that each verb of a bulk makes to some tasks, in one transaction: one below the other, refusals kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from scheduler.errors import DuplicateKeyError, InvalidTransitionError, SchedulerError
from scheduler.model.bulk import BulkOptions, ItemResult
from scheduler.model.state import CANCELLED, DEAD, FIRST_TERMINAL, HELD, TaskState
from scheduler.operations.payloads import patched_payload
from scheduler.store import audit
from scheduler.store.admin.bulk_plan import CHANGES, dependants_of, of_key, rows_of
from scheduler.store.admin.gc import remove_dead
from scheduler.store.admin.replay import replay_task
from scheduler.store.admin.uncancel import uncancel_all
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import control
from scheduler.store.tasks.keys import Other
from scheduler.store.tasks.patch import Patch, patch, stored_payloads
from scheduler.store.tasks.rerun import rerun


class Item(NamedTuple):
    """The result for one task. ``before``: its state's code, None: it is not there; ``note``: why it was passed over;
    ``error``: the same where the verb was refused."""

    before: int | None
    result: ItemResult
    note: str | None = None
    error: SchedulerError | None = None


class Applied(NamedTuple):
    """``also``: other tasks that ended, or run again, because of it. ``left``: tasks that would have come back with
    them, and who has their keys."""

    items: dict[int, Item]
    also: set[int]
    left: Mapping[int, int] = {}  # never changed


Apply = Callable[[Tx, Sequence[int]], Applied]


def apply(tx: Tx, verb: str, ids: Sequence[int], options: BulkOptions) -> Applied:
    """Do what a verb does to those of these tasks that still can be changed, each once, in this order."""
    return _APPLY[verb](tx, ids, options)


def change_by(make: Callable[[Tx], Patch]) -> Apply:
    """The same for a change of options, with the patch that is made in each transaction."""

    def work(tx: Tx, ids: Sequence[int]) -> Applied:
        rows, items = _rows(tx, "change", ids)
        done = patch(tx, sorted(rows), make(tx))
        for task_id, row in rows.items():
            error: SchedulerError | None = done.conflicts.get(task_id)
            if task_id in done.refused:
                error = InvalidTransitionError(done.refused[task_id])
            items[task_id] = Item(row.state, ItemResult.DONE) if error is None else _refused(row.state, error)
        return Applied(items, set())

    return work


def _rows(tx: Tx, verb: str, ids: Sequence[int]) -> tuple[dict[int, Any], dict[int, Item]]:
    """The tasks that the verb changes in the state in which they are, by id; and what is to say of the others."""
    changes, _ = CHANGES[verb]
    rows = rows_of(tx, ids, tx.dialect.lock)
    items: dict[int, Item] = {}
    for task_id in ids:
        row = rows.get(task_id)
        if row is None:
            items[task_id] = Item(None, ItemResult.PASSED, "is not there any more")
        elif (state := TaskState.from_code(row.state)) not in changes:
            items[task_id] = Item(row.state, ItemResult.PASSED, f"is {state}")
    return {task_id: rows[task_id] for task_id in sorted(rows) if task_id not in items}, items


def _refused(before: int, error: SchedulerError) -> Item:
    if isinstance(error, DuplicateKeyError):
        return Item(before, ItemResult.PASSED, f"{of_key(error.completed)}: {error.existing_id}", error)
    passed = isinstance(error, InvalidTransitionError)
    return Item(before, ItemResult.PASSED if passed else ItemResult.FAILED, str(error), error)


def _cancel(tx: Tx, ids: Sequence[int], options: BulkOptions) -> Applied:
    rows, items = _rows(tx, "cancel", ids)
    done = control.cancel(tx, list(rows), cascade=options.cascade, force=options.force)
    for task_id, row in rows.items():
        held = TaskState.from_code(row.state) in HELD
        items[task_id] = Item(row.state, ItemResult.DONE, "was asked to end" if held else None)
    return Applied(items, {*done.affected, *done.requested}.difference(ids))


def _purge(tx: Tx, ids: Sequence[int], _: BulkOptions) -> Applied:
    rows, items = _rows(tx, "purge", ids)
    remove_dead(tx, {task_id: row.error for task_id, row in rows.items()})
    return Applied(items | {task_id: Item(DEAD, ItemResult.DONE) for task_id in rows}, set())


def _uncancel(tx: Tx, ids: Sequence[int], options: BulkOptions) -> Applied:
    also = dependants_of(tx, "uncancel", ids, options)
    rows, items = _rows(tx, "uncancel", ids)
    refused = uncancel_all(tx, list(rows))
    for task_id in rows:
        error = refused.get(task_id)
        if error is None:
            items[task_id] = Item(CANCELLED, ItemResult.DONE)
        else:
            items[task_id] = _refused(CANCELLED, error)._replace(result=ItemResult.PASSED)
    done = any(item.result is ItemResult.DONE for item in items.values())
    return Applied(items, also.difference(ids) if done else set())


def _one_by_one(
    verb: str,
    change: Callable[[Tx, Any, BulkOptions], Mapping[int, Other]],
    note: Callable[[Tx, dict[int, TaskState], BulkOptions], object] = lambda *_: None,
) -> Callable[[Tx, Sequence[int], BulkOptions], Applied]:
    """Apply a verb that may be refused to each task. ``note``: records all that was done.

    All stand below one savepoint; once a task of them is refused, all of them anew, each below one of its own.
    """

    def all_below(
        savepoint: Callable[[], AbstractContextManager[object]], tx: Tx, ids: Sequence[int], options: BulkOptions
    ) -> tuple[dict[int, Item], dict[int, TaskState], dict[int, int]]:
        left: dict[int, int] = {}
        done: dict[int, TaskState] = {}
        rows, items = _rows(tx, verb, ids)
        for row in (rows[task_id] for task_id in ids if task_id in rows):
            if done and (verb == "rerun" or row.ended_by is not None or row.state == CANCELLED):
                _, passed = _rows(tx, verb, [row.id])  # it may have come back with another one
                if passed:
                    items |= passed
                    continue
            try:
                with savepoint():
                    stays = change(tx, row, options)
                left |= {other_id: other.id for other_id, other in stays.items()}
                items[row.id] = Item(row.state, ItemResult.DONE)
                done[row.id] = TaskState.from_code(row.state)
            except SchedulerError as error:
                if savepoint is nullcontext:
                    raise
                items[row.id] = _refused(row.state, error)
        return items, done, left

    def work(tx: Tx, ids: Sequence[int], options: BulkOptions) -> Applied:
        also = dependants_of(tx, verb, ids, options)
        try:
            with tx.connection.begin_nested():
                items, done, left = all_below(nullcontext, tx, ids, options)
        except SchedulerError:
            items, done, left = all_below(tx.connection.begin_nested, tx, ids, options)
        note(tx, done, options)
        return Applied(items, also.difference(ids) if done else set(), left)

    return work


def _retry(tx: Tx, row: Any, options: BulkOptions) -> Mapping[int, Other]:
    if row.state < FIRST_TERMINAL:
        return control.retry(tx, row.id)
    return control.reopen(tx, row.id, downstream=options.downstream)


def _note_retries(tx: Tx, done: Mapping[int, TaskState], options: BulkOptions) -> None:
    ended = {task_id: {"before": state} for task_id, state in done.items() if state.terminal}
    audit.record(tx, "retry", tasks=ended, downstream=None if options.downstream else False)


def _replay(tx: Tx, row: Any, options: BulkOptions) -> Mapping[int, Other]:
    new = None
    if options.fields is not None:
        new = patched_payload(tx, stored_payloads(tx, [row.id])[0], options.fields)
    return replay_task(tx, row.id, payload=new).left


_APPLY: dict[str, Callable[[Tx, Sequence[int], BulkOptions], Applied]] = {
    "cancel": _cancel,
    "purge": _purge,
    "retry": _one_by_one("retry", _retry, _note_retries),
    "rerun": _one_by_one("rerun", lambda tx, row, options: rerun(tx, row.id, downstream=options.downstream)),
    "replay": _one_by_one("replay", _replay),
    "uncancel": _uncancel,
}

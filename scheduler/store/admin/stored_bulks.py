"""Makes and runs bulks with a frozen scope: cancel, retry, rerun, replay, purge of what a filter chose once.

The scope is a list of ids, so that a bulk changes what its plan showed and nothing else. Each transaction changes
100 of them and records what became of each, so that any process may go on where another one has died: no task is
changed twice.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from scheduler.errors import ConfigError, DuplicateKeyError, InvalidTransitionError, SchedulerError, UnknownTaskError
from scheduler.model import state as st
from scheduler.model.actor import acting
from scheduler.model.bulk import BATCH, MAX_TASKS, VERBS, BulkOptions, BulkState, ItemResult, Verb
from scheduler.model.state import HELD, LIVE, TERMINAL, TaskState
from scheduler.store import bulks
from scheduler.store.admin.purge import remove_dead
from scheduler.store.admin.replay import replay
from scheduler.store.bulks import BulkRecord
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.graph import spawned
from scheduler.store.graph.cancel_cascade import below
from scheduler.store.graph.descendants import all_below, ended_below, tasks_below
from scheduler.store.read.audit import last
from scheduler.store.read.choose import TaskFilter, chosen_tasks, highest_id
from scheduler.store.tasks import control, keys
from scheduler.store.tasks.rerun import rerun

_PAGE = 2_000
_SHOWN = 50  # ids that a plan names for each reason
_FAILED_STATES = (TaskState.FAILED, TaskState.DEAD)
# The states in which a verb changes a task, and those that are chosen where the filter names none.
_CHANGES: dict[str, tuple[frozenset[TaskState], frozenset[TaskState]]] = {
    "cancel": (LIVE, LIVE),
    "retry": (TERMINAL - {TaskState.SUCCESS} | {TaskState.RETRY}, frozenset(_FAILED_STATES)),
    "rerun": (TERMINAL, TERMINAL),
    "replay": (frozenset({TaskState.DEAD}), frozenset({TaskState.DEAD})),
    "purge": (frozenset({TaskState.DEAD}), frozenset({TaskState.DEAD})),
    "uncancel": (frozenset({TaskState.CANCELLED}), frozenset({TaskState.CANCELLED})),
}
_UNBEGUN = (TaskState.WAITING, TaskState.SCHEDULED)
_ROWS = (
    "SELECT t.id, t.kind, t.state, t.key, t.finished_at, t.run_at, t.error, t.ended_by FROM schedd_tasks t "
    "WHERE {among} ORDER BY t.id {lock}"
)


class BulkPlan(NamedTuple):
    """What a bulk would do. ``ids``: its scope, in the order in which it is done.

    ``will``: how many of them it would change; ``kinds``: kind -> state -> how many of those. ``passed``: reason ->
    how many stay as they are, and ``examples``: reason -> some of them. ``dependants``: how many other tasks may end,
    or run again, because of it. ``more``: the filter chose more than 10,000; the rest is not in the scope. ``up_to``:
    no task with a higher id is.
    """

    verb: str
    ids: list[int]
    will: int
    kinds: dict[str, dict[str, int]]
    passed: dict[str, int]
    examples: dict[str, list[int]]
    dependants: int
    more: bool
    up_to: int

    def shown(self) -> dict[str, Any]:
        """The same as it is stored."""
        given = self._asdict()
        del given["ids"], given["verb"]
        return given


def plan(
    database: Database,
    verb: Verb,
    wanted: TaskFilter,
    options: BulkOptions = BulkOptions(),  # noqa: B008  # immutable
) -> BulkPlan:
    """Read what a bulk would do, in transactions of a page each. Raises ConfigError."""
    if verb not in VERBS:
        raise ConfigError(f"there is no bulk {verb!r:.80}; there are {', '.join(VERBS)}")
    _, usual = _CHANGES[verb]
    if not wanted.states and not wanted.ids:
        wanted = TaskFilter(**{**_given(wanted), "states": tuple(sorted(usual))})
    ids: list[int] = []
    below_id: int | None = None
    more, up_to = True, wanted.up_to
    while more and len(ids) <= MAX_TASKS:
        with database.read() as tx:
            up_to = highest_id(tx) if up_to is None else up_to
            page, below_id = chosen_tasks(tx, TaskFilter(**{**_given(wanted), "up_to": up_to}), below_id, _PAGE)
        ids += [row.id for row in page]
        more = below_id is not None
    more, ids = more or len(ids) > MAX_TASKS, ids[:MAX_TASKS]
    if verb != "cancel":
        ids.reverse()  # parents are mostly older than what waits for them, and their children come back with them
    return _planned(database, verb, ids, options, more, up_to or 0)


def _given(wanted: TaskFilter) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in wanted.__struct_fields__}


def _planned(database: Database, verb: str, ids: list[int], options: BulkOptions, more: bool, up_to: int) -> BulkPlan:
    kinds: dict[str, dict[str, int]] = {}
    passed: dict[str, list[int]] = {}
    also: set[int] = set()
    will: list[int] = []
    for begin in range(0, len(ids), _PAGE):
        some = ids[begin : begin + _PAGE]
        with database.read() as tx:
            rows = _rows(tx, some)
            reasons = _reasons(tx, verb, rows)
            for task_id in some:
                row = rows.get(task_id)
                reason = "is not there" if row is None else reasons.get(task_id)
                if row is None or reason is not None:
                    passed.setdefault(reason or "", []).append(task_id)
                    continue
                will.append(task_id)
                states = kinds.setdefault(row.kind, {})
                state = TaskState.from_code(row.state).value
                states[state] = states.get(state, 0) + 1
            also |= _dependants(tx, verb, [i for i in some if i not in reasons], options)
    return BulkPlan(
        verb,
        ids,
        len(will),
        kinds,
        {reason: len(found) for reason, found in passed.items()},
        {reason: found[:_SHOWN] for reason, found in passed.items()},
        len(also.difference(ids)),
        more,
        up_to,
    )


def _rows(tx: Tx, ids: Sequence[int], lock: str = "") -> dict[int, sa.Row[Any]]:
    sql = _ROWS.format(among=tx.dialect.among("t.id"), lock=lock)
    return {row.id: row for row in tx.run(sql, ids=tx.dialect.bind_ids(ids))}


def _reasons(tx: Tx, verb: str, rows: dict[int, sa.Row[Any]]) -> dict[int, str]:
    """Why these tasks would be passed over."""
    changes, _ = _CHANGES[verb]
    found = {
        row.id: f"is {TaskState.from_code(row.state)}"
        for row in rows.values()
        if TaskState.from_code(row.state) not in changes
    }
    if verb in ("cancel", "purge"):
        return found
    keyed = [
        keys.Ended(row.id, row.kind, row.key, row.finished_at)
        for row in rows.values()
        if row.key is not None and row.state >= st.FIRST_TERMINAL and row.id not in found
    ]
    if keyed:
        refused = keys.others(tx, keyed)
        found |= {task_id: _of_key(other.completed) for task_id, other in refused.items()}
    return found


def _of_key(completed: bool) -> str:
    return "another task has completed under its key since" if completed else "another task has its key"


def _dependants(tx: Tx, verb: str, ids: Sequence[int], options: BulkOptions) -> set[int]:
    if not ids:
        return set()
    if verb == "cancel":
        found = spawned.below(tx, ids) | set(tasks_below(tx, ids))
        return found | set(below(tx, ids, through_held=True)) if options.cascade else found
    if verb == "rerun":
        return set(all_below(tx, ids)) if options.downstream else set()
    if verb == "purge":
        return set(tasks_below(tx, ids)).difference(ids)
    return set(ended_below(tx, ids)) if options.downstream else set()


def create(
    database: Database,
    verb: Verb,
    wanted: TaskFilter,
    options: BulkOptions = BulkOptions(),  # noqa: B008
) -> BulkRecord:
    """Freeze what a filter chooses now, with a plan. Nothing is changed before :func:`start`. Raises ConfigError."""
    made = plan(database, verb, wanted, options)
    return store(database, made, options, wanted.chosen())


def store(database: Database, made: BulkPlan, options: BulkOptions, chosen: dict[str, Any]) -> BulkRecord:
    """Store a bulk of this plan."""

    def work(tx: Tx) -> BulkRecord:
        name = bulks.insert(tx, made.verb, made.ids, options=options, chosen=chosen, plan=made.shown())
        return bulks.get(tx, name)

    return database.change(work)


def undo(database: Database, name: str) -> BulkRecord:
    """Make a bulk that takes back a cancel of what had not begun: those tasks wait, or are scheduled, again.

    It is planned, as any other. Raises UnknownBulkError; InvalidTransitionError if nothing of it can be taken back.
    """

    def work(tx: Tx) -> BulkRecord:
        bulk = bulks.get(tx, name)
        codes = ", ".join(str(state.code) for state in _UNBEGUN)
        rows = tx.run(
            "SELECT task_id FROM schedd_bulk_items WHERE bulk = :name "
            f"AND result = {ItemResult.DONE.code} AND before IN ({codes}) ORDER BY task_id",
            name=name,
        ).fetchall()
        if bulk.verb != "cancel" or not rows:
            raise InvalidTransitionError(
                f"bulk {name} cannot be undone: only a cancel of tasks that had not begun can be taken back"
            )
        made = bulks.insert(tx, "uncancel", [row[0] for row in rows], chosen={"bulk": name}, undoes=name)
        return bulks.get(tx, made)

    return database.change(work)


def run(
    database: Database,
    name: str,
    *,
    each: Callable[[BulkRecord], object] = lambda _: None,
    stop: threading.Event | None = None,
) -> BulkRecord:
    """Run a started bulk until it is done or stopped. ``each``: called after each transaction.

    ``stop``: once it is set, this leaves the bulk to others. Raises UnknownBulkError; InvalidTransitionError if another
    process runs it; StoreUnavailableError.
    """
    runner = secrets.token_hex(8)
    while True:
        bulk = database.change(lambda tx: step(tx, name, runner))
        if bulk.state is not BulkState.RUNNING:
            return bulk
        each(bulk)
        if stop is not None and stop.is_set():
            database.change(lambda tx: _leave(tx, name, runner))
            return bulk


def _leave(tx: Tx, name: str, runner: str) -> None:
    tx.run(
        "UPDATE schedd_bulks SET runner = NULL, runner_until = NULL WHERE name = :name AND runner = :runner",
        name=name,
        runner=runner,
    )


def step(tx: Tx, name: str, runner: str) -> BulkRecord:
    """Change the next 100 tasks of a bulk, and record it. One that is not to be run comes back as it is."""
    bulk = bulks.take(tx, name, runner)
    if bulk.state is not BulkState.RUNNING:
        return bulk
    some, _ = bulks.items(tx, name, limit=BATCH, cursor=bulk.position - 1)
    places = {item.task_id: item.position for item in some}
    with acting(bulk.who):
        results, dependants = _APPLY[bulk.verb](tx, list(places), bulk.options)
    rows = [(places[task_id], before, result, note) for task_id, (before, result, note) in results.items()]
    return bulks.write(tx, bulk, rows, dependants)


_Results = dict[int, tuple[int | None, ItemResult, str | None]]  # id -> (state before, result, note)


def _passed(tx: Tx, verb: str, ids: Sequence[int], rows: dict[int, sa.Row[Any]]) -> _Results:
    changes, _ = _CHANGES[verb]
    found: _Results = {}
    for task_id in ids:
        row = rows.get(task_id)
        if row is None:
            found[task_id] = (None, ItemResult.PASSED, "is not there any more")
        elif (state := TaskState.from_code(row.state)) not in changes:
            found[task_id] = (row.state, ItemResult.PASSED, f"is {state}")
    return found


def _cancel(tx: Tx, ids: Sequence[int], options: BulkOptions) -> tuple[_Results, int]:
    rows = _rows(tx, ids, tx.dialect.lock)
    found = _passed(tx, "cancel", ids, rows)
    live = [task_id for task_id in ids if task_id not in found]
    done = control.cancel(tx, live, cascade=options.cascade, force=options.force)
    for task_id in live:
        held = TaskState.from_code(rows[task_id].state) in HELD
        found[task_id] = (rows[task_id].state, ItemResult.DONE, "was asked to end" if held else None)
    return found, len({*done.affected, *done.requested}.difference(ids))


def _purge(tx: Tx, ids: Sequence[int], options: BulkOptions) -> tuple[_Results, int]:
    rows = _rows(tx, ids, tx.dialect.lock)
    found = _passed(tx, "purge", ids, rows)
    dead = {task_id: rows[task_id].error for task_id in ids if task_id not in found}
    remove_dead(tx, dead)
    return found | dict.fromkeys(dead, (st.DEAD, ItemResult.DONE, None)), 0


def _one_by_one(verb: str, change: Callable[[Tx, sa.Row[Any], BulkOptions], object]) -> Any:
    """Apply a verb that may be refused to each task, each below a savepoint."""

    def apply(tx: Tx, ids: Sequence[int], options: BulkOptions) -> tuple[_Results, int]:
        found: _Results = {}
        also = _dependants(tx, verb, ids, options)
        for task_id in ids:
            rows = _rows(tx, [task_id], tx.dialect.lock)  # it may have come back with another one
            found |= _passed(tx, verb, [task_id], rows)
            if task_id in found:
                continue
            before = rows[task_id].state
            try:
                with tx.connection.begin_nested():
                    change(tx, rows[task_id], options)
                found[task_id] = (before, ItemResult.DONE, None)
            except DuplicateKeyError as error:
                note = f"{_of_key(error.completed)}: {error.existing_id}"
                found[task_id] = (before, ItemResult.PASSED, note)
            except InvalidTransitionError as error:
                found[task_id] = (before, ItemResult.PASSED, str(error))
            except SchedulerError as error:
                found[task_id] = (before, ItemResult.FAILED, str(error))
        done = any(result is ItemResult.DONE for _, result, _ in found.values())
        return found, len(also.difference(ids)) if done else 0

    return apply


def uncancel(tx: Tx, task_id: int) -> None:
    """Take back a cancel of a task that had not begun: it waits again, or is scheduled for its old time.

    What ended with it comes back, too. Raises UnknownTaskError, DuplicateKeyError; InvalidTransitionError if it is not
    cancelled, or the audit does not say that it had not begun.
    """
    row = _rows(tx, [task_id], tx.dialect.lock).get(task_id)
    if row is None:
        raise UnknownTaskError(task_id)
    entry = last(tx, task_id, "cancel")
    if row.state != st.CANCELLED or entry is None or entry.before not in _UNBEGUN:
        state = TaskState.from_code(row.state)
        said = f"task {task_id} is {state}" if row.state != st.CANCELLED else f"task {task_id} had begun"
        raise InvalidTransitionError(f"{said}: only a cancel of what had not begun can be taken back; retry it instead")
    control.retry(tx, task_id)
    if row.run_at > tx.now:
        tx.run(
            f"UPDATE schedd_tasks SET run_at = :at WHERE id = :id AND state <= {st.SCHEDULED}",
            id=task_id,
            at=row.run_at,
        )


_APPLY: dict[str, Callable[[Tx, Sequence[int], BulkOptions], tuple[_Results, int]]] = {
    "cancel": _cancel,
    "purge": _purge,
    "retry": _one_by_one("retry", lambda tx, row, o: control.retry(tx, row.id, downstream=o.downstream)),
    "rerun": _one_by_one("rerun", lambda tx, row, o: rerun(tx, row.id, downstream=o.downstream)),
    "replay": _one_by_one("replay", lambda tx, row, _: replay(tx, row.id)),
    "uncancel": _one_by_one("uncancel", lambda tx, row, _: uncancel(tx, row.id)),
}

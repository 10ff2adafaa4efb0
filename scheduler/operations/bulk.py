"""Changes of many tasks that a filter chooses, at once, in bounded transactions: one loop for every verb.

The tasks are read apart from their change, so that no transaction is long. A bulk that breaks off is gone on with by
the same call: a task that it has changed is not chosen any more, or changed to the same. ``stored_bulks`` makes bulks
whose scope is frozen; both change tasks by ``bulk_changes``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError, DuplicateKeyError
from scheduler.model.actor import in_bulk
from scheduler.model.bulk import BulkOptions, ItemResult, check_rate
from scheduler.model.names import check_whole
from scheduler.model.state import HELD, LIVE, TERMINAL, TaskState
from scheduler.model.task_filter import BEFORE, TaskFilter, Term, in_states
from scheduler.operations.bulk_changes import Applied, Apply, apply, change_by
from scheduler.operations.changes import Changes, patch_of
from scheduler.operations.desk import Desk
from scheduler.store import audit
from scheduler.store.admin.bulk_plan import CHANGES, dependants_of
from scheduler.store.db.database import Database
from scheduler.store.read.choose import ChosenTask, chosen_tasks, ended_tasks, highest_id
from scheduler.store.tasks.stale import AGAIN, NONE, Stale, ran_on

BATCH = 500  # tasks changed in one transaction
_RETRIED = 100  # each is several statements
_PAGE = 2000  # tasks read at a time
_UNSUCCESSFUL = TERMINAL - {TaskState.SUCCESS}
_DEAD = frozenset({TaskState.DEAD})


class Bulk(msgspec.Struct):
    """The result of a bulk, or (a dry run) the result it would have.

    ``changed``: ids of tasks that the verb changed; ``requested``: running ones that were asked to end. ``dependants``:
    how many other tasks end, or run again, because of it. ``kinds``: kind -> state before -> how many of ``changed``
    and ``requested``. ``conflicts``: id -> the task that has its key; ``refused``: id -> why it stays. ``stale``: tasks
    that ran on the old ends. ``more``: a limit was reached, or it was stopped. ``name``: of all its entries in the
    audit. ``up_to``: no task with a higher id is among what was chosen.
    """

    changed: list[int] = msgspec.field(default_factory=list)
    requested: list[int] = msgspec.field(default_factory=list)
    dependants: int = 0
    kinds: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    conflicts: dict[int, int] = msgspec.field(default_factory=dict)
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    stale: Stale = NONE
    more: bool = False
    name: str = ""
    up_to: int = 0

    @property
    def size(self) -> int:
        """How many tasks it concerns by themselves."""
        return len(self.changed) + len(self.requested)

    def add(self, row: ChosenTask, state: TaskState, verb: str) -> None:
        """Count a task that is, or would be, changed in this state."""
        asked = verb == "cancel" and state in HELD
        (self.requested if asked else self.changed).append(row.id)
        states = self.kinds.setdefault(row.kind, {})
        states[state.value] = states.get(state.value, 0) + 1


# Called after each transaction with what has been done so far; what returns False stops the bulk there.
Each = Callable[[Bulk], object]


class Run(NamedTuple):
    """How a bulk goes on. ``limit``: tasks at most; ``rate``: tasks a second at most. ``name``: of its entries in the
    audit, None: a new one. ``each``: called after each transaction; ``wait``: waits so many seconds."""

    limit: int | None = None
    dry_run: bool = False
    rate: float | None = None
    name: str | None = None
    each: Each = lambda _: None
    wait: Callable[[float], object] = time.sleep


ONCE = Run()


def cancel(desk: Desk, wanted: TaskFilter, run: Run = ONCE, *, cascade: bool = False, force: bool = False) -> Bulk:
    """Cancel what is chosen and has not ended, the newest first. Raises ConfigError."""
    return _all(desk, "cancel", _among(wanted, LIVE), run, BulkOptions(cascade, force))


def retry(desk: Desk, wanted: TaskFilter, run: Run = ONCE, *, downstream: bool = True) -> Bulk:
    """Retry what is chosen of what has ended without success, the oldest first; tasks that failed or died by
    themselves, if no states are named. A task that fails again meanwhile is not retried twice. Raises ConfigError."""
    named = _among(wanted, _UNSUCCESSFUL) if wanted.named_states else wanted
    return _all(desk, "retry", named, run, BulkOptions(downstream=downstream))


def rerun(desk: Desk, wanted: TaskFilter, run: Run = ONCE, *, downstream: bool = True) -> Bulk:
    """Run what is chosen of what has ended again from its beginning, successes too, the oldest first.

    A task that runs again because one above it does is left alone. Raises ConfigError.
    """
    return _all(desk, "rerun", _among(wanted, TERMINAL), run, BulkOptions(downstream=downstream))


def replay(desk: Desk, wanted: TaskFilter, run: Run = ONCE) -> Bulk:
    """Run the dead letters that are chosen again, those that died first before others."""
    return _all(desk, "replay", wanted.also(in_states(_DEAD)), run, BulkOptions(), shown=wanted.chosen())


def purge(desk: Desk, wanted: TaskFilter, run: Run = ONCE) -> Bulk:
    """Remove the dead letters that are chosen, those that died first before others; the audit stays."""
    return _all(desk, "purge", wanted.also(in_states(_DEAD)), run, BulkOptions(), shown=wanted.chosen())


def change(desk: Desk, wanted: TaskFilter, changes: Changes, run: Run = ONCE) -> Bulk:
    """Change what is chosen of what waits, is scheduled or waits for its retry, the newest first.

    Raises ConfigError, PayloadError, InvalidScheduleError, UnregisteredKindError; what was committed before stays.
    """
    among, _ = CHANGES["change"]
    return _all(desk, "change", _among(wanted, among), run, BulkOptions(), change_by(patch_of(desk, changes)))


def _all(
    desk: Desk,
    verb: str,
    wanted: TaskFilter,
    run: Run,
    options: BulkOptions,
    work: Apply | None = None,
    shown: dict[str, Any] | None = None,
) -> Bulk:
    """Change what is chosen. ``work``: of a verb that is not :func:`apply`'s; ``shown``: the filter in the audit."""
    check_rate(run.rate)
    if run.limit is not None:
        check_whole(run.limit, "limit")
    with desk.read() as tx:
        began = tx.now
        if wanted.up_to is None:
            wanted = wanted._replace(up_to=highest_id(tx))
    shown = wanted.chosen() if shown is None else shown
    done = Bulk(name=audit.new_bulk() if run.name is None else run.name, up_to=wanted.up_to or 0)
    if verb in ("retry", "replay") and not wanted.ended_before:
        wanted = wanted.also(Term("ended", (began + 1,), how=BEFORE))  # not what fails again meanwhile
    chosen = _Chosen(_ORDER[verb](desk.database, wanted))
    most = BATCH if verb in ("cancel", "change", "purge") else _RETRIED
    if run.rate is not None:
        most = max(1, min(most, round(run.rate)))  # what is due in a second, so that nothing comes in bursts
    act = work or (lambda tx, ids: apply(tx, verb, ids, options))
    also = set[int]()
    while run.limit is None or done.size < run.limit:
        rows = chosen.take(most if run.limit is None else min(most, run.limit - done.size))
        if not rows:
            if not done.size and not run.dry_run:
                _write(desk, act, [])  # a server that takes no writes is named, even if nothing is to be changed
            break
        ids = [row.id for row in rows]
        if run.dry_run:
            with desk.read() as tx:
                also |= dependants_of(tx, verb, ids, options)
            for row in rows:
                done.add(row, row.state, verb)
            continue
        with in_bulk(done.name, shown):
            also |= _count(done, verb, rows, _write(desk, act, ids))
        if run.each(done) is False:
            done.more = True
            break
        if run.rate is not None and done.size != run.limit and chosen.more:
            run.wait(len(ids) / run.rate)
    else:
        done.more = chosen.more
    done.dependants = len(also.difference(done.changed, done.requested))
    if verb in AGAIN and not run.dry_run:
        with desk.read() as tx:
            done.stale = ran_on(tx, done.changed, began)
    return done


def _write(desk: Desk, act: Apply, ids: list[int]) -> Applied:
    return desk.write(lambda tx: act(tx, ids))


def _count(done: Bulk, verb: str, rows: list[ChosenTask], applied: Applied) -> set[int]:
    """Add what became of these tasks. Returns the others that it concerned."""
    by_id = {row.id: row for row in rows}
    for task_id, item in applied.items.items():
        if item.result is ItemResult.DONE and item.before is not None:
            done.add(by_id[task_id], TaskState.from_code(item.before), verb)
        elif isinstance(item.error, DuplicateKeyError):
            done.conflicts[task_id] = item.error.existing_id
            if verb == "change":
                done.refused[task_id] = f"task {task_id}: {item.error}"
        elif item.error is not None:
            done.refused[task_id] = str(item.error)
    done.conflicts |= applied.left
    return applied.also


def _among(wanted: TaskFilter, states: Collection[TaskState]) -> TaskFilter:
    """The filter with all of these states, if it names none. Raises ConfigError if it names another one."""
    for state in wanted.named_states:
        if state not in states:
            raise ConfigError(f"{state} tasks cannot be chosen here; there are {', '.join(sorted(states))}")
    return wanted if wanted.named_states else wanted.also(in_states(states))


class _Chosen:
    """The tasks that a filter chooses, read a page at a time as they are taken."""

    def __init__(self, pages: Iterator[list[ChosenTask]]) -> None:
        self._pages, self._rows = pages, list[ChosenTask]()

    def take(self, count: int) -> list[ChosenTask]:
        """The next ``count`` tasks, or those that are left."""
        self._fill(count)
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken

    @property
    def more(self) -> bool:
        """Whether there is a further one."""
        self._fill(1)
        return bool(self._rows)

    def _fill(self, count: int) -> None:
        while len(self._rows) < count and (page := next(self._pages, None)) is not None:
            self._rows += page


def _newest_first(database: Database, wanted: TaskFilter) -> Iterator[list[ChosenTask]]:
    """By id: a task is mostly newer than the tasks that it waits for."""
    below: int | None = None
    while True:
        with database.read() as tx:
            page, below = chosen_tasks(tx, wanted, below, _PAGE)
        yield page
        if below is None:
            return


def _oldest_first(database: Database, wanted: TaskFilter) -> Iterator[list[ChosenTask]]:
    """The reverse, of which the ids are read at once: a task comes back with one above it."""
    yield [row for page in _newest_first(database, wanted) for row in page][::-1]


def _first_ended(database: Database, wanted: TaskFilter) -> Iterator[list[ChosenTask]]:
    """By their ends."""
    after, more = (0, 0), True
    while more:
        with database.read() as tx:
            page, after, more = ended_tasks(tx, wanted, _RETRIED, after)
        yield page


_ORDER: dict[str, Callable[[Database, TaskFilter], Iterator[list[ChosenTask]]]] = {
    "cancel": _newest_first,
    "change": _newest_first,
    "rerun": _oldest_first,
    "retry": _first_ended,
    "replay": _first_ended,
    "purge": _first_ended,
}

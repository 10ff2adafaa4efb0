"""Changes many tasks that a filter chooses, in bounded transactions: cancel, retry, patch.

What is chosen is read apart from what changes it, so no transaction is long. A bulk that breaks off is gone on with by
the same call: what it has done is not chosen any more, or changed to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.actor import in_bulk
from scheduler.model.state import LIVE, TaskState
from scheduler.model.task_filter import BEFORE, TaskFilter, Term, in_states
from scheduler.store import audit
from scheduler.store.admin.redrive import UNSUCCESSFUL, choose, redrive
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.graph import spawned
from scheduler.store.graph.cancel_cascade import below
from scheduler.store.graph.descendants import ended_below, tasks_below
from scheduler.store.read.choose import Row, chosen_tasks, highest_id, still
from scheduler.store.tasks.control import cancel
from scheduler.store.tasks.patch import Patch, patch

BATCH = 500  # tasks changed in one transaction
_RETRIED = 100  # each is several statements
_PAGE = 2000  # tasks read at a time
_CHANGEABLE = (TaskState.WAITING, TaskState.SCHEDULED, TaskState.RETRY)


class Bulk(msgspec.Struct):
    """What a bulk did, or (a dry run) would do.

    ``changed``: ids cancelled, retried or patched; ``requested``: running ones that were asked to end; ``dependants``:
    other tasks that ended, or ran again, because of it: of a dry run those that may. ``kinds``: kind -> state before ->
    how many of ``changed`` and ``requested``. ``conflicts``: id -> the task that has its key; ``refused``: id -> why it
    stays. ``more``: a limit was reached, or it was stopped. ``name``: of all its entries in the audit. ``up_to``: no
    task with a higher id is among what was chosen.
    """

    changed: list[int] = msgspec.field(default_factory=list)
    requested: list[int] = msgspec.field(default_factory=list)
    dependants: int = 0
    kinds: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    conflicts: dict[int, int] = msgspec.field(default_factory=dict)
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    more: bool = False
    name: str = ""
    up_to: int = 0

    def count(self, rows: list[Row]) -> None:
        """Count these among ``kinds``."""
        for row in rows:
            states = self.kinds.setdefault(row.kind, {})
            states[row.state] = states.get(row.state, 0) + 1

    @property
    def size(self) -> int:
        """How many tasks it concerns by themselves."""
        return len(self.changed) + len(self.requested)


# Called after each transaction with what has been done so far; what returns False stops the bulk there.
Each = Callable[[Bulk], object]


def cancel_many(
    database: Database,
    wanted: TaskFilter,
    *,
    cascade: bool = False,
    force: bool = False,
    limit: int | None = None,
    dry_run: bool = False,
    name: str | None = None,
    each: Each = lambda _: None,
) -> Bulk:
    """Cancel what is chosen and has not ended, the newest first. ``name``: of a bulk that goes on; None: a new one."""
    wanted, done = _begin(database, _among(wanted, LIVE), name)
    also = set[int]()
    for rows in _batches(database, wanted, limit, done):
        by_id = {row.id: row for row in rows}
        if dry_run:
            with database.read() as tx:
                also |= _may_end(tx, list(by_id), cascade=cascade)
            done.changed += [i for i, row in by_id.items() if row.state not in (TaskState.CLAIMED, TaskState.RUNNING)]
            done.requested += [i for i, row in by_id.items() if row.state in (TaskState.CLAIMED, TaskState.RUNNING)]
            done.count(rows)
            continue
        with in_bulk(done.name, wanted.chosen()):
            one = database.change(
                lambda tx, ids=list(by_id): cancel(  # type: ignore[misc]
                    tx, still(tx, ids, LIVE), cascade=cascade, force=force
                )
            )
        done.changed += one.cancelled
        done.requested += [i for i in one.requested if i in by_id]
        also |= {*one.affected, *(i for i in one.requested if i not in by_id)}
        done.count([by_id[i] for i in (*one.cancelled, *one.requested) if i in by_id])
        if each(done) is False:
            done.more = True
            break
    done.dependants = len(also.difference(done.changed, done.requested))
    return done


def retry_many(
    database: Database,
    wanted: TaskFilter,
    *,
    downstream: bool = True,
    limit: int | None = None,
    dry_run: bool = False,
    name: str | None = None,
    each: Each = lambda _: None,
) -> Bulk:
    """Retry what is chosen of what has ended without success, the oldest first; by themselves failed or dead ones, if
    no states are named. What fails again meanwhile is not retried twice."""
    _among(wanted, UNSUCCESSFUL)
    wanted, done = _begin(database, wanted, name)
    shown = wanted.chosen()
    also = set[int]()
    if not wanted.ended_before:
        wanted = wanted.also(Term("ended", (database.now() + 1,), how=BEFORE))
    after, more = (0, 0), True
    while more and (limit is None or len(done.changed) < limit):
        count = _RETRIED if limit is None else min(_RETRIED, limit - len(done.changed))
        if dry_run:
            with database.read() as tx:
                found = choose(tx, wanted, count, after)
                ids = [row.id for row in found.rows]
                if downstream and ids:
                    also.update(ended_below(tx, ids))
            done.changed += ids
            done.count(found.rows)
            after, more = found.last, found.more
            continue
        with in_bulk(done.name, shown):
            one = database.change(
                lambda tx, n=count, a=after: redrive(  # type: ignore[misc]
                    tx, wanted, limit=n, downstream=downstream, after=a
                )
            )
        done.changed += one.ids
        done.conflicts |= one.conflicts
        done.count(one.rows)
        after, more = one.last, one.more
        if each(done) is False:
            break
    done.more = more
    done.dependants = len(also.difference(done.changed))
    return done


def patch_many(
    database: Database,
    wanted: TaskFilter,
    change: Callable[[Tx], Patch],
    *,
    limit: int | None = None,
    dry_run: bool = False,
    name: str | None = None,
    each: Each = lambda _: None,
) -> Bulk:
    """Change what is chosen and can be changed, the newest first. ``change``: makes the patch in each transaction."""
    wanted, done = _begin(database, _among(wanted, _CHANGEABLE), name)
    for rows in _batches(database, wanted, limit, done):
        if dry_run:
            done.changed += [row.id for row in rows]
            done.count(rows)
            continue
        with in_bulk(done.name, wanted.chosen()):
            one = database.change(
                lambda tx, ids=[row.id for row in rows]: patch(  # type: ignore[misc]
                    tx, still(tx, ids, _CHANGEABLE), change(tx)
                )
            )
        done.changed += one.changed
        done.refused |= one.refused
        for task_id, error in one.conflicts.items():
            done.conflicts[task_id], done.refused[task_id] = error.existing_id, f"task {task_id}: {error}"
        done.count([row for row in rows if row.id in one.changed])
        if each(done) is False:
            done.more = True
            break
    return done


def _begin(database: Database, wanted: TaskFilter, name: str | None) -> tuple[TaskFilter, Bulk]:
    """The filter without tasks that are stored from now on, and a bulk of this name."""
    if wanted.up_to is None:
        with database.read() as tx:
            wanted = wanted._replace(up_to=highest_id(tx))
    return wanted, Bulk(name=audit.new_bulk() if name is None else name, up_to=wanted.up_to or 0)


def _among(wanted: TaskFilter, states: Collection[TaskState]) -> TaskFilter:
    """The filter with all of these states, if it names none. Raises ConfigError if it names another one."""
    for state in wanted.named_states:
        if state not in states:
            raise ConfigError(f"{state} tasks cannot be chosen here; there are {', '.join(sorted(states))}")
    return wanted if wanted.named_states else wanted.also(in_states(states))


def _batches(database: Database, wanted: TaskFilter, limit: int | None, done: Bulk) -> Iterator[list[Row]]:
    """What is chosen, in batches of a transaction each."""
    below_id: int | None = None
    left = limit
    more = True
    while more:
        with database.read() as tx:
            page, below_id = chosen_tasks(tx, wanted, below_id, _PAGE)
        more = below_id is not None
        if left is not None and len(page) > left:
            page, more, done.more = page[:left], False, True
        for start in range(0, len(page), BATCH):
            yield page[start : start + BATCH]
        if left is not None:
            left -= len(page)
            if left == 0 and more:
                more, done.more = False, True


def _may_end(tx: Tx, ids: list[int], *, cascade: bool) -> set[int]:
    """Other tasks that a cancel of these ends, or may end."""
    found = spawned.below(tx, ids)
    found |= set(tasks_below(tx, ids))
    if cascade:
        found |= set(below(tx, ids, through_held=True))
    return found

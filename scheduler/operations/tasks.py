"""Verbs on tasks: cancel, retry, rerun, change, copy, submit. Of several tasks all are changed, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduler.model.names import check_text
from scheduler.model.spec import MAX_KEY, EdgeSpec, TaskId, TaskSpec, check_id
from scheduler.model.state import TaskState
from scheduler.operations.changes import Changes, patch_of
from scheduler.operations.desk import Desk
from scheduler.store import audit
from scheduler.store.admin.copy import copy_task, runs_beside
from scheduler.store.db.tx import Tx
from scheduler.store.read.tasks import TaskRecord, get_task, get_tasks
from scheduler.store.read.workers import hung_text, read_fleet, workers
from scheduler.store.tasks import control
from scheduler.store.tasks.control import CancelResult as CancelResult
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.tasks.keys import Other as Other
from scheduler.store.tasks.patch import patch
from scheduler.store.tasks.rerun import rerun_all
from scheduler.store.tasks.stale import Stale as Stale
from scheduler.store.tasks.stale import ran_on, rerun_on_new
from scheduler.store.tasks.stale import told as told


class CancelledTasks(NamedTuple):
    """``hung``: what to say of tasks whose handlers hang, so that a request does not end them."""

    done: CancelResult
    hung: list[str]


class Again(NamedTuple):
    """Tasks that run again. ``left``: those that would have come back with them, and who has their keys.

    ``stale``: what ran on their old ends. ``completed``: of a rerun, those that had completed under their keys.
    """

    tasks: list[TaskRecord]
    left: Mapping[int, Other]
    stale: Stale
    completed: Sequence[TaskRecord] = ()


class ChangedTasks(NamedTuple):
    """``same``: tasks that had these values already: nothing of them is changed, and the audit has no entry."""

    tasks: list[TaskRecord]
    same: list[int]


class Copied(NamedTuple):
    """``beside``: what to say of a copy that runs beside the task that has the key; None: nothing."""

    id: TaskId
    beside: str | None


class SubmittedTask(NamedTuple):
    """``no_worker``: why no worker takes new work; ``unserved``: why none would run this task. None: one does."""

    id: TaskId
    no_worker: str | None
    unserved: str | None


def cancel(
    desk: Desk, ids: Sequence[int], *, cascade: bool = False, force: bool = False, dry_run: bool = False
) -> CancelledTasks:
    """End tasks at once; ask those that run to end. Ended and cancelled ones stay as they are.

    ``cascade``: their dependants by success end cancelled, too, instead of by their *otherwise*. ``force``: running
    ones end without waiting for their handlers, which keep their slots. Raises UnknownTaskError, ConfigError.
    """
    wanted = [check_id(task_id) for task_id in ids]

    def work(tx: Tx) -> CancelledTasks:
        done = control.cancel(tx, wanted, cascade=cascade, force=force)
        hung: list[str] = []
        if done.requested and not force:
            hung = [hung_text(w, hang) for w in workers(tx) for hang in w.hung if hang.task in done.requested]
        made = CancelledTasks(done, hung)
        if dry_run:
            raise _NotReally(made)
        return made

    try:
        return desk.write(work)
    except _NotReally as undone:
        return undone.done


class _NotReally(Exception):
    """Rolls a transaction back, and carries what it had done."""

    def __init__(self, done: CancelledTasks) -> None:
        super().__init__()
        self.done = done


def retry(desk: Desk, ids: Sequence[int], *, downstream: bool = True, rerun: bool = False) -> Again:
    """Run ended, unsuccessful tasks again with new budgets; one that waits for a retry or its time runs now.

    ``downstream``: what ended because of them is revived. ``rerun``: what ran on their old ends runs again after them.
    Raises UnknownTaskError, InvalidTransitionError; DuplicateKeyError if another task holds a key or has completed
    under it since.
    """
    wanted = list(dict.fromkeys(check_id(task_id) for task_id in ids))

    def work(tx: Tx) -> Again:
        left = control.retry_all(tx, wanted, downstream=downstream)
        stale = rerun_on_new(tx, wanted, rerun=rerun)
        return Again(get_tasks(tx, wanted), left, stale)

    return desk.write(work)


def rerun(desk: Desk, ids: Sequence[int], *, downstream: bool = True) -> Again:
    """Run ended tasks again from their beginnings, successes too: results and recorded steps are forgotten.

    ``downstream``: what ended below them runs again after them. Raises UnknownTaskError; InvalidTransitionError if one,
    or with ``downstream`` one below, has begun and not ended; DuplicateKeyError as :func:`retry`.
    """
    wanted = list(dict.fromkeys(check_id(task_id) for task_id in ids))

    def work(tx: Tx) -> Again:
        before = get_tasks(tx, wanted)
        completed = [task for task in before if task.state is TaskState.SUCCESS and task.key is not None]
        left = rerun_all(tx, wanted, downstream=downstream)
        return Again(get_tasks(tx, wanted), left, ran_on(tx, wanted), completed)

    return desk.write(work)


def change(desk: Desk, ids: Sequence[int], changes: Changes) -> ChangedTasks:
    """Change stored tasks that wait, are scheduled or wait for their retry.

    Raises UnknownTaskError, InvalidTransitionError if one is under way or has ended, UnregisteredKindError,
    PayloadError, InvalidScheduleError, ConfigError; DuplicateKeyError if another task has the key that a new payload
    makes.
    """
    wanted = list(dict.fromkeys(check_id(task_id) for task_id in ids))
    make = patch_of(desk, changes)

    def work(tx: Tx) -> ChangedTasks:
        done = patch(tx, wanted, make(tx)).check()
        return ChangedTasks(get_tasks(tx, wanted), done.same)

    return desk.write(work)


def copy(desk: Desk, task_id: int, changes: Changes, *, key: str | None = None, dependencies: bool = True) -> Copied:
    """Store a copy of a task, in whatever state that is, as new work: due now unless ``changes`` say when.

    It has no key but ``key``. ``dependencies``: it waits for the same tasks. Raises as :func:`change`;
    DuplicateKeyError if another task holds ``key`` or has completed under it since the original ended.
    """
    check_id(task_id)
    if key is not None:
        check_text(key, "a key", MAX_KEY)
    make = patch_of(desk, changes, required=False)

    def work(tx: Tx) -> Copied:
        made = copy_task(tx, task_id, make(tx), key=key, dependencies=dependencies)
        return Copied(made, runs_beside(get_task(tx, task_id), get_task(tx, made)))

    return desk.write(work)


def submit(desk: Desk, spec: TaskSpec) -> SubmittedTask:
    """Store a task that a person asks for. Raises DuplicateKeyError, UnknownDependencyError, PayloadError."""

    def work(tx: Tx) -> TaskId:
        ids = enqueue(tx, [spec])
        audit.record_submit(tx, [spec], ids)
        return ids[0]

    made = desk.write(work)
    return SubmittedTask(made, *served(desk, spec))


def served(desk: Desk, spec: TaskSpec) -> tuple[str | None, str | None]:
    """Why no worker takes new work, and why none would run tasks like this one."""
    with desk.read() as tx:
        fleet = read_fleet(tx)
        why = fleet.unserved(spec.queue, spec.kind, priority=spec.priority, executor=spec.executor)
    return fleet.no_worker, why if fleet.claiming or spec.executor is not None else None


def add_dependency(desk: Desk, child: int, edge: EdgeSpec) -> None:
    """Let a stored task that has not been claimed wait for another one, or wait for it otherwise.

    Raises CycleError, UnknownTaskError, UnknownDependencyError, InvalidTransitionError.
    """
    desk.write(lambda tx: control.add_dependency(tx, child, edge))  # a broken edge ends the child at once


def set_retry(desk: Desk, task_id: int, policy: str | None, most: int | None) -> None:
    """Change how a task that has not ended is retried. Raises UnknownTaskError, InvalidTransitionError."""
    desk.database.change(lambda tx: control.set_retry_policy(tx, task_id, policy, most))

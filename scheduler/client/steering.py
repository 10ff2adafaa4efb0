"""SteeringOperations, the part of the Scheduler that changes stored tasks: patch, rerun, copy, one or many."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Unpack

import msgspec

from scheduler.client.bulks import Bulks
from scheduler.client.dead_letters import warn_left
from scheduler.client.fleet import LiveSettings, Workers
from scheduler.client.tasks import TaskOperations, warn_done
from scheduler.client.threads import in_thread
from scheduler.errors import ConfigError
from scheduler.model.spec import TaskId
from scheduler.operations import tasks
from scheduler.operations.bulk import Bulk, Run, cancel, change, rerun, retry
from scheduler.operations.changes import Changes as Changes
from scheduler.operations.filter import Chosen, read_chosen
from scheduler.operations.filter import Filters as Filters
from scheduler.operations.verb_uncancel import uncancel
from scheduler.operations.verbs import TaskVerb, task_verbs


class BulkResult(msgspec.Struct, frozen=True):
    """What a change of many tasks did, or (``dry_run``) would do.

    ``ids``: those cancelled, retried or changed; ``requested``: running ones that were asked to end. ``dependants``:
    how many other tasks ended because of it; of a dry run, how many may end, or run again. ``kinds``: kind -> state
    before -> how many. ``conflicts``: id -> the task that has its key, so that it stays; ``refused``: id -> why it
    stays. ``more``: ``limit`` was reached or ``each`` stopped it, and there may be more. ``bulk``: what its entries in
    the audit share. ``up_to``: the highest task id there was when it began; it chose none above.
    """

    ids: list[int]
    requested: list[int]
    dependants: int
    kinds: dict[str, dict[str, int]]
    conflicts: dict[int, int]
    refused: dict[int, str]
    more: bool
    dry_run: bool
    bulk: str
    up_to: int


Each = Callable[[BulkResult], object]


class SteeringOperations(TaskOperations):
    """The verbs by which a program steers tasks that it, or another one, has stored."""

    @property
    def live_settings(self) -> LiveSettings:
        """Slots, caps and rates that are changed while workers run."""
        return LiveSettings(self)

    @property
    def workers(self) -> Workers:
        """The workers of the fleet."""
        return Workers(self)

    @property
    def bulks(self) -> Bulks:
        """Changes of many tasks with a frozen scope: planned, run, stopped, gone on with, undone."""
        return Bulks(self)

    def uncancel_task(self, task_id: int) -> None:
        """Take back a cancel of a task that had not begun: it waits again, or is scheduled for its old time.

        Tasks that ended with it come back, too. Raises UnknownTaskError; InvalidTransitionError if it is not cancelled,
        or had begun; DuplicateKeyError if another task holds its key or has completed under it since.
        """
        uncancel(self.desk, task_id)

    def update_task(self, task_id: int, **changes: Unpack[Changes]) -> bool:
        """Change a stored task that waits, is scheduled or waits for its retry; see :class:`Changes`.

        Returns whether something is changed: the audit has no entry of a task that had these values already.

        A payload is checked by the registered kind, else by the schema that workers have published. Payload and headers
        of a task with recorded steps stay. Raises UnknownTaskError, InvalidTransitionError if it is under way or has
        ended, UnregisteredKindError, PayloadError, InvalidScheduleError, ConfigError; then nothing is changed.
        """
        return not tasks.change(self.desk, [task_id], changes).same

    def rerun(self, task_id: int, downstream: bool = True) -> None:
        """Run a task that has ended, also a success, again from its beginning: its result and steps are forgotten.

        ``downstream``: whatever ended below it runs again after it. Tasks below it that have not begun wait for it
        again in either case. The idempotency key stays. A descendant whose key another task has stays as it ended: a
        warning is logged. Raises UnknownTaskError; InvalidTransitionError if it, or with ``downstream`` a task below
        it, has begun and not ended; DuplicateKeyError if another task holds its key or has completed under it since.
        """
        warn_left(tasks.rerun(self.desk, [task_id], downstream=downstream).left)

    def copy_task(
        self, task_id: int, *, key: str | None = None, dependencies: bool = True, **changes: Unpack[Changes]
    ) -> TaskId:
        """Store a copy of a task, in whatever state that is, with these :class:`Changes`; returns its id.

        The copy is new work: due now unless they say when, with no key but ``key`` and an idempotency key of its own.
        It has the correlation of the original, and, with ``dependencies``, waits for the same tasks. Raises
        UnknownTaskError, UnregisteredKindError, PayloadError, InvalidScheduleError, ConfigError; DuplicateKeyError if
        another task holds ``key`` or has completed under it since the original ended.
        """
        return tasks.copy(self.desk, task_id, changes, key=key, dependencies=dependencies).id

    def cancel_tasks(
        self,
        chosen: Chosen | None = None,
        *,
        cascade: bool = False,
        force: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        bulk: str | None = None,
        each: Each | None = None,
        **filters: Unpack[Filters],
    ) -> BulkResult:
        """:meth:`cancel_task` for what a filter chooses of what has not ended, the newest first.

        ``jobs.cancel_tasks("kind:Mail -queue:etl stored:>2h")``, or the same as keywords, :class:`Filters`.
        500 tasks in a transaction: should it break off, the same call goes on with the rest. ``dry_run``: only says
        what would end. ``force``: running ones end without waiting for their handlers. ``rate``: tasks a second at
        most. ``bulk``: its name in the audit, by default a new one. ``each``: called after each transaction with what
        has been done; what returns False stops it there. Raises ConfigError.
        """
        wanted = read_chosen(self.desk, chosen, filters)
        done = cancel(self.desk, wanted, _run(limit, rate, dry_run, bulk, each), cascade=cascade, force=force)
        return _result(done, dry_run)

    def retry_tasks(
        self,
        chosen: Chosen | None = None,
        *,
        downstream: bool = True,
        dry_run: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        bulk: str | None = None,
        each: Each | None = None,
        **filters: Unpack[Filters],
    ) -> BulkResult:
        """:meth:`retry_task` for what a filter, a text or :class:`Filters`, chooses: those that ended first come first.

        It chooses tasks that failed or died by themselves, unless ``status`` says which: failed, dead, cancelled or
        skipped. 100 tasks in a transaction: should it break off, the same call goes on with the rest, and retries what
        failed again meanwhile. One whose key another task holds, or has completed since, stays as it is: a warning is
        logged. ``rate``, ``bulk`` and ``each``: as for :meth:`cancel_tasks`. Raises ConfigError.
        """
        wanted = read_chosen(self.desk, chosen, filters, ended=True)
        done = retry(self.desk, wanted, _run(limit, rate, dry_run, bulk, each), downstream=downstream)
        warn_done(done)
        return _result(done, dry_run)

    def rerun_tasks(
        self,
        chosen: Chosen | None = None,
        *,
        downstream: bool = True,
        dry_run: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        bulk: str | None = None,
        each: Each | None = None,
        **filters: Unpack[Filters],
    ) -> BulkResult:
        """:meth:`rerun` for what a filter, a text or :class:`Filters`, chooses of what has ended, the oldest first.

        A task that runs again because one above it does is left alone. One that cannot run again, because a task below
        it has begun or another task has its key, stays as it is: ``refused`` and ``conflicts`` say why. The rest is as
        for :meth:`retry_tasks`; the same call again runs the same tasks again. Raises ConfigError.
        """
        wanted = read_chosen(self.desk, chosen, filters, ended=True)
        done = rerun(self.desk, wanted, _run(limit, rate, dry_run, bulk, each), downstream=downstream)
        warn_done(done)
        return _result(done, dry_run)

    def update_tasks(
        self,
        chosen: Chosen,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        bulk: str | None = None,
        each: Each | None = None,
        **changes: Unpack[Changes],
    ) -> BulkResult:
        """:meth:`update_task` for what a filter chooses of what can be changed, the newest first.

        ``jobs.update_tasks("kind:Mail subject:ada", queue="slow")``; ``chosen`` may be :class:`Filters`, too. 500 tasks
        in a transaction: should it break off, the same call goes on. ``rate``, ``bulk`` and ``each``: as for
        :meth:`cancel_tasks`. Raises ConfigError, PayloadError, InvalidScheduleError, UnregisteredKindError; what was
        committed before stays.
        """
        wanted = read_chosen(self.desk, chosen, {})
        done = change(self.desk, wanted, changes, _run(limit, rate, dry_run, bulk, each))
        return _result(done, dry_run)


def _act(name: str, verb: TaskVerb) -> Callable[..., None]:
    def act(self: SteeringOperations, task_id: int, **given: Any) -> None:
        verb(self.desk, task_id, given)

    act.__name__, act.__doc__ = name, verb.act.__doc__
    return act


for _verb, _found in task_verbs().items():
    if not hasattr(SteeringOperations, _name := f"{_verb}_task"):  # those with a signature stand above
        setattr(SteeringOperations, _name, _act(_name, _found))
        setattr(SteeringOperations, f"{_name}_async", in_thread(getattr(SteeringOperations, _name)))


def _run(limit: int | None, rate: float | None, dry_run: bool, bulk: str | None, each: Each | None) -> Run:
    def after(done: Bulk) -> object:
        return None if each is None else each(_result(done, False))

    return Run(limit, dry_run, rate, _bulk_name(bulk), after)


def _result(done: Bulk, dry_run: bool) -> BulkResult:
    return BulkResult(
        *(done.changed, done.requested, done.dependants, done.kinds, done.conflicts, done.refused, done.more),
        dry_run,
        done.name,
        done.up_to,
    )


def _bulk_name(given: str | None) -> str | None:
    if given is not None and (not isinstance(given, str) or not re.fullmatch(r"[\w-]{1,40}", given, re.ASCII)):
        raise ConfigError(f"bulk is a name of up to 40 letters, digits, - and _, not {given!r:.80}")
    return given

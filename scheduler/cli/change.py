"""``schedctl cancel`` and ``schedctl retry``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.filters import (
    CANCELLED_FIELDS,
    cancel_chosen,
    chosen_by_filters,
    filter_options,
    ids_or_filter,
    retry_chosen,
    task_filter,
)
from scheduler.cli.options import acts, common
from scheduler.cli.output import print_object, print_rows
from scheduler.cli.session import Session, note, note_stale, prints
from scheduler.cli.streams import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.store.db.tx import Tx
    from scheduler.store.read.tasks import TaskRecord
    from scheduler.store.tasks.control import CancelResult
    from scheduler.store.tasks.keys import Other
    from scheduler.store.tasks.stale import Stale

_CANCEL_FIELDS = ("cancelled", "requested", "finished", "dependants", "later")


@click.command(name="cancel")
@ids_or_filter
@filter_options()
@click.option("--yes", is_flag=True, help="With filters: do not ask.")
@click.option("--cascade", is_flag=True, help="Also cancel the tasks that wait for their success.")
@click.option("--force", is_flag=True, help="End running tasks without waiting for their handlers.")
@click.option("--dry-run", is_flag=True, help="Only say which tasks would end.")
@acts
@common
@prints(lambda given: _CANCEL_FIELDS if given["ids"] else CANCELLED_FIELDS)
def cancel_command(
    session: Session,
    /,
    ids: tuple[int, ...],
    text: str,
    cascade: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    limit: int | None,
    **given: Any,
) -> int:
    """End tasks. Waiting tasks end at once; running tasks are asked to stop.

    With several IDs, either all are cancelled or none. Tasks that have ended already stay as they are.

    A FILTER such as `kind:Mail -queue:etl stored:>2h` chooses among the tasks that have not ended, 500 in a
    transaction. If the command breaks
    off, give it again and it continues. It first says which tasks would end, and asks; with --dry-run it only says
    so.

    Dependants end or run as their edges say. With --cascade, tasks that wait for success are cancelled too, at the
    same moment as the task they wait for.

    A handler that hangs never stops by itself. With --force its worker ends the task as cancelled at once, and its
    dependants go on. The handler keeps its slot until it ends, or until `schedctl worker restart`.
    """
    if chosen_by_filters(ids, text, given, limit):
        wanted = task_filter(session, text, given)
        return cancel_chosen(session, wanted, limit, cascade=cascade, force=force, dry_run=dry_run, yes=yes)
    _cancel(session, ids, cascade=cascade, force=force, dry_run=dry_run)
    return exits.DONE


def _cancel(session: Session, ids: tuple[int, ...], *, cascade: bool, force: bool, dry_run: bool) -> None:
    from scheduler.model.texts import counted, listed
    from scheduler.store.tasks import control

    def work(tx: Tx) -> CancelResult:
        done = control.cancel(tx, ids, cascade=cascade, force=force)
        if dry_run:
            raise _NotReally(done)
        return done

    try:
        done = session.write(work)
    except _NotReally as undone:
        done = undone.done
    view = {
        "cancelled": list(done.cancelled),
        "requested": list(done.requested),
        "finished": {str(i): state.value for i, state in done.finished.items()},
        "dependants": list(done.affected),
        "later": list(done.later),
    }
    if not force:
        _note_hung(session, done.requested)
    if print_object(session, view):
        return
    would = "would be " if dry_run else ""
    for task_id in done.cancelled:
        say(f"task {task_id} {would}cancelled")
    for task_id in done.requested:
        say(f"task {task_id} is running: cancel {would}requested{' by force' if force else ''}")
    for task_id, state in done.finished.items():
        say(f"task {task_id} had ended already: {state}")
    for tasks, moves, always in (
        (done.affected, f"{'would end' if dry_run else 'ended'} with it", True),
        (done.later, f"{'would be' if dry_run else 'will be'} cancelled when what is running has ended", False),
    ):
        if tasks or always:
            named = f": {listed([str(i) for i in tasks], 20)}" if tasks else ""
            say(f"{counted(len(tasks), 'dependant')} {moves}{named}")


def _note_hung(session: Session, requested: tuple[int, ...]) -> None:
    """Note the tasks whose handler hangs, since a request does not end them."""
    from scheduler.store.read.workers import hung_text, workers

    with session.database.read() as tx:
        found = [(w, hang) for w in workers(tx) for hang in w.hung]
    for worker, hang in found:
        if hang.task in requested:
            note(hung_text(worker, hang))


class _NotReally(Exception):
    """Rolls a transaction back, and carries what it had done."""

    def __init__(self, done: CancelResult) -> None:
        super().__init__()
        self.done = done


@click.command(name="retry")
@ids_or_filter
@click.option("--no-downstream", is_flag=True, help="Leave the tasks alone that ended because of these.")
@click.option(
    "--rerun", is_flag=True, help="With IDs: then also run dependants again that ran because these ended as they did."
)
@filter_options("Ended")
@click.option("--dry-run", is_flag=True, help="With filters: only say which tasks would run again.")
@acts
@common
@prints(("id", "kind", "state"))
def retry_command(
    session: Session,
    /,
    ids: tuple[int, ...],
    text: str,
    no_downstream: bool,
    rerun: bool,
    dry_run: bool,
    limit: int | None,
    **given: Any,
) -> int:
    """Run tasks again that failed, died, were cancelled or skipped, with a new budget of attempts.

    With several IDs, either all run again or none. Tasks that ended because of them are revived. A task that waits
    for its retry or its time runs now. A task cannot run again under a key that another task holds or has completed
    since: then the status is 4.

    A FILTER such as `kind:Mail class:Timeout* ended:<1h` chooses among tasks that failed or died by themselves, or that
    ended as it says. Tasks that ended first come first, 100 of them unless --limit allows more. A task whose key
    belongs to another task now stays as it is; then the status is 4.
    """
    if chosen_by_filters(ids, text, given, limit):
        if rerun:
            raise click.UsageError("--rerun goes with IDs")
        limit = 100 if limit is None else limit
        wanted = task_filter(session, text, given, ended=True)
        return retry_chosen(session, wanted, limit, downstream=not no_downstream, dry_run=dry_run)
    if dry_run:
        raise click.UsageError("--dry-run goes with filters")
    _retry(session, ids, no_downstream, rerun)
    return exits.DONE


def note_left(left: Mapping[int, Other]) -> None:
    """Note the tasks that were not revived because another task has their key."""
    for task_id, other in left.items():
        note(f"task {task_id} was not revived: task {other.id} has its key {other.key!r}")


def _retry(session: Session, ids: tuple[int, ...], no_downstream: bool, rerun: bool) -> None:
    from scheduler.store.read.tasks import get_task
    from scheduler.store.tasks import control
    from scheduler.store.tasks.stale import rerun_on_new

    wanted = list(dict.fromkeys(ids))

    def work(tx: Tx) -> tuple[list[TaskRecord], dict[int, Other], Stale]:
        left = control.retry_all(tx, wanted, downstream=not no_downstream)
        stale = rerun_on_new(tx, wanted, rerun=rerun)
        return [get_task(tx, task_id) for task_id in wanted], left, stale

    tasks, left, stale = session.write(work)
    note_left(left)
    note_stale(stale, rerun)
    for task in tasks:
        if task.state.terminal:
            note(f"task {task.id} has ended again at once, {task.error}")
    rows = [{"id": task.id, "kind": task.kind, "state": task.state.value} for task in tasks]
    print_rows(session, rows)

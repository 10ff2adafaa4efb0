"""``schedctl cancel`` and ``schedctl retry``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.options import TASK_ID, Number, acts, common
from scheduler.cli.output import print_object, print_rows
from scheduler.cli.session import Session, note, note_kind, prints
from scheduler.cli.streams import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

    from scheduler.store.read.tasks import TaskRecord
    from scheduler.store.tasks.control import CancelResult
    from scheduler.store.tasks.keys import Other

_MOST = 10_000


@click.command(name="cancel")
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@click.option("--cascade", is_flag=True, help="End what waits for their success too, as cancelled.")
@click.option("--force", is_flag=True, help="End what is running without waiting for its handler.")
@click.option("--dry-run", is_flag=True, help="Only say what would end.")
@acts
@common
@prints(("cancelled", "requested", "finished", "dependants", "later"))
def cancel_command(session: Session, /, ids: tuple[int, ...], cascade: bool, force: bool, dry_run: bool) -> None:
    """End tasks: what is not running at once, what is running at its next look. All of them or none.

    Tasks that have ended already are left as they are. Without --cascade, dependants end or run as their
    edges say; with it, those that wait for success end cancelled, at the moment that what they wait for does.

    A handler that hangs never looks. With --force its worker ends the task as cancelled at once, and what waits for
    that goes on; the handler keeps its slot until it ends, or until `schedctl worker restart`.
    """
    from scheduler.model.texts import counted, listed
    from scheduler.store.tasks import control

    database = session.existing()

    def work(connection: sa.Connection) -> CancelResult:
        done = control.cancel(connection, ids, database.now(), cascade=cascade, force=force)
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

    with session.database.read() as connection:
        found = [(w, hang) for w in workers(connection, session.database.now()) for hang in w.hung]
    for worker, hang in found:
        if hang.task in requested:
            note(hung_text(worker, hang))


class _NotReally(Exception):
    """Rolls a transaction back, and carries what it had done."""

    def __init__(self, done: CancelResult) -> None:
        super().__init__()
        self.done = done


@click.command(name="retry")
@click.argument("ids", metavar="[ID…]", type=TASK_ID, nargs=-1)
@click.option("--no-downstream", is_flag=True, help="Leave the tasks alone that ended because of these.")
@click.option("--kind", metavar="K", help="Instead of IDs: what failed of this kind.")
@click.option("--key", metavar="K", help="Instead of IDs: what failed with this key.")
@click.option("--correlation", metavar="C", help="Instead of IDs: what failed of what belongs together so.")
@click.option("--subject", metavar="S", help="Instead of IDs: what failed about this subject.")
@click.option("--limit", type=Number(1, _MOST), help="How many of these at most; 100 by default.")
@acts
@common
@prints(("id", "kind", "state"))
def retry_command(
    session: Session, /, ids: tuple[int, ...], no_downstream: bool, limit: int | None, **filters: Any
) -> int:
    """Run tasks again that failed, died, were cancelled or skipped, with a new budget. All of them or none.

    Revives the tasks that ended because of them. A task that waits for its retry or its time runs now. A task does not
    run again under a key that another task holds or has completed since: then the status is 4.

    Without IDs, what the filters choose of those that failed or died by themselves, those that ended first before
    others. One whose key another task has stays as it is; then the status is 4.
    """
    chosen = any(value is not None for value in filters.values())
    if bool(ids) == chosen:
        raise click.UsageError("say either IDs, or one or more of --kind, --key, --correlation and --subject")
    if ids and limit is not None:
        raise click.UsageError("--limit goes with filters")
    if chosen:
        return _retry_failed(session, 100 if limit is None else limit, not no_downstream, filters)
    _retry(session, ids, no_downstream)
    return exits.DONE


def _retry_failed(session: Session, limit: int, downstream: bool, filters: dict[str, Any]) -> int:
    from scheduler.cli.dlq import in_batches
    from scheduler.model.actor import in_bulk
    from scheduler.store.admin.redrive import redrive
    from scheduler.store.audit import new_bulk
    from scheduler.store.read.dead_letters import Filter
    from scheduler.store.read.tasks import get_tasks

    database = session.existing()
    with database.read():
        wanted = Filter(before=database.now() + 1, **filters)  # what fails again meanwhile is for another call
    with in_bulk(new_bulk(), wanted.chosen()):
        done, conflicts = in_batches(
            limit,
            "retried",
            lambda count, after: session.write(
                lambda c: redrive(c, database.now(), wanted, limit=count, downstream=downstream, after=after)
            ),
        )
    for task_id, holder in conflicts.items():
        note(f"task {task_id} was not retried: task {holder} has its key")
    with database.read() as connection:
        rows = [{"id": t.id, "kind": t.kind, "state": t.state.value} for t in get_tasks(connection, done)]
        if not done and not conflicts:
            note_kind(connection, wanted.kind)
    print_rows(session, rows)
    if len(done) >= limit:
        note(f"{limit} were retried; there may be more")
    return exits.CONFLICT if conflicts else exits.DONE


def note_left(left: Mapping[int, Other]) -> None:
    """Note the tasks that were not revived because another task has their key."""
    for task_id, other in left.items():
        note(f"task {task_id} was not revived: task {other.id} has its key {other.key!r}")


def _retry(session: Session, ids: tuple[int, ...], no_downstream: bool) -> None:
    from scheduler.store.read.tasks import get_task
    from scheduler.store.tasks import control

    database = session.existing()
    wanted = list(dict.fromkeys(ids))

    def work(connection: sa.Connection) -> tuple[list[TaskRecord], dict[int, Other]]:
        left = control.retry_all(connection, wanted, database.now(), downstream=not no_downstream)
        return [get_task(connection, task_id) for task_id in wanted], left

    tasks, left = session.write(work)
    note_left(left)
    for task in tasks:
        if task.state.terminal:
            note(f"task {task.id} has ended again at once, {task.error}")
    rows = [{"id": task.id, "kind": task.kind, "state": task.state.value} for task in tasks]
    print_rows(session, rows)

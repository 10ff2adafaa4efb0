"""``schedctl set``: change stored tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.changes import ChangesGiven, change_options
from scheduler.cli.filters import CHANGED_FIELDS, change_chosen, chosen_by_filters, filter_options
from scheduler.cli.group import Group
from scheduler.cli.options import TASK_ID, acts, common_but_timeout
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, prints
from scheduler.cli.views import TASK_FIELDS, task_view

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.store.read.tasks import TaskRecord

_COLUMNS = ("id", "kind", "state", "priority", "queue", "run_at", "max_attempts")


@click.group(name="set", cls=Group)
def set_command() -> None:
    """Change stored tasks."""


@set_command.command(name="task")
@click.argument("ids", metavar="[ID…]", type=TASK_ID, nargs=-1)
@change_options("--to-queue")
@filter_options("what waits, is scheduled, or waits for its retry")
@click.option("--dry-run", is_flag=True, help="With filters: only say what would be changed.")
@click.option("--yes", is_flag=True, help="With filters: do not ask.")
@acts
@common_but_timeout
@prints(lambda given: TASK_FIELDS if given["ids"] else CHANGED_FIELDS)
def set_task(
    session: Session, /, ids: tuple[int, ...], dry_run: bool, yes: bool, limit: int | None, **given: Any
) -> int:
    """Change tasks that wait, are scheduled, or wait for their retry. Of IDs all or none.

    A payload is checked against the kind's schema. What is under way or has ended is not changed: then the status is 4.

    Without IDs, what the filters choose, 500 in a transaction: should that break off, the same command goes on. It says
    first what would be changed, and asks; --dry-run says so only.
    """
    changes = ChangesGiven(**{name: given.pop(name) for name in ChangesGiven.__dataclass_fields__})
    changes.check()
    if chosen_by_filters(ids, given, limit):
        return change_chosen(session, given, limit, changes.patch, dry_run=dry_run, yes=yes)
    if dry_run:
        raise click.UsageError("--dry-run goes with filters")
    _set_tasks(session, list(dict.fromkeys(ids)), changes)
    return exits.DONE


def _set_tasks(session: Session, wanted: list[int], changes: ChangesGiven) -> None:
    from scheduler.errors import InvalidTransitionError
    from scheduler.store.read.tasks import get_tasks
    from scheduler.store.tasks.patch import patch

    database = session.existing()

    def work(connection: sa.Connection) -> list[TaskRecord]:
        done = patch(connection, wanted, changes.patch(connection), database.now())
        for reason in done.refused.values():
            raise InvalidTransitionError(reason)
        return get_tasks(connection, wanted)

    print_rows(session, [task_view(task) for task in session.write(work)], _COLUMNS)

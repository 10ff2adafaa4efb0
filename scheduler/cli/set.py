"""``schedctl set``: change stored tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.changes import ChangesGiven, change_options
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
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@change_options("--to-queue")
@acts
@common_but_timeout
@prints(TASK_FIELDS)
def set_task(session: Session, /, ids: tuple[int, ...], **given: Any) -> None:
    """Change tasks that wait, are scheduled, or wait for their retry. All of them or none.

    A payload is checked against the kind's schema. What is under way or has ended is not changed: then the status is 4.
    """
    from scheduler.errors import InvalidTransitionError
    from scheduler.store.read.tasks import get_tasks
    from scheduler.store.tasks.patch import patch

    changes = ChangesGiven(**given)
    changes.check()
    if not any(value is not None and value != () for value in given.values()):
        raise click.UsageError("say what to change: --in, --at, --priority, --to-queue, -P, --payload, …")
    database = session.existing()
    wanted = list(dict.fromkeys(ids))

    def work(connection: sa.Connection) -> list[TaskRecord]:
        done = patch(connection, wanted, changes.patch(connection), database.now())
        for reason in done.refused.values():
            raise InvalidTransitionError(reason)
        return get_tasks(connection, wanted)

    print_rows(session, [task_view(task) for task in session.write(work)], _COLUMNS)

"""``schedctl cancel`` and ``schedctl retry``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli.options import TASK_ID, common
from scheduler.cli.output import print_object, print_rows
from scheduler.cli.session import Session, with_session

if TYPE_CHECKING:
    import sqlalchemy as sa


@click.command(name="cancel")
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@click.option("--cascade", is_flag=True, help="End what waits for their success too, as cancelled.")
@common
@with_session
def cancel_command(session: Session, /, ids: tuple[int, ...], cascade: bool) -> None:
    """End tasks: what is not running at once, what is running at its next look. All of them or none.

    Tasks that have ended already are left as they are. Without --cascade, dependants end or run as their
    edges say.
    """
    from scheduler.model.texts import counted
    from scheduler.store import control

    database = session.existing()
    done = session.write(lambda c: control.cancel(c, ids, database.now(), cascade=cascade))
    view = {
        "cancelled": list(done.cancelled),
        "requested": list(done.requested),
        "finished": {str(i): state.value for i, state in done.finished.items()},
        "dependants": list(done.affected),
    }
    if print_object(session, view):
        return
    for task_id in done.cancelled:
        click.echo(f"task {task_id} cancelled")
    for task_id in done.requested:
        click.echo(f"task {task_id} is running: cancel requested")
    for task_id, state in done.finished.items():
        click.echo(f"task {task_id} had ended already: {state}")
    click.echo(f"{counted(len(done.affected), 'dependant')} ended with it")


@click.command(name="retry")
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@click.option("--no-downstream", is_flag=True, help="Leave the tasks alone that ended because of these.")
@common
@with_session
def retry_command(session: Session, /, ids: tuple[int, ...], no_downstream: bool) -> None:
    """Run tasks again that failed, died, were cancelled or skipped, with a new budget. All of them or none.

    Revives the tasks that ended because of them. A task that waits for its retry or its time runs now.
    """
    from scheduler.store import control
    from scheduler.store.read_tasks import get_task

    database = session.existing()
    wanted = list(dict.fromkeys(ids))

    def work(connection: sa.Connection) -> list[dict[str, object]]:
        for task_id in wanted:
            control.retry(connection, task_id, database.now(), downstream=not no_downstream)
        tasks = [get_task(connection, task_id) for task_id in wanted]
        return [{"id": task.id, "kind": task.kind, "state": task.state.value} for task in tasks]

    rows = session.write(work)
    print_rows(session, rows, ("id", "kind", "state"), ("id", "kind", "state"))

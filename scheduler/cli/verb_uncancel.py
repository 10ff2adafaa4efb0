"""``schedctl uncancel``."""

from __future__ import annotations

import click

from scheduler.cli.options import TASK_ID, acts, common
from scheduler.cli.session import Session, prints
from scheduler.cli.task_verbs import act


@click.command(name="uncancel")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@acts
@common
@prints(("id", "kind", "state"))
def uncancel_command(session: Session, /, task_id: int) -> None:
    """Take back a cancel.

    A task that had not begun waits again, or is scheduled for its old time; a task that had begun is retried. Tasks
    that ended with it come back, too. If another task has its key by now, the status is 4.
    """
    act(session, "uncancel", task_id)

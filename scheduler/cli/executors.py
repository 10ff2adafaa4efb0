"""``schedctl executors``: where tasks run that name an executor."""

from __future__ import annotations

import click

from scheduler.cli.group import Group
from scheduler.cli.messages import CHECK_FIELDS, check
from scheduler.cli.options import common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints

_FIELDS = ("executor", "type", "place", "worker", "placed_by", "draining", "wanted", "pending", "running", "trouble")


@click.group(name="executors", cls=Group)
def executors_command() -> None:
    """Places where tasks run that name an executor."""


@executors_command.command(name="list")
@common
@prints(_FIELDS)
def list_executors(session: Session, /) -> None:
    """The executors of the configuration, and executors that daemons of this store have had.

    WORKER: the id that `worker drain` and `worker resume` take, to place nothing more and to go on. PLACED BY: the
    daemon that starts the jobs. PENDING: jobs that have not taken their task up; RUNNING: jobs that have. Where
    jobs are workers for many tasks, WANTED is the number that the backlog asks for, and PENDING and RUNNING count
    workers.
    """
    from scheduler.operations.executors import listed

    rows = [one._asdict() for one in listed(session.desk, session.config.executors)]
    print_rows(session, rows)
    if not rows:
        note("there is no executor: write one as [executors.NAME]")


@executors_command.command(name="check")
@click.argument("names", metavar="[EXECUTOR]…", nargs=-1)
@common
@prints(CHECK_FIELDS)
def check_executors(session: Session, /, names: tuple[str, ...]) -> int:
    """Ask the backends of these executors, or of all. Status 1 if one is not as it should be. Starts no job.

    This command asks by itself, without a daemon: run it where the daemon runs, as the daemon's user.
    """
    from scheduler.executors.service import check_executor

    config = session.config
    return check(session, config.executors, names, "executor", lambda name: check_executor(config, name))

"""``schedctl workers`` and ``schedctl worker``; ``schedctl executors``, which start workers and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.columns import WORKER_COLUMNS, WORKER_FIELDS, worker_row, worker_view
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.messages import CHECK_FIELDS, check
from scheduler.cli.options import SPAN, Number, acts, common, common_but_timeout
from scheduler.cli.output import print_object, print_rows
from scheduler.cli.polling import Poller, watchable
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from scheduler.operations.workers import Drained


COLUMNS = (*WORKER_COLUMNS[:-1], "pools", "kinds", "running")
_DRAINED = ("id", "draining", "drained")


_EXECUTOR_FIELDS = (
    "executor",
    "type",
    "place",
    "worker",
    "placed_by",
    "draining",
    "wanted",
    "pending",
    "running",
    "trouble",
)


@click.command(name="workers")
@click.option("--all", "every", is_flag=True, help="Also the latest workers that stopped or died.")
@common
@prints(WORKER_FIELDS)
@watchable
def workers_command(session: Session, /, every: bool) -> None:
    """Workers: where they run, the kinds they serve, the tasks they hold and run, and their leases."""
    from scheduler.operations import workers

    with session.desk.read() as tx:
        found = workers.now(tx, every=every)
    for text in filter(None, (found.idle, *found.orphans)):
        note(text)
    rows = []
    for worker in found.workers:
        row = worker_view(worker, found.at)
        if session.output == "table":
            row = worker_row(worker, found.at) | {"kinds": ",".join(worker.kinds)}
        rows.append(row)
    print_rows(session, rows, COLUMNS)


@click.group(name="worker", cls=CommandGroup)
def worker_command() -> None:
    """One worker: let it drain, claim again, or restart."""


@worker_command.command(name="drain")
@click.argument("worker", metavar="ID", type=Number(1, 2**63 - 1))
@click.option("--wait", is_flag=True, help="Wait until it holds nothing any more.")
@click.option("--timeout", type=SPAN, metavar="S", help="Give up waiting after this long (30, 5m); status 124.")
@acts
@common_but_timeout
@prints(_DRAINED)
@click.pass_context
def drain(ctx: click.Context, session: Session, /, worker: int, wait: bool, timeout: int | None) -> None:
    """Let a worker claim nothing more: its running tasks end, and tasks it has not begun go back.

    The worker shows as draining and keeps its lease. It claims again after `schedctl worker resume`, or when its
    program is started anew. To end it, stop the program as ever (SIGTERM).
    """
    from scheduler.model.texts import counted
    from scheduler.operations import workers

    if timeout is not None and not wait:
        raise click.UsageError("--timeout belongs to --wait", ctx)
    if timeout is not None:
        session.timeout = timeout / 1_000_000
    workers.drain(session.desk, worker)
    if not wait:
        _tell(session, {"id": worker, "draining": True, "drained": False}, f"worker {worker} drains")
        return
    looks = Poller(session, timeout)
    while not (looked := looks.take(lambda: _look(session, worker))).over:
        left = [f"holds {counted(looked.holds, 'task')}"] if looked.holds else []
        left += [f"runs {workers.orphans_phrase(looked.orphans)}"] if looked.orphans else []
        held = f"still {' and '.join(left)}" if left else "has not noticed yet"
        if looked.lost and looks.settled:
            note(f"worker {worker} lost its lease and {held}: the next live worker takes back what it holds")
            ctx.exit(exits.FAILED)
        if not looks.again():
            note(f"worker {worker} {held}")
            ctx.exit(exits.TIMED_OUT)
    _tell(session, {"id": worker, "draining": True, "drained": True}, f"worker {worker} has drained")


@worker_command.command(name="resume")
@click.argument("worker", metavar="ID", type=Number(1, 2**63 - 1))
@acts
@common
@prints(_DRAINED)
def resume(session: Session, /, worker: int) -> None:
    """Let a draining worker claim again."""
    from scheduler.operations import workers

    workers.resume(session.desk, worker)
    _tell(session, {"id": worker, "draining": False, "drained": False}, f"worker {worker} claims tasks again")


@worker_command.command(name="restart")
@click.argument("worker", metavar="ID", type=Number(1, 2**63 - 1))
@acts
@common
@prints(("id", "restarting"))
def restart(session: Session, /, worker: int) -> None:
    """Let a daemon end and start anew, which frees the slots of handlers that hang.

    The daemon claims nothing more and waits for running tasks as at SIGTERM, but not for handlers that hang. An
    attempt past its timeout counts as timed out; any other goes back unused. The daemon ends with status 75, and
    systemd starts it again. A program that runs a Scheduler of its own only says so in its log.
    """
    from scheduler.operations import workers

    workers.restart(session.desk, worker)
    _tell(session, {"id": worker, "restarting": True}, f"worker {worker} is to restart")


def _tell(session: Session, view: dict[str, Any], text: str) -> None:
    if not print_object(session, view):
        say(text)


def _look(session: Session, worker: int) -> Drained:
    from scheduler.operations.workers import drained

    with session.database.read() as tx:
        return drained(tx, worker)


@click.group(name="executors", cls=CommandGroup)
def executors_command() -> None:
    """Places where tasks run that name an executor."""


@executors_command.command(name="list")
@common
@prints(_EXECUTOR_FIELDS)
def list_executors(session: Session, /) -> None:
    """The executors of the configuration, and executors that daemons of this store have had.

    WORKER: the id that `worker drain` and `worker resume` take, to place nothing more and to go on. PLACED BY: the
    daemon that starts the jobs. PENDING: jobs that have not taken their task up; RUNNING: jobs that have. Where
    jobs are workers for many tasks, WANTED is the number that the backlog asks for, and PENDING and RUNNING count
    workers.
    """
    from scheduler.operations.workers import listed

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

"""``schedctl cron import``, ``sync`` and ``add``: commands of a crontab as schedules."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from scheduler.cli.options import acts, common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints
from scheduler.cli.submit import Times, schedule
from scheduler.model.catchup import OVERLAPS
from scheduler.operations.new_task import PlacedTask

F = TypeVar("F", bound=Callable[..., Any])
_FIELDS = ("line", "action", "name", "recurrence", "notes", "text")
_APSCHEDULER = ("job", "function", "action", "name", "when", "notes")
_COLUMNS = ("line", "action", "name", "recurrence", "notes")


def _crontab_options(command: F) -> F:
    options = (
        click.option("--system", is_flag=True, help="The sixth column is the user, as in /etc/crontab."),
        click.option("--source", metavar="NAME", help="What the names of the schedules begin with."),
        click.option("--overlap", type=click.Choice(OVERLAPS), default="allow", show_default=True,
                     help="What happens at a fire time while the last run is under way."),
        click.option("--no-mail", is_flag=True, help="Send no mail to MAILTO when a command fails."),
        click.option("--dry-run", is_flag=True, help="Change nothing, and list what each line would become."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command(name="import")
@click.argument("crontab", type=click.File("r", encoding="utf-8"))
@_crontab_options
@acts
@common
@prints(_FIELDS)
def import_command(session: Session, /, crontab: Any, **given: Any) -> None:
    """Make a schedule of each line of a crontab; - reads standard input.

    crontab -l | schedctl cron import --dry-run -

    Each line is printed with its differences from cron. A second import updates the same schedules.
    """
    _apply(session, crontab, exact=False, **given)


@click.command(name="sync")
@click.argument("crontab", type=click.File("r", encoding="utf-8"), metavar="FILE")
@_crontab_options
@click.option("--allow-empty", is_flag=True, help="Delete all of them, too, if no line asks for runs.")
@acts
@common
@prints(_FIELDS)
def sync_command(session: Session, /, crontab: Any, **given: Any) -> None:
    """Make the schedules those of a crontab: as import, and schedules whose lines are gone are deleted.

    Only schedules that an earlier sync of the same --source made are deleted.
    """
    _apply(session, crontab, exact=True, **given)


@click.command(name="add", context_settings={"allow_interspersed_args": False})
@click.argument("name")
@click.argument("expression", metavar="EXPR")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--zone", "tz", metavar="ZONE", help="The zone of EXPR; else [schedules] timezone.")
@click.option("--overlap", type=click.Choice(OVERLAPS), help="What happens while the last run is under way.")
@acts
@common
@prints(("schedule", "created"))
def add_command(
    session: Session, /, name: str, expression: str, command: tuple[str, ...], tz: str | None, overlap: str | None
) -> None:
    """Run a command again and again: `cron add nightly '0 2 * * *' -- backup --all`.

    One COMMAND with blanks is a line for /bin/sh. `schedctl run --cron` has all options.
    """
    from scheduler.cli.submit import COMMAND_KIND, command_kind

    if command[0] == "--":
        command = command[1:]
    if not command:
        raise click.UsageError("there is no COMMAND after --")
    payload: dict[str, Any] = {"argv": list(command)}
    if len(command) == 1 and " " in command[0]:
        payload["shell"] = True
    times = Times(cron=expression, tz=tz, overlap=overlap)
    schedule(session, PlacedTask(key=name), times, COMMAND_KIND, payload, command_kind(session))


@click.command(name="from-apscheduler")
@click.argument("url")
@click.option("--table", default="apscheduler_jobs", show_default=True, help="The table of the job store.")
@click.option("--kind", "kinds", multiple=True, metavar="FUNCTION=KIND", help="The kind of a function; repeatable.")
@click.option("--dry-run", is_flag=True, help="Change nothing, and list what each job would become.")
@acts
@common
@prints(_APSCHEDULER)
def from_apscheduler_command(session: Session, /, url: str, table: str, kinds: tuple[str, ...], dry_run: bool) -> None:
    """Make a schedule, or a task, of each job of an APScheduler 3 whose job store is an SQL database.

    schedctl cron from-apscheduler sqlite:///jobs.sqlite --dry-run

    Each job is printed with its differences. No code that the store's pickles name is run.
    """
    from scheduler.client.json_views import fields
    from scheduler.operations import apscheduler as operations

    named = {one.partition("=")[0]: one.partition("=")[2] for one in kinds}
    if not all(named) or not all(named.values()):
        raise click.UsageError("--kind is FUNCTION=KIND, such as shop.jobs:nightly=nightly_report")
    jobs = operations.jobs_in(url, table)
    desk = session.desk if dry_run else session.making()
    rows = [
        {
            **fields(line, "job", "function", "action", "name", "when"),
            "notes": "; ".join([*([line.left_out] if line.left_out else []), *line.notes]) or None,
        }
        for line in operations.move(desk, jobs, named, dry_run=dry_run)
    ]
    print_rows(session, rows)
    if dry_run:
        note("nothing was changed: this was a dry run")


def _apply(
    session: Session,
    crontab: Any,
    *,
    exact: bool,
    system: bool,
    source: str | None,
    overlap: str,
    no_mail: bool,
    dry_run: bool,
    allow_empty: bool = False,
) -> None:
    from scheduler.operations import crontab as operations

    path = getattr(crontab, "name", "-")
    named = source or ("crontab" if path in ("-", "<stdin>") else os.path.basename(path))
    try:
        text = crontab.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is not UTF-8: {error}") from None
    desk = session.desk if dry_run else session.making()
    with desk.read() as tx:
        lines = operations.read(
            tx, text, named, zone=session.config.schedules.timezone, system=system, overlap=overlap, mail=not no_mail
        )
    done = operations.apply(desk, lines, f"crontab:{named}", exact=exact, dry_run=dry_run, allow_empty=allow_empty)
    actions = {name: action for action in ("added", "updated", "unchanged") for name in getattr(done, action)}
    rows = [
        {
            "line": line.number,
            "action": actions[line.name],
            "name": line.name,
            "recurrence": line.spec.recurrence.describe(),
            "notes": "; ".join(line.notes) or None,
            "text": line.text,
        }
        for line in lines
    ]
    removed = [name for name in done.removed if exact]
    rows += [dict.fromkeys(_FIELDS) | {"action": "deleted", "name": name} for name in removed]
    print_rows(session, rows, _COLUMNS)
    note("commands have the daemon's environment, user and directory; output is kept with each task")
    if dry_run:
        note("nothing was changed: this was a dry run")

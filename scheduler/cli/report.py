"""``schedctl report``: verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli import exits
from scheduler.cli.options import common
from scheduler.cli.output import print_object
from scheduler.cli.session import Session, prints
from scheduler.cli.streams import say
from scheduler.errors import StoreUnavailableError

if TYPE_CHECKING:
    from scheduler.operations.report import Health


@click.group(name="report")
def report_command() -> None:
    """Verdicts, each with its causes."""


@report_command.command()
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@common
@prints(("verdict", "at", "causes"))
@click.pass_context
def health(ctx: click.Context, session: Session, /, as_json: bool) -> None:
    """Print one verdict: well, degraded or broken, its causes, and the next command for each.

    Exit status 0 if all is well, 5 if the store cannot be reached, else 1. The same state gives the same report.
    """
    from scheduler.operations import report

    if as_json:
        session.output = "json"
    try:
        with session.desk.read() as tx:
            found = report.health_of(tx)
    except StoreUnavailableError as error:
        _print(session, report.unreachable(error))
        raise
    _print(session, found)
    if found.causes:
        ctx.exit(exits.FAILED)


def _print(session: Session, found: Health) -> None:
    from scheduler.client.json_views import health_view

    if print_object(session, health_view(found)):
        return
    say(found.describe())
    for number, one in enumerate(found.causes, 1):
        say(f"{number}. {one.text}")
        if one.remedy and "`" not in one.text:
            say(f"   {one.remedy}")
        say(f"   next: {one.next}")

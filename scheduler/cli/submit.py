"""``schedctl submit`` and ``schedctl run``: make tasks without importing task modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.making import made_fields, make_options, read, schedule
from scheduler.cli.options import acts, common_but_timeout
from scheduler.cli.session import Session, prints

if TYPE_CHECKING:
    from scheduler.operations.kinds import KindRecord

COMMAND_KIND = "CommandTask"


@click.command(name="submit")
@click.argument("kind")
@click.option("-P", "params", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="A field of the payload.")
@make_options
@acts
@common_but_timeout
@prints(made_fields)
def submit_command(session: Session, /, kind: str, params: tuple[str, ...], **given: Any) -> None:
    """Schedule a task of a kind that workers have registered; prints its id.

    The payload is checked against the kind's schema. -P to=me@example.com gives a text, -P count:=3 any JSON.
    """
    from scheduler.cli.payload import naming_option, read_params
    from scheduler.model.names import check_text
    from scheduler.operations.published import get_published

    check_text(kind, "a kind")
    payload = read_params(params)
    options, times = read(given)
    with session.desk.read() as tx:
        record = get_published(tx, kind)
    with naming_option():
        schedule(session, options, times, kind, payload, record)


@click.command(name="run", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--cwd", metavar="DIR", help="Run in this directory; by default in the one that the daemon's configuration names."
)
@click.option(
    "--env", "environment", multiple=True, metavar="NAME=VALUE", help="Set a variable, beside the daemon's environment."
)
@click.option("--shell", is_flag=True, help="COMMAND is one text for /bin/sh -c.")
@make_options
@acts
@common_but_timeout
@prints(made_fields)
def run_command(
    session: Session,
    /,
    command: tuple[str, ...],
    cwd: str | None,
    environment: tuple[str, ...],
    shell: bool,
    **given: Any,
) -> None:
    """Schedule a command, without a shell; prints the task's id.

    schedctl run --in 5m --retry 2 -- rsync -a /srv/photos backup:

    The daemon must serve CommandTask and allow commands ([command] enabled = true).
    """
    import os

    if shell and len(command) != 1:
        raise click.UsageError("with --shell COMMAND is one text: quote it")
    payload: dict[str, Any] = {"argv": list(command)}
    if shell:
        payload["shell"] = True
    if environment:
        payload["env"] = dict(_pair(text) for text in environment)
    if cwd is not None:
        payload["cwd"] = os.path.abspath(cwd)
    schedule(session, *read(given), COMMAND_KIND, payload, command_kind(session))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--env {text!r} is not NAME=VALUE")
    return name, value


def command_kind(session: Session) -> KindRecord | None:
    """The published kind of CommandTask; None if no worker ever served it: the task then waits for one."""
    from scheduler.operations.kinds import get_kind

    with session.database.read() as tx:
        return get_kind(tx, COMMAND_KIND)

"""``schedctl service``: schedd as a service of systemd or launchd."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.options import common
from scheduler.cli.output import print_object, print_rows
from scheduler.cli.session import Session, note, prints
from scheduler.errors import ConfigError

if TYPE_CHECKING:
    from scheduler.operations.service_manager import Whose

_FIELDS = ("whose", "unit", "state", "pid", "enabled", "since", "restarts", "active")


@click.group(name="service")
def service_command() -> None:
    """Run schedd as a service of systemd or, on macOS, of launchd."""


@service_command.command()
@click.option("--system", is_flag=True, help="A service of the machine, as a user of its own; as root.")
@click.option("--user", is_flag=True, help="A service of yours.")
@click.option("--run-as", metavar="USER", default="schedd", show_default=True, help="The user of a --system service.")
@click.option(
    "--credential",
    "credentials",
    metavar="SETTING=FILE",
    multiple=True,
    help="A setting that is read from a file, such as store.url=/etc/schedd/store.url; may be repeated.",
)
@click.option(
    "--drop-in",
    "drop_ins",
    type=click.Choice(("delegate", "no-namespaces")),
    multiple=True,
    help="delegate: memory limits hold for all that a task starts; no-namespaces: for machines that forbid these.",
)
@click.option("--dry-run", is_flag=True, help="Print the files and the commands, and do nothing.")
@common
@prints(("path", "text", "command"))
def install(
    session: Session,
    /,
    system: bool,
    user: bool,
    run_as: str,
    credentials: tuple[str, ...],
    drop_ins: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Install the service, with its user, its directories and its restrictions, and start it.

    Its configuration is the file of --config, or the one that schedctl finds. A service of the system without one gets
    /etc/schedd/config.toml. `schedctl service uninstall` removes all of it, and leaves the store.
    """
    from scheduler.operations import service
    from scheduler.operations.service_manager import Machine, Whose, Wish

    if system == user:
        raise click.UsageError("say --user or --system")
    whose = Whose.SYSTEM if system else Whose.USER
    pairs = [one.partition("=") for one in credentials]
    if any(not setting or not file for setting, _, file in pairs):
        raise click.UsageError("--credential is SETTING=FILE, such as store.url=/etc/schedd/store.url")
    machine = Machine()
    wish = Wish(
        whose, _config(session), run_as, tuple((setting, os.path.abspath(file)) for setting, _, file in pairs), drop_ins
    )
    if dry_run:
        made = service.plan(machine, wish)
        rows: list[dict[str, str]] = [{"path": str(path), "text": text} for path, text in made.files.items()]
        rows += [{"command": " ".join(command)} for command in [*made.before, *made.after, made.start]]
        if session.output != "table":
            print_rows(session, rows, ("path", "text", "command"))
            return
        for command in made.before:
            say(f"$ {' '.join(command)}")
        for path, text in made.files.items():
            say(f"--- {path}\n{text}")
        for command in [*made.after, made.start]:
            say(f"$ {' '.join(command)}")
        return
    made = service.install(machine, wish)
    for path in made.files:
        note(f"wrote {path}")
    for command in [*made.before, *made.after, made.start]:
        note(f"ran {' '.join(command)}")
    if whose is Whose.USER and not machine.darwin:
        note("`loginctl enable-linger` lets it run while you are logged out")


@service_command.command()
@click.option("--system", is_flag=True, help="The machine's service.")
@click.option("--user", is_flag=True, help="Yours.")
@common
@prints(_FIELDS)
@click.pass_context
def status(ctx: click.Context, session: Session, /, system: bool, user: bool) -> None:
    """How the service is. Exit status 1 if it does not run, 3 if none is installed."""
    from scheduler.operations import service
    from scheduler.operations.service_manager import Machine

    machine = Machine()
    found = [service.status(machine, whose) for whose in _chosen(system, user)]
    rows = [one._asdict() for one in found if one is not None]
    if not rows:
        note("no service is installed: `schedctl service install --user` or `--system`")
        ctx.exit(exits.UNKNOWN)
    if len(rows) > 1 or not print_object(session, rows[0]):
        print_rows(session, rows, _FIELDS[:-1])
    if not all(row["active"] for row in rows):
        ctx.exit(exits.FAILED)


@service_command.command()
@click.option("--system", is_flag=True, help="The machine's service.")
@click.option("--user", is_flag=True, help="Yours.")
@common
@prints(())
@click.pass_context
def uninstall(ctx: click.Context, session: Session, /, system: bool, user: bool) -> None:
    """Stop the service, and remove all that install made.

    The store stays, and so does a configuration that you have changed.
    """
    from scheduler.operations import service
    from scheduler.operations.service_manager import Machine

    machine = Machine()
    there = [whose for whose in _chosen(system, user) if whose in service.installed(machine)]
    if not there:
        note("no service is installed")
        ctx.exit(exits.UNKNOWN)
    if len(there) > 1:
        raise click.UsageError("both services are installed: say --user or --system")
    for line in service.uninstall(machine, there[0]):
        note(line)


def _chosen(system: bool, user: bool) -> list[Whose]:
    from scheduler.operations.service_manager import Whose

    return [whose for whose, named in ((Whose.SYSTEM, system), (Whose.USER, user)) if named or not (system or user)]


def _config(session: Session) -> str | None:
    """The configuration that the service gets: an absolute path, or None."""
    file = session.config.file
    if file is not None and not os.path.isfile(file):
        raise ConfigError(f"{file} is no file")
    return file

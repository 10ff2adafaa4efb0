"""``schedctl db``: upgrade, check, backup."""

from __future__ import annotations

from pathlib import Path

import click

from scheduler.cli import exits
from scheduler.cli.group import Group
from scheduler.cli.options import acts, common
from scheduler.cli.output import print_fields, print_object
from scheduler.cli.session import Session, note, prints
from scheduler.cli.streams import say


@click.group(name="db", cls=Group)
def db_command() -> None:
    """The database: upgrade, check, backup."""


@db_command.command(name="upgrade")
@click.option("--dry-run", is_flag=True, help="Print the SQL and change nothing.")
@acts
@common
@prints(("from", "to"), lasting=True)
def upgrade(session: Session, /, dry_run: bool) -> None:
    """Bring the database to this program's schema; makes a SQLite database that is not there yet."""
    from scheduler.store.db import backup as maintenance

    database = session.database
    if dry_run:
        sql = maintenance.upgrade_plan(database)
        say(sql, nl=False)
        if not sql:
            note("nothing to do: the database is up to date")
        return
    before = maintenance.health(database).revision
    maintenance.upgrade(database)
    after = maintenance.health(database).revision
    if not print_object(session, {"from": before, "to": after}):
        say(f"up to date: {after}" if before == after else f"upgraded: {before or 'nothing'} -> {after}")


@db_command.command(name="check")
@common
@prints(("url", "revision", "wanted", "bytes", "damage", "writes", "ok"))
@click.pass_context
def check(ctx: click.Context, session: Session, /) -> None:
    """Whether the database is up to date and sound. Exit status 1 if not, 5 if it cannot be reached."""
    from scheduler.model.redact import shown_url
    from scheduler.store.db import backup as maintenance

    database = session.existing()
    found = maintenance.health(database)
    ok = found.current and found.no_writes is None
    view = {
        "url": shown_url(session.config.store.url),
        "revision": found.revision,
        "wanted": found.wanted,
        "bytes": found.size,
        "damage": list(found.damage),
        "writes": found.no_writes is None,
        "ok": ok,
    }
    if not print_object(session, view):
        fields = [("database", view["url"]), ("schema", found.revision or "none"), ("bytes", found.size)]
        print_fields([*fields, ("damage", "; ".join(found.damage) or None)])
    if found.revision is not None and found.revision > found.wanted:
        note(f"the database is newer than this program ({found.wanted}): upgrade schedd on this machine")
    elif found.revision != found.wanted:
        note(f"this program needs schema {found.wanted}: run `schedctl db upgrade`")
    if found.damage:
        note("the database is damaged: stop schedd and restore a backup")
    if found.no_writes is not None:
        note(found.no_writes)
    if not ok:
        ctx.exit(exits.FAILED)


@db_command.command(name="backup")
@click.argument("target", required=False, metavar="[FILE]", type=click.Path(dir_okay=False, path_type=Path))
@common
@prints(("file", "bytes"))
def backup(session: Session, /, target: Path | None) -> None:
    """Copy a SQLite database while it is in use. FILE must not exist; without it, beside the database."""
    from scheduler.model.texts import rfc3339
    from scheduler.store.db import backup as maintenance

    database = session.existing()
    if target is None:
        stamp = rfc3339(database.clock.now(), exact=False).replace("-", "").replace(":", "")
        path = database.path or Path("-")  # no file of ours: refused below
        target = path.with_name(f"{path.name}-{stamp}.backup")
    size = maintenance.backup(database, target)
    if not print_object(session, {"file": str(target), "bytes": size}):
        say(target)

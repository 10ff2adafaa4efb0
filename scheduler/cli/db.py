"""``schedctl db``: upgrade, check, backup, copy, export, import."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.options import acts, common
from scheduler.cli.output import print_fields, print_object, print_rows
from scheduler.cli.session import Session, note, prints
from scheduler.errors import SchedulerError
from scheduler.system import files

if TYPE_CHECKING:
    from scheduler.operations.upkeep import TableSummary

_SUMMARY = ("table", "rows", "digest")


@click.group(name="db", cls=CommandGroup)
def db_command() -> None:
    """The database: upgrade, check, backup; copy, export or import a whole store."""


@db_command.command(name="upgrade")
@click.option("--dry-run", is_flag=True, help="Print the SQL and change nothing.")
@click.option(
    "--beside", is_flag=True, help="Make the tables though another schema of the PostgreSQL database has them."
)
@acts
@common
@prints(("from", "to", "copy"), lasting=True)
def upgrade(session: Session, /, dry_run: bool, beside: bool) -> None:
    """Bring the database to this program's schema; makes a SQLite database that does not exist yet.

    A failed upgrade leaves the database as it was. An older SQLite file is copied first, beside itself. The upgrade
    is refused while workers live that could not go on with the new schema.
    """
    from scheduler.model.texts import listed
    from scheduler.operations import upkeep

    if dry_run:
        sql = upkeep.upgrade_plan(session.database)
        say(sql, nl=False)
        if not sql:
            note("nothing to do: the database is up to date")
        return
    before, after, copy, older = upkeep.upgrade(session.database, beside=beside)
    if not print_object(session, {"from": before, "to": after, "copy": None if copy is None else str(copy)}):
        say(f"up to date: {after}" if before == after else f"upgraded: {before or 'nothing'} -> {after}")
        if copy is not None:
            note(f"the database as it was before is in {copy}; delete that once you have seen the new one work")
    if older:
        them = f"worker {older[0]} of an older schedd works" if len(older) == 1 else f"workers {listed(older)} work"
        note(f"{them} on with schema {after}, but not with a later one: upgrade schedd there before the next upgrade")


@db_command.command(name="check")
@common
@prints(("url", "revision", "wanted", "bytes", "damage", "writes", "ok"))
@click.pass_context
def check(ctx: click.Context, session: Session, /) -> None:
    """Check that the database is up to date and sound. Exit status 1 if not, 5 if it cannot be reached."""
    from scheduler.model.redact import shown_url
    from scheduler.operations.upkeep import health

    found = health(session.existing(), usable=True)
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
    """Copy a SQLite database while it is in use. FILE must not exist; by default it lies beside the database."""
    from scheduler.operations import upkeep

    target, size = upkeep.backup(session.desk, target)
    if not print_object(session, {"file": str(target), "bytes": size}):
        say(target)


@db_command.command(name="copy")
@click.option("--to", "url", metavar="URL", help="The database to copy into, as in [store] url.")
@click.option("--to-config", metavar="FILE", help="The same, from the [store] of a configuration: hides a password.")
@acts
@common
@prints(_SUMMARY, lasting=True)
def copy(session: Session, /, url: str | None, to_config: str | None) -> None:
    """Copy the whole store into an empty database: from SQLite to PostgreSQL, or back.

    The copy is refused while workers live. Stop your programs that schedule tasks too: they wait, as for any other
    writer, and get an error after some seconds. The source is not changed.
    """
    from scheduler.config.load import load
    from scheduler.model.redact import shown_url
    from scheduler.operations import upkeep

    if (url is None) == (to_config is None):
        raise click.UsageError("say where to: --to URL or --to-config FILE")
    desk = session.desk
    wanted = url if url is not None else load(to_config, {}).store.url  # the environment names the source
    _print_summary(session, upkeep.copy(desk, wanted, _say_progress))
    note(f"copied and compared; next, set [store] url to {shown_url(wanted)} and start schedd")


@db_command.command(name="export")
@click.argument("target", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@common
@prints(_SUMMARY, lasting=True)
def export(session: Session, /, target: str) -> None:
    """Write the whole store to FILE as JSON lines; - is standard output. FILE must not exist.

    The export is refused while workers live. The file holds all payloads and results, so its owner alone may read
    it.
    """
    from scheduler.operations import upkeep

    source = session.existing()
    if target == "-":
        with click.open_file("-", "wb") as out:
            upkeep.export(source, lambda line: out.write(line + b"\n"), _say_progress)
        return
    with _new_file(target) as file:
        written = upkeep.export(source, lambda line: file.write(line + b"\n"), _say_progress)
    _print_summary(session, written)


@db_command.command(name="import")
@click.argument("source", metavar="FILE", type=click.File("rb"))
@acts
@common
@prints(_SUMMARY, lasting=True)
def load_export(session: Session, /, source: BinaryIO) -> None:
    """Fill the store of the configuration, which must be empty, from an export; - is standard input.

    Either the whole file is stored or nothing of it.
    """
    from scheduler.operations import upkeep

    _print_summary(session, upkeep.load(session.database, source, _say_progress))


def _print_summary(session: Session, written: Sequence[TableSummary]) -> None:
    rows = [one._asdict() for one in written if one.rows]
    print_rows(session, rows)


def _say_progress(table: str, rows: int) -> None:
    note(f"{table}: {rows:,} {'row' if rows == 1 else 'rows'}")


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[BinaryIO]:
    """A file that did not exist; removed again if what writes it fails. Raises SchedulerError."""
    try:
        file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | files.CLOEXEC, 0o600), "wb")
    except OSError as error:
        raise SchedulerError(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
            file.flush()
            files.sync(file.fileno())
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError):
            raise SchedulerError(f"cannot write {path}: {error.strerror}") from None
        raise

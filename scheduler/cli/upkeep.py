"""``schedctl doctor`` and ``schedctl gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.options import SPAN, acts, common, read_states
from scheduler.cli.output import print_object, print_rows
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from collections.abc import Collection

    from scheduler.model.state import TaskState
    from scheduler.operations.upkeep import DoctorFinding


_COLUMNS = ("level", "check", "text")


@click.command(name="doctor")
@click.option("--repair", is_flag=True, help="First mend every problem that can be mended, and say what was done.")
@click.option("--full", is_flag=True, help="Look at every row. It takes minutes beside many millions of tasks.")
@click.option("--install", is_flag=True, help="Check the installation instead: the store is not opened.")
@acts
@common
@prints((*_COLUMNS, "tasks"))
@click.pass_context
def doctor_command(ctx: click.Context, session: Session, /, repair: bool, full: bool, install: bool) -> None:
    """Check what must always hold. Exit status 1 if there is a problem.

    Beside more than 10,000 tasks it looks at some rows of each sort, and `extent` says which; --full looks at all.

    --install looks at versions, extras, names that hide schedd's, rights, clock, SQLite, disk and descriptors.

    The command also connects to the sources and sinks of the configuration; one that it cannot reach is no problem.
    """
    from scheduler.operations import installation
    from scheduler.operations.upkeep import PROBLEM

    if install and (repair or full):
        raise click.UsageError("--install looks at no store: leave --repair and --full out")
    found = installation.examine(session.config) if install else _examine(session, repair, full)
    rows = [{"level": f.level, "check": f.check, "text": f.text, "tasks": list(f.tasks)} for f in found]
    print_rows(session, rows, _COLUMNS, whole=True)
    if any(f.level == PROBLEM for f in found):
        ctx.exit(exits.FAILED)


def _examine(session: Session, repair: bool, full: bool) -> list[DoctorFinding]:
    from scheduler.config.paths import settled
    from scheduler.operations import installation, upkeep
    from scheduler.operations.upkeep import NOTE, OK, PROBLEM, DoctorFinding

    counts = session.config.metrics.rollups
    found, repaired = upkeep.examine(session.desk, full=full, mend=repair, counts=counts)
    if repair and repaired is None:
        note("nothing is repaired while a table is missing")
    for line in repaired or ():
        note(line)
    if session.config.sources or session.config.sinks:
        from scheduler.messages.service import examine

        for one in examine(session.config):
            text = one.text if one.reached else f"it cannot be reached from here: {one.text}"
            level = OK if one.ok else PROBLEM if one.reached else NOTE
            found.append(DoctorFinding(one.what, level, text))
    hidden = [one for one in installation.names(settled(session.config)) if one.level != OK]
    return [*found, *(one._replace(level=NOTE) for one in hidden)]


@click.command(name="gc")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed; of more than 10,000 at least how many.")
@click.option("--all", "every", is_flag=True, help="With --dry-run: count them all.")
@click.option("--older-than", type=SPAN, metavar="7d", help="Ended tasks older than this, whatever their retention.")
@click.option(
    "--status",
    "states",
    multiple=True,
    callback=read_states,
    metavar="S",
    help="Of them only tasks that ended in this state.",
)
@click.option("--kind", metavar="K", help="Of them only tasks of this kind.")
@click.option("--queue", metavar="Q", help="Of them only tasks of this queue.")
@acts
@common
@prints(("tasks", "results", "outcomes", "workers", "events", "audit", "bytes", "at_least", "dry_run"))
def gc_command(
    session: Session,
    /,
    dry_run: bool,
    every: bool,
    older_than: int | None,
    states: Collection[TaskState] | None,
    kind: str | None,
    queue: str | None,
) -> None:
    """Remove everything that has outlived its retention: ended tasks, results, outcomes, events, the audit.

    Workers do that by themselves, bit by bit. Tasks stay while a task that has not ended depends on them. On
    SQLite, the space goes back to the file system.

    With --older-than: remove ended tasks by age, whatever their retention, with their results. A task whose key is
    not free yet stays.
    """
    import msgspec

    from scheduler.model.texts import counted
    from scheduler.operations.upkeep import clean_up

    if older_than is None and not (states is None and kind is None and queue is None):
        raise click.UsageError("--status, --kind and --queue go together with --older-than")
    if every and not dry_run:
        raise click.UsageError("--all goes together with --dry-run")
    kept = {
        name: seconds
        for name, seconds in msgspec.structs.asdict(session.config.retention).items()
        if seconds is not None
    }
    found = clean_up(
        session.desk,
        kept,
        older_than=older_than,
        states=states,
        kind=kind,
        queue=queue,
        dry_run=dry_run,
        every=every,
    )
    removed = found.removed
    if found.unknown is not None:
        note(found.unknown)
    at_least = dry_run and removed.more
    view = {**removed._asdict(), "bytes": found.freed, "at_least": at_least, "dry_run": dry_run}
    del view["more"]
    if print_object(session, view):
        return
    parts = [
        counted(removed.tasks, "task"),
        counted(removed.results, "expired result"),
        counted(removed.outcomes, "old outcome"),
        counted(removed.events, "old event"),
        f"{counted(removed.workers, 'worker')} gone for a week",
    ]
    say(f"{'would remove' if dry_run else 'removed'} {'at least ' if at_least else ''}{', '.join(parts)}")
    if at_least:
        say("The oldest of each sort were looked at: `--all` counts them all.")
    if found.freed:
        say(f"gave {found.freed // 1024} KiB back to the file system")

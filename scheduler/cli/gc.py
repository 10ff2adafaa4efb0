"""``schedctl gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli.options import SPAN, acts, common, read_states
from scheduler.cli.output import print_object
from scheduler.cli.session import Session, note, prints
from scheduler.cli.streams import say

if TYPE_CHECKING:
    from collections.abc import Collection

    from scheduler.model.state import TaskState


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

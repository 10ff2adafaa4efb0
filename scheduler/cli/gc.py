"""``schedctl gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli.options import common
from scheduler.cli.output import print_object
from scheduler.cli.session import Session, prints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.store.database import Database
    from scheduler.store.retention import Removed


@click.command(name="gc")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common
@prints(("tasks", "results", "outcomes", "workers", "events", "bytes", "dry_run"))
def gc_command(session: Session, /, dry_run: bool) -> None:
    """Remove what has outlived its retention, now: ended tasks, expired results, outcomes, events.

    Workers do that by themselves, bit by bit. What a task that has not ended depends on stays. On SQLite, the space
    goes back to the file system.
    """
    import msgspec

    from scheduler.model.texts import counted
    from scheduler.store import maintenance, retention

    database = session.existing()
    kept = msgspec.structs.asdict(session.config.retention)
    freed = 0
    if dry_run:
        with database.read() as connection:
            removed = retention.would_remove(connection, database.now(), kept)
    else:
        removed = _all(database, kept)
        freed = maintenance.shrink(database)
    view = {**removed._asdict(), "bytes": freed, "dry_run": dry_run}
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
    click.echo(f"{'would remove' if dry_run else 'removed'} {', '.join(parts)}")
    if freed:
        click.echo(f"gave {freed // 1024} KiB back to the file system")


def _all(database: Database, kept: Mapping[str, float]) -> Removed:
    """Batch by batch, so that nobody is kept waiting."""
    from scheduler.store import retention

    removed = retention.Removed(more=True)
    while removed.more:
        with database.write() as connection:
            removed = removed.plus(retention.sweep(connection, database.dialect, database.now(), kept))
    after: int | None = 0
    while after is not None:
        with database.write() as connection:
            one, after = retention.review(connection, database.dialect, database.now(), kept, after)
        removed = removed.plus(one)
    return removed

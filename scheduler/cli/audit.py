"""``schedctl audit``: who changed what, and why."""

from __future__ import annotations

from typing import Any

import click

from scheduler.cli.columns import AUDIT_FIELDS, audit_view
from scheduler.cli.options import AGO, TASK_ID, Number, common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints

_COLUMNS = ("at", "actor", "action", "about", "via", "reason")


@click.command(name="audit")
@click.argument("task_id", metavar="[ID]", type=TASK_ID, required=False)
@click.option("--action", metavar="A", help="Only this verb: cancel, retry, pause, …; schedule means all of schedules.")
@click.option("--by", "actor", metavar="NAME", help="Only changes by this user.")
@click.option("--subject", metavar="S", help='Only changes of this, such as "queue mail"; queue means all queues.')
@click.option("--via", metavar="V", help="Only changes through this door: cli, python, page, api, mcp or http.")
@click.option("--bulk", metavar="B", help="The entries of one change of many tasks.")
@click.option("--since", type=AGO, metavar="T", help="Since this time (with its zone), or this long ago, such as 2h.")
@click.option("--until", type=AGO, metavar="T", help="Before this time, likewise.")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@click.option("--cursor", type=Number(1, 2**63 - 1), metavar="ID", help="Only entries older than this one.")
@common
@prints(("about", *AUDIT_FIELDS))
def audit_command(
    session: Session, /, since: int | None, until: int | None, limit: int, cursor: int | None, **given: Any
) -> None:
    """Changes and who made them, newest first: cancels, retries, replays, pauses, schedules, settings, events.

    Each change is recorded in its own transaction. Entries stay for [retention] audit, even when their task is
    removed.
    """
    from scheduler.operations.audit import AuditFilter, shown

    with session.desk.read() as tx:
        now = session.database.clock.now()
        first, end = (at + now if at is not None and at <= 0 else at for at in (since, until))
        found, more = shown(tx, AuditFilter(**given, since=first, until=end), limit, cursor)
    print_rows(session, [{"about": entry.about, **audit_view(entry)} for entry in found], _COLUMNS)
    if more is not None:
        note(f"stopped at {limit}, there are more: --cursor {more} shows the next ones")

"""``schedctl cron``: recurring schedules."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.group import Group
from scheduler.cli.options import Number, acts, common
from scheduler.cli.output import print_object, print_rows, time
from scheduler.cli.session import Session, note, prints
from scheduler.cli.streams import say

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.store.read.schedules import ScheduleRecord

_COLUMNS = ("name", "kind", "recurrence", "next_at", "last_slot", "last_task", "paused", "orphan")
_FIELDS = (
    *("name", "kind", "recurrence", "next_at", "last_slot", "last_task", "paused", "orphan"),
    *("unserved", "catchup", "overlap", "payload", "created_at", "updated_at", "seen_at"),
)
_PAUSED = ("name", "paused", "next_at")
_HOUR = 3_600 * 1_000_000


@click.group(name="cron", cls=Group)
def cron_command() -> None:
    """Recurring schedules."""


@cron_command.command(name="list")
@common
@prints(_FIELDS)
def list_(session: Session, /) -> None:
    """All schedules, with their next slot.

    An orphan was left behind when its payload changed in the program. A note names those whose tasks nobody runs.
    """
    from scheduler.cli.views import decoded
    from scheduler.store.read.schedules import records
    from scheduler.store.read.unserved import describe, unserved_schedules

    with session.existing().read() as connection:
        found = records(connection)
        fleet = session.fleet(connection)
        unserved = {one.name: one for one in unserved_schedules(connection, fleet)}
    for text, _ in describe(unserved.values()) if fleet.claiming else ():
        note(text)
    left = _orphans(found)
    rows = [
        {
            "name": r.name,
            "kind": r.kind,
            "recurrence": r.recurrence.describe(),
            "next_at": time(r.next_at),
            "last_slot": time(r.last_slot),
            "last_task": r.last_task,
            "paused": r.paused,
            "orphan": r.name in left,
            "unserved": unserved[r.name].reason if r.name in unserved else None,
            "catchup": r.catchup,
            "overlap": r.overlap,
            "payload": decoded(r.payload),
            "created_at": time(r.created_at),
            "updated_at": time(r.updated_at),
            "seen_at": time(r.seen_at),
        }
        for r in found
    ]
    print_rows(session, rows, _COLUMNS)


def _orphans(found: Iterable[ScheduleRecord]) -> set[str]:
    """Schedules without a key that their program no longer registers. They are named after their payload.

    It still registers another one of the kind, an hour or more after it last registered this one.
    """
    unnamed: dict[str, list[ScheduleRecord]] = {}
    for record in found:
        if re.fullmatch(re.escape(record.kind) + r"-[0-9a-f]{12}", record.name):
            unnamed.setdefault(record.kind, []).append(record)
    left = set()
    for group in unnamed.values():
        newest = max(r.seen_at for r in group)
        left |= {r.name for r in group if r.seen_at < newest - _HOUR}
    return left


@cron_command.command(name="next")
@click.argument("name")
@click.option("-n", "--count", type=Number(1, 1000), default=5, show_default=True, help="How many.")
@common
@prints(("slot", "local", "offset", "note"))
def next_(session: Session, /, name: str, count: int) -> None:
    """The next slots of a schedule, in UTC and on the clock of its zone, with its offset.

    A note says before which of them that clock is changed. Of slots that are overdue only those are shown that
    are still to be run: with catch-up skip and last one for all of them.
    """
    from scheduler.model.recurrence import fold_marks
    from scheduler.store.read.schedules import record, upcoming
    from scheduler.store.read.unserved import describe, unserved_schedules
    from scheduler.store.read.workers import read_fleet

    database = session.existing()
    with database.read() as connection:
        found = record(connection, name)
        now = database.now()
        unserved = unserved_schedules(connection, read_fleet(connection, now))
    for text, _ in describe(one for one in unserved if one.name == name):
        note(text)
    slots = upcoming(found, count, now)
    if found.paused:
        note(f"schedule {name!r} is paused")
    if not slots:
        note("its run is under way; the delay counts from its end")
    marks = fold_marks([now, *slots], found.recurrence.tz or "UTC")  # the first of them may be the first after a change
    rows: list[dict[str, Any]] = []
    for before, mark in itertools.pairwise(marks):
        rows.append(
            {
                "slot": time(mark.instant_us),
                "local": mark.local,
                "offset": mark.offset,
                "note": f"clock changed, {before.offset} to {mark.offset}" if mark.changed else None,
            }
        )
    print_rows(session, rows, ("slot", "local", "note"))


def _pause(session: Session, name: str, paused: bool) -> None:
    from scheduler.store.read.schedules import record
    from scheduler.store.schedules import pause

    def work(connection: sa.Connection) -> ScheduleRecord:
        pause(connection, name, database.now(), paused)
        return record(connection, name)

    database = session.existing()
    found = session.write(work)
    view = {"name": name, "paused": found.paused, "next_at": time(found.next_at)}
    if not print_object(session, view):
        say(f"{name} is paused" if paused else f"{name} goes on; next at {view['next_at'] or 'the end of its run'}")


@cron_command.command()
@click.argument("name")
@acts
@common
@prints(_PAUSED)
def pause(session: Session, /, name: str) -> None:
    """Fire nothing until resumed."""
    _pause(session, name, True)


@cron_command.command()
@click.argument("name")
@acts
@common
@prints(_PAUSED)
def resume(session: Session, /, name: str) -> None:
    """Go on with the next slot; slots that passed meanwhile are left out."""
    _pause(session, name, False)


@cron_command.command()
@click.argument("name")
@acts
@common
@prints(("id",))
def trigger(session: Session, /, name: str) -> None:
    """Run once now, beside the slots; prints the task's id."""
    from scheduler.store import schedules

    database = session.existing()
    made = session.write(lambda c: schedules.trigger(c, name, database.now()))
    if not print_object(session, {"id": int(made)}):
        say(int(made))


@cron_command.command()
@click.argument("name")
@acts
@common
@prints(("name", "deleted"))
def delete(session: Session, /, name: str) -> None:
    """Forget a schedule. The tasks that it made stay."""
    from scheduler.store import schedules

    database = session.existing()
    session.write(lambda c: schedules.delete(c, name, database.now()))
    if not print_object(session, {"name": name, "deleted": True}):
        say(f"{name} deleted; a program that registers it brings it back")

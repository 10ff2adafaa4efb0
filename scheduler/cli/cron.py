"""``schedctl cron``: recurring schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.crontab import add_command, from_apscheduler_command, import_command, sync_command
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.options import INSTANT, TASK_ID, Number, acts, common
from scheduler.cli.output import masks_of, print_object, print_rows, print_table, time
from scheduler.cli.polling import watchable
from scheduler.cli.session import Session, note, note_no_worker, prints
from scheduler.model.texts import counted

if TYPE_CHECKING:
    from scheduler.operations.schedules import ScheduleRecord

_COLUMNS = ("name", "kind", "recurrence", "next_at", "next_local", "last_slot", "last_task", "paused", "orphan")
_FIELDS = (
    *("name", "kind", "recurrence", "next_at", "next_local", "last_slot", "last_task", "paused", "orphan"),
    *("unserved", "catchup", "overlap", "jitter", "owner", "tasks", "payload"),
    *("created_at", "updated_at", "seen_at"),
)
_PAUSED = ("name", "paused", "next_at")
_RUN_COLUMNS = ("first", "slot", "state", "tasks", "origin", "finished_at", "error")
_RUN_FIELDS = (
    *("first", "run", "slot", "origin", "state", "tasks", "states", "created_at", "started_at", "finished_at"),
    "error",
)


@click.group(name="cron", cls=CommandGroup)
def cron_command() -> None:
    """Recurring schedules."""


@cron_command.command(name="list")
@common
@prints(_FIELDS)
@watchable
def list_(session: Session, /) -> None:
    """All schedules with their next fire time, also on the clock of their zone.

    An orphan is a schedule that its program left behind when its payload changed. A note names schedules whose
    tasks no worker runs.
    """
    from scheduler.client.json_views import schedule_view
    from scheduler.operations import schedules

    with session.desk.read() as tx:
        found = schedules.seen(tx)
        hidden = masks_of(tx, {r.kind for r in found.found})
    note_no_worker(found.fleet.no_worker)
    for text in found.notes:
        note(text)
    rows = [schedule_view(one, found, hidden) for one in found.found]
    print_rows(session, rows, _COLUMNS)


@cron_command.command(name="next")
@click.argument("name")
@click.option("-n", "--count", type=Number(1, 1000), default=5, show_default=True, help="At most this many.")
@common
@prints(("slot", "local", "offset", "note"))
def next_(session: Session, /, name: str, count: int) -> None:
    """The next fire times of a schedule, in UTC and on the clock of its zone, with its offset.

    A note stands before a fire time at which that clock has been changed. Of overdue fire times you see only those
    that will still run: with the catch-up skip or last, one stands for all of them.
    """
    from scheduler.operations.schedules import ahead

    with session.desk.read() as tx:
        found = ahead(tx, name, count)
    for text in found.notes:
        note(text)
    rows: list[dict[str, Any]] = []
    for before, mark in found.marks:
        rows.append(
            {
                "slot": time(mark.instant_us),
                "local": mark.local,
                "offset": mark.offset,
                "note": f"clock changed, {before.offset} to {mark.offset}" if mark.changed else None,
            }
        )
    if rows or session.output != "table":
        print_rows(session, rows, ("slot", "local", "note"))


@cron_command.command(name="forecast")
@click.option("--hours", type=click.FloatRange(0.1, 168), default=24, show_default=True, help="This far ahead.")
@common
@prints(("since", "until", "schedules", "collisions", "clock_changes", "slots", "load", "truncated"))
def forecast_(session: Session, /, hours: float) -> None:
    """The coming runs of all schedules: their length, and when they want more slots than the workers have.

    P50 and P90: half of the runs, and nine of ten, took no longer in the last day, or else in the last seven. All
    other tasks that are scheduled come on top.
    """
    from scheduler.client.analysis import forecast_view
    from scheduler.model.texts import listed
    from scheduler.operations.schedules import forecast

    with session.desk.read() as tx:
        found = forecast(tx, hours)
    view = forecast_view(found)
    if print_object(session, view):
        return
    for reason in sorted({one.unserved for one in found.schedules if one.unserved is not None}):
        names = [one.name for one in found.schedules if one.unserved == reason]
        note(f"{reason}, so nothing runs {listed(names)}")
    for one in view["collisions"]:
        wants = f"{one['wants']} of {one['slots']} {one['slots_of']} slots are wanted"
        note(f"from {one['from'][:16]}Z to {one['to'][:16]}Z {wants}: {listed(one['schedules'])}")
    for one in view["clock_changes"]:
        hours_on = (one["after"] - one["before"]) / 3600
        note(f"the clock of {one['tz']} is changed at {one['at'][:16]}Z by {hours_on:+g} h: {listed(one['schedules'])}")
    rows = [{**one, "fires": one["count"], "note": _forecast_note(one)} for one in view["schedules"]]
    print_table(rows, ("name", "next_at", "fires", "p50", "p90", "tasks", "recurrence", "note"))


def _forecast_note(one: dict[str, Any]) -> str | None:
    if one["trouble"] is not None or one["paused"]:
        return str(one["trouble"] or "paused")
    if one["unserved"] is not None:
        return str(one["unserved"])
    return "by the ends of its runs" if one["approximate"] else None


def _tell_paused(session: Session, found: ScheduleRecord) -> None:
    view = {"name": found.name, "paused": found.paused, "next_at": time(found.next_at)}
    if not print_object(session, view):
        goes_on = f"{found.name} goes on; next at {view['next_at'] or 'the end of its run'}"
        say(f"{found.name} is paused" if found.paused else goes_on)


@cron_command.command()
@click.argument("name")
@acts
@common
@prints(_PAUSED)
def pause(session: Session, /, name: str) -> None:
    """Fire nothing until the schedule is resumed."""
    from scheduler.operations import schedules

    _tell_paused(session, schedules.pause(session.desk, name))


@cron_command.command()
@click.argument("name")
@acts
@common
@prints(_PAUSED)
def resume(session: Session, /, name: str) -> None:
    """Continue with the next fire time; fire times that passed meanwhile are left out."""
    from scheduler.operations import schedules

    _tell_paused(session, schedules.resume(session.desk, name))


@cron_command.command()
@click.argument("name")
@click.option("--slot", type=INSTANT, metavar="T", help="Run for this fire time (with its zone), if it has no run.")
@acts
@common
@prints(("id", "created"))
def trigger(session: Session, /, name: str, slot: int | None) -> None:
    """Run a schedule once now, or for a fire time that has no run; prints the id of the run's first task.

    The run begins even if another run is under way, also with overlap skip; a note says so.
    """
    from scheduler.operations import schedules

    made, beside = schedules.trigger(session.desk, name, slot)
    if not made.created:
        note(f"this slot has a run already, from task {int(made)} on; `schedctl retry` runs a failed task again")
    elif beside is not None:
        note(f"it runs beside task {beside}, which has not ended: overlap 'skip' holds between slots only")
    if not print_object(session, {"id": int(made), "created": made.created}):
        say(int(made))


@cron_command.command(name="runs")
@click.argument("name")
@click.option("--limit", type=Number(1, 10_000), default=20, show_default=True, help="At most this many.")
@click.option("--cursor", type=TASK_ID, metavar="ID", help="Only runs before the one whose first task this is.")
@common
@prints(_RUN_FIELDS)
def runs_of(session: Session, /, name: str, limit: int, cursor: int | None) -> None:
    """The runs of a schedule whose tasks are stored, newest first, one line each (a graph is one run)."""
    from scheduler.client.json_views import fields
    from scheduler.operations.schedules import runs

    with session.desk.read() as tx:
        found = runs(tx, name, limit + 1, cursor)
    rows = [
        {
            **fields(r, "first", "run"),
            "slot": time(r.slot),
            **fields(r, "origin", "state"),
            "tasks": sum(r.states.values()),
            "states": {state.value: count for state, count in r.states.items()},
            **fields(r, "created_at", "started_at", "finished_at", "error"),
        }
        for r in found[:limit]
    ]
    print_rows(session, rows, _RUN_COLUMNS)
    if len(found) > limit:
        note(f"stopped at {limit}, there are more: --cursor {found[limit - 1].first} shows the next ones")


@cron_command.command()
@click.argument("name")
@click.option("--from", "start", type=INSTANT, required=True, metavar="T", help="The first fire time, or earlier.")
@click.option("--to", "end", type=INSTANT, metavar="T", help="The last fire time, or later; now by default.")
@click.option("--limit", type=Number(1, 10_000), default=100, show_default=True, help="At most this many fire times.")
@click.option("--dry-run", is_flag=True, help="Store nothing, and list the fire times that would run.")
@acts
@common
@prints(("slot", "action"), lasting=True)
def backfill(session: Session, /, name: str, start: int, end: int | None, limit: int, dry_run: bool) -> None:
    """Run every missed fire time in a period. Repeating the command does not run any of them twice."""
    from scheduler.operations import schedules

    done = schedules.backfill(session.desk, name, start, end, limit, dry_run=dry_run)
    verb = "would run" if dry_run else "run"
    rows = [
        {"slot": time(slot), "action": action}
        for slot, action in sorted([(one, verb) for one in done.run] + [(one, "has run") for one in done.left_out])
    ]
    print_rows(session, rows, ("slot", "action"))
    left = f", and {counted(len(done.left_out), 'slot')} ran before" if done.left_out else ""
    note(f"{counted(len(done.run), 'slot')} to run{left}")


@cron_command.command()
@click.argument("name")
@click.option("--slot", type=INSTANT, metavar="T", help="Only the run of this fire time (with its zone).")
@click.option("--run", metavar="RUN", help="Only this run, as `cron runs -o json` names it.")
@acts
@common
@prints(("name", "cancelled", "requested"))
def cancel(session: Session, /, name: str, slot: int | None, run: str | None) -> None:
    """Cancel the tasks of a schedule's runs that have not ended. The schedule itself goes on."""
    from scheduler.operations.schedules import cancel_runs

    done = cancel_runs(session.desk, name, slot=slot, run=run)
    view = {"name": name, "cancelled": list(done.cancelled), "requested": list(done.requested)}
    if not print_object(session, view):
        say(f"{len(done.cancelled)} cancelled, {len(done.requested)} running asked to end")


@cron_command.command()
@click.argument("name")
@acts
@common
@prints(("name", "deleted"))
def delete(session: Session, /, name: str) -> None:
    """Forget a schedule. The tasks that it made stay."""
    from scheduler.operations import schedules

    schedules.delete(session.desk, name)
    if not print_object(session, {"name": name, "deleted": True}):
        say(f"{name} deleted; a program that registers it brings it back")


for _command in (add_command, from_apscheduler_command, import_command, sync_command):
    cron_command.add_command(_command)

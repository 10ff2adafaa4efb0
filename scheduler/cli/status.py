"""``schedctl status``, and the verdict of ``schedctl report``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli import exits
from scheduler.cli.columns import WORKER_COLUMNS, worker_row
from scheduler.cli.echo import say
from scheduler.cli.options import common
from scheduler.cli.output import print_object, print_table
from scheduler.cli.polling import watchable
from scheduler.cli.session import Session, note_no_worker, prints
from scheduler.client.json_views import status_view
from scheduler.errors import StoreUnavailableError

if TYPE_CHECKING:
    from scheduler.operations.status import Glance, HealthStatus


CAUSES = 3  # of dead letters that are named


@click.command(name="status")
@click.option("--check", is_flag=True, help="End with status 1 if something is stuck, or no worker takes tasks.")
@common
@prints(
    (
        "at",
        "states",
        "pools",
        "oldest_ready",
        "backlogs",
        "dead_letters",
        "workers",
        "stuck",
        "idle",
        "paused",
        "causes",
        "by_hand",
        "held_messages",
        "dead_messages",
        "at_least",
    ),
    only_reads=True,
)
@watchable
def status_command(session: Session, /, check: bool) -> int:
    """The store at a glance: tasks by state and pool, the oldest ready task, workers, and problems."""
    from scheduler.operations.status import glance

    with session.reader.read() as tx:
        seen = glance(tx)
    found = seen.status
    note_no_worker(seen.idle, seen.refused)
    if not print_object(session, status_view(found, seen.at)):
        _print(seen)
    return exits.FAILED if check and (found.stuck or found.idle) else exits.DONE


def _print(seen: Glance) -> None:
    from scheduler.model.texts import counted, listed, span_text

    found, now = seen.status, seen.at
    if found.states:
        rows = [{"state": s, "tasks": f"{n}+" if s in found.capped else n} for s, n in found.states.items()]
        print_table(rows, ("state", "tasks"))
    else:
        say("no tasks")
    say()
    pools = [{"pool": name, **count._asdict()} for name, count in found.pools.items()]
    if "pools" in found.capped:
        pools = [{**pool, "due": f"{pool['due']}+", "later": f"{pool['later']}+"} for pool in pools]
    print_table(pools, ("pool", "due", "later", "held", "slots", "async_slots"))
    say()
    oldest = found.oldest
    if oldest is not None:
        age = span_text(max(0, now - oldest.since))
        words = "" if oldest.cause is None else oldest.cause.words
        say(f"oldest ready: task {oldest.id} ({oldest.kind}, queue {oldest.queue}), for {age}{words}")
        for flow in found.flows:
            say(flow.describe())
        say()
    if found.oldest_dead is not None:
        age = span_text(max(0, now - found.oldest_dead))
        dead = counted(found.states.get("dead", 0), "dead letter")
        dead = f"at least {dead}" if "dead" in found.capped else dead
        say(f"{dead}, the oldest for {age}: `schedctl dlq list` shows the causes")
        shown = found.causes.causes[:CAUSES]
        for cause in shown:
            say(f"  {cause.number} of {cause.of_kinds()}: {cause.error} (task {cause.id})")
        if len(found.causes.causes) > len(shown):
            more = "" if found.causes.whole else "at least "
            say(f"  {len(shown)} of {more}{counted(len(found.causes.causes), 'cause')} shown")
        say()
    due = {pause.remedy: f" ({counted(number, 'task')} due)" for pause, number in found.paused}
    if found.by_hand:
        say("set by hand:")
    for hand in found.by_hand:
        say(f"  {hand.describe()}{due.get(hand.undo, '')}; `{hand.undo}` ends that")
    for text in seen.messages:
        say(text)
    if found.by_hand or found.held or found.dead_messages:
        say()
    if found.workers:
        rows = [worker_row(worker, now) | {"kinds": len(worker.kinds)} for worker in found.workers]
        print_table(rows, WORKER_COLUMNS)
        say()
    if found.idle is not None:
        say(found.idle.text)
    if found.stuck or found.idle is None:
        say("stuck:" if found.stuck else "nothing is stuck")
    for one in found.stuck:
        ids = f" (task {listed([str(i) for i in one.tasks])})" if one.tasks else ""
        say(f"  {one.text}{ids}")
        if one.remedy and "`" not in one.text:  # else its sentence has the command
            say(f"    {one.remedy}")


@click.group(name="report")
def report_command() -> None:
    """Verdicts, each with its causes."""


@report_command.command()
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@common
@prints(("verdict", "at", "causes"))
@click.pass_context
def health(ctx: click.Context, session: Session, /, as_json: bool) -> None:
    """Print one verdict: well, degraded or broken, its causes, and the next command for each.

    Exit status 0 if all is well, 5 if the store cannot be reached, else 1. The same state gives the same report.
    """
    from scheduler.operations import status

    if as_json:
        session.output = "json"
    try:
        with session.desk.read() as tx:
            found = status.health_of(tx)
    except StoreUnavailableError as error:
        _print_health(session, status.unreachable(error))
        raise
    _print_health(session, found)
    if found.causes:
        ctx.exit(exits.FAILED)


def _print_health(session: Session, found: HealthStatus) -> None:
    from scheduler.client.json_views import health_view

    if print_object(session, health_view(found)):
        return
    say(found.describe())
    for number, one in enumerate(found.causes, 1):
        say(f"{number}. {one.text}")
        if one.remedy and "`" not in one.text:
            say(f"   {one.remedy}")
        say(f"   next: {one.next}")

"""``schedctl dlq``: tasks that failed for good."""

from __future__ import annotations

from typing import Any

import click

from scheduler.cli.columns import SHOW_FIELDS, TASK_FIELDS, task_view
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.filters import (
    MAX_LIMIT,
    breaking_off,
    confirmed,
    filter_options,
    filter_text,
    note_kinds,
    rate_option,
    task_filter,
)
from scheduler.cli.options import TASK_ID, Number, acts, common
from scheduler.cli.output import masks_of, print_object, print_rows, reveals
from scheduler.cli.session import Session, note, note_stale, prints
from scheduler.cli.task_verbs import note_left

_GROUP_COLUMNS = ("count", "what", "fingerprint", "oldest", "newest", "id", "error")
_GROUP_FIELDS = (
    *("count", "what", "kind", "error_class", "fingerprint", "oldest", "newest", "id", "error"),
    *("shared_count", "shared_kinds"),
)
_COLUMNS = ("id", "kind", "attempt", "finished_at", "replay_count", "key", "fingerprint", "error")
_REPLAYED = ("id", "kind", "state", "original_id", "replay_count")

_filters = filter_options("Died", without=("states", "limit"))


@click.group(name="dlq", cls=CommandGroup)
def dlq_command() -> None:
    """Dead letters: tasks that failed for good."""


@dlq_command.command(name="list")
@click.option("--each", is_flag=True, help="Every task on a line of its own, not grouped by cause.")
@filter_text
@_filters
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@click.option("--all", "every", is_flag=True, help="Look at all dead letters, not at the newest 100,000 only.")
@common
@prints(lambda given: TASK_FIELDS if given["each"] else _GROUP_FIELDS)
def list_(session: Session, /, text: str, each: bool, limit: int, every: bool, **given: Any) -> None:
    """Dead letters by cause, the most frequent first; with --each every task, the latest first.

    A group shows the id and error of its newest task. Causes that several kinds have in common stand before the table,
    with their totals: shared_count and shared_kinds in JSON. The command looks at the newest 100,000 in the time asked
    for, and says so if there are older ones.
    """
    from scheduler.client.json_views import dead_group_view
    from scheduler.operations import dead_letters

    wanted = task_filter(session, text, given, ended=True, bare=True)
    with session.database.read() as tx:
        found = (dead_letters.newest if each else dead_letters.groups)(tx, wanted, limit, every=every)
        if isinstance(found, dead_letters.Causes):
            hidden = masks_of(tx, {group.kind for group in found.groups})
            rows = [dead_group_view(*one, hidden) for one in zip(found.groups, found.totals, strict=True)]
        else:
            hidden = masks_of(tx, {task.kind for task in found.tasks})
            rows = [hidden.view(task, task_view(task)) for task in found.tasks]
        if not rows:
            note_kinds(tx, wanted)
    if isinstance(found, dead_letters.Causes) and session.output == "table":
        for one in found.shared:
            at_least = "" if found.whole else "at least "
            say(f"{at_least}{one.number} of {one.of_kinds()}: {one.error} (task {one.id})")
    print_rows(session, rows, _COLUMNS if each else _GROUP_COLUMNS)
    if found.more:
        note("there are more: raise --limit, or choose with --kind, --error-class, --fingerprint")
    if found.cut is not None and not (each and found.more):
        note(f"looked at the newest {found.cut:,} dead letters, and there are older ones: --all looks at all")


@dlq_command.command()
@click.argument("task_id", metavar="ID", type=TASK_ID)
@reveals
@common
@prints(SHOW_FIELDS)
def show(session: Session, /, task_id: int, reveal: bool) -> None:
    """Everything about a task that is, or was, a dead letter: attempts, lineage, who replayed it."""
    from scheduler.cli.tasks import print_view, view_of
    from scheduler.operations.dead_letters import refuse_living

    view = view_of(session, task_id, reveal=reveal)
    refuse_living(task_id, view["state"], view["audit"])
    if not print_object(session, view):
        print_view(view)


@dlq_command.command()
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@click.option("--copy", is_flag=True, help="Make a new task of it, with a key of its own; the dead letter stays.")
@click.option("--key", metavar="K", help="A new key, if another task has taken its key by now.")
@click.option("-P", "params", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="Change this field of the payload.")
@click.option("--payload", metavar="JSON", help="Another payload, whole.")
@click.option("--rerun", is_flag=True, help="Then also run dependants again that ran because these ended as they did.")
@acts
@common
@prints(_REPLAYED)
def replay(
    session: Session,
    /,
    ids: tuple[int, ...],
    copy: bool,
    key: str | None,
    params: tuple[str, ...],
    payload: str | None,
    rerun: bool,
) -> None:
    """Run dead letters again with a new budget of attempts. Either all of them run again or none.

    The same task runs again, and the tasks that ended because of it come back. --key, -P and --payload are for one
    ID.
    """
    from msgspec import UNSET

    from scheduler.cli.task_options import naming_option, read_json, read_params
    from scheduler.operations import dead_letters

    wanted = list(dict.fromkeys(ids))
    if len(wanted) > 1 and (key is not None or params or payload is not None):
        raise click.UsageError("--key, -P and --payload go with one ID")
    if params and payload is not None:
        raise click.UsageError("-P and --payload exclude each other")
    if copy and rerun:
        raise click.UsageError("--copy leaves the dead letter as it is: --rerun does not go with it")
    if key is not None and not 1 <= len(key) <= 255:
        raise click.UsageError("--key is a text of 1 to 255 characters")

    with naming_option():
        done = dead_letters.replay(
            session.desk,
            wanted,
            key=key,
            payload=UNSET if payload is None else read_json("--payload", payload),
            fields=read_params(params) or None,
            copy=copy,
            rerun=rerun,
        )
    print_rows(session, [task_view(task) for task in done.tasks])
    note_left(done.left)
    note_stale(done.stale, rerun)


@dlq_command.command(name="replay-all")
@filter_text
@_filters
@click.option("--limit", type=Number(1, MAX_LIMIT), default=100, show_default=True, help="At most this many.")
@rate_option
@acts
@common
@prints(("replayed", "conflicts", "left"))
def replay_all(session: Session, /, text: str, limit: int, rate: float | None, **given: Any) -> int:
    """Run dead letters again, at most --limit of them; those that died first come first.

    A dead letter whose key another task holds, or has completed since, stays as it is; then the status is 4.
    """
    from scheduler.cli import exits
    from scheduler.model.texts import counted
    from scheduler.operations import bulk, dead_letters

    asked = task_filter(session, text, given, ended=True)
    with breaking_off("replay") as each:
        done = bulk.replay(session.desk, asked, bulk.Run(limit, rate=rate, each=each))
    for task_id, holder in done.conflicts.items():
        note(f"task {task_id} was not replayed: task {holder} has its key")
    for task_id, why in done.refused.items():
        note(f"task {task_id} was not replayed: {why}")
    note_stale(done.stale, option=False)
    with session.database.read() as tx:
        left = dead_letters.count(tx, asked)
        if not done.changed and not done.conflicts:
            note_kinds(tx, asked)
    conflicts = {str(i): holder for i, holder in done.conflicts.items()}
    if not print_object(session, {"replayed": done.changed, "conflicts": conflicts, "left": left}):
        say(f"{counted(len(done.changed), 'task')} replayed, {left} left")
    return exits.CONFLICT if done.conflicts or done.refused else exits.DONE


@dlq_command.command()
@filter_text
@_filters
@rate_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@acts
@common
@prints(("removed",))
def purge(session: Session, /, text: str, yes: bool, rate: float | None, **given: Any) -> int:
    """Remove dead letters for good. The store remembers how they ended, and the audit stays.

    Tasks that wait for one of them to be retried end as failed.
    """
    from scheduler.cli import exits
    from scheduler.model.texts import counted
    from scheduler.operations import bulk, dead_letters

    wanted = task_filter(session, text, given, ended=True)
    if not wanted.ended_before:
        raise click.UsageError("say how old they are: --older-than 7d, or ended:>7d")
    with session.desk.read() as tx:
        found = dead_letters.count(tx, wanted)
    what = f"remove {counted(found, 'task')}"
    if found and not yes and not confirmed(what, more=" for good", unchanged="nothing was removed"):
        return exits.FAILED
    removed = bulk.purge(session.desk, wanted, bulk.Run(rate=rate)).size if found else 0
    if not print_object(session, {"removed": removed}):
        say(f"{counted(removed, 'task')} removed")
    return exits.DONE

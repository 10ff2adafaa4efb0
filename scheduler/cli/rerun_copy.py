"""``schedctl rerun`` and ``schedctl copy``."""

from __future__ import annotations

from typing import Any

import click

from scheduler.cli import exits
from scheduler.cli.cancel_retry import note_left, print_states
from scheduler.cli.echo import say
from scheduler.cli.filters import (
    Asked,
    chosen_by_filters,
    filter_options,
    ids_or_filter,
    rate_option,
    run_again,
    task_filter,
)
from scheduler.cli.options import TASK_ID, acts, common, common_but_timeout
from scheduler.cli.output import print_object
from scheduler.cli.session import Session, note, prints
from scheduler.cli.task_options import change_options, take_changes


@click.command(name="rerun")
@ids_or_filter
@click.option("--no-downstream", is_flag=True, help="Leave the tasks below these as they are.")
@filter_options("Ended")
@rate_option
@click.option("--yes", is_flag=True, help="With filters: do not ask.")
@click.option("--dry-run", is_flag=True, help="With filters: only say which tasks would run again.")
@acts
@common
@prints(("id", "kind", "state"))
def rerun_command(
    session: Session,
    /,
    ids: tuple[int, ...],
    text: str,
    no_downstream: bool,
    yes: bool,
    dry_run: bool,
    limit: int | None,
    rate: float | None,
    **given: Any,
) -> int:
    """Run tasks again that have ended, also successes, with all tasks below them. Of several IDs all or none.

    The tasks begin anew: results and recorded steps are forgotten; the idempotency key stays. Tasks below them that
    have not begun wait for them again. If a task below has begun and not ended, or another task has a key by now,
    the status is 4.

    A FILTER such as `kind:Report state:success ended:<1d` chooses among the tasks that have ended. The command first
    says which tasks would run again, and asks. A task that cannot run again stays as it is; then the status is 4.
    """
    if chosen_by_filters(ids, text, given, limit, rate):
        wanted = task_filter(session, text, given, ended=True)
        asked = Asked(limit, rate, dry_run, yes)
        return run_again(session, "rerun", wanted, asked, downstream=not no_downstream)
    if dry_run:
        raise click.UsageError("--dry-run goes with filters")
    _rerun(session, ids, no_downstream)
    return exits.DONE


def _rerun(session: Session, ids: tuple[int, ...], no_downstream: bool) -> None:
    from scheduler.operations import tasks

    done = tasks.rerun(session.desk, ids, downstream=not no_downstream)
    note_left(done.left)
    for task in done.completed:
        note(
            f"task {task.id} has completed under its key {task.key!r}, and does so once more: "
            f"`schedctl copy {task.id}` makes new work of its own"
        )
    print_states(session, done.tasks)


@click.command(name="copy")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@change_options("--queue")
@click.option("--key", metavar="K", help="The key of the copy; it has none by default.")
@click.option(
    "--no-dependencies", is_flag=True, help="Do not wait for the tasks that the original waits or waited for."
)
@acts
@common_but_timeout
@prints(("id", "copied"))
def copy_command(session: Session, /, task_id: int, key: str | None, no_dependencies: bool, **given: Any) -> None:
    """Store a copy of a task, in any state, as new work; prints its id.

    Without options the copy is like the original, except for its time: it is due now, or once the tasks it waits
    for have ended. The payload is checked against the kind's schema.
    """
    from scheduler.cli.payload import naming_option
    from scheduler.operations import tasks

    changes = take_changes(given, required=False)
    with naming_option():
        made = tasks.copy(session.desk, task_id, changes, key=key, dependencies=not no_dependencies)
    if made.beside is not None:
        note(made.beside)
    if not print_object(session, {"id": int(made.id), "copied": task_id}):
        say(int(made.id))

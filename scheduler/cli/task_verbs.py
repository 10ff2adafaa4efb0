"""``schedctl cancel``, ``retry``, ``rerun`` and ``copy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.filters import (
    CANCELLED_FIELDS,
    FilterOptions,
    cancel_chosen,
    chosen_by_filters,
    filter_options,
    ids_or_filter,
    rate_option,
    run_again,
    task_filter,
)
from scheduler.cli.options import TASK_ID, acts, common, common_but_timeout
from scheduler.cli.output import print_object, print_rows
from scheduler.cli.session import Session, note, note_stale, prints
from scheduler.cli.task_options import change_options, take_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.operations.details import TaskRecord
    from scheduler.operations.tasks import Other


_CANCEL_FIELDS = ("cancelled", "requested", "finished", "dependants", "later")


@click.command(name="cancel")
@ids_or_filter
@filter_options()
@rate_option
@click.option("--yes", is_flag=True, help="With filters: do not ask.")
@click.option("--cascade", is_flag=True, help="Also cancel the tasks that wait for their success.")
@click.option("--force", is_flag=True, help="End running tasks without waiting for their handlers.")
@click.option("--dry-run", is_flag=True, help="Only say which tasks would end.")
@acts
@common
@prints(lambda given: _CANCEL_FIELDS if given["ids"] else CANCELLED_FIELDS)
def cancel_command(
    session: Session,
    /,
    ids: tuple[int, ...],
    text: str,
    cascade: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    limit: int | None,
    rate: float | None,
    **given: Any,
) -> int:
    """End tasks. Waiting tasks end at once; running tasks are asked to stop.

    With several IDs, either all are cancelled or none. Tasks that have ended already stay as they are.

    A FILTER such as `kind:Mail -queue:etl stored:>2h` chooses among the tasks that have not ended, 500 in a
    transaction. If the command breaks
    off, give it again and it continues. It first says which tasks would end, and asks; with --dry-run it only says
    so.

    Dependants end or run as their edges say. With --cascade, tasks that wait for success are cancelled too, at the
    same moment as the task they wait for.

    A handler that hangs never stops by itself. With --force its worker ends the task as cancelled at once, and its
    dependants go on. The handler keeps its slot until it ends, or until `schedctl worker restart`.
    """
    if chosen_by_filters(ids, text, given, limit, rate):
        wanted = task_filter(session, text, given)
        return cancel_chosen(session, wanted, FilterOptions(limit, rate, dry_run, yes), cascade=cascade, force=force)
    _cancel(session, ids, cascade=cascade, force=force, dry_run=dry_run)
    return exits.DONE


def _cancel(session: Session, ids: tuple[int, ...], *, cascade: bool, force: bool, dry_run: bool) -> None:
    from scheduler.model.texts import counted, listed
    from scheduler.operations import tasks

    done, hung = tasks.cancel(session.desk, ids, cascade=cascade, force=force, dry_run=dry_run)
    view = {
        "cancelled": list(done.cancelled),
        "requested": list(done.requested),
        "finished": {str(i): state.value for i, state in done.finished.items()},
        "dependants": list(done.affected),
        "later": list(done.later),
    }
    for text in hung:
        note(text)
    if print_object(session, view):
        return
    would = "would be " if dry_run else ""
    for task_id in done.cancelled:
        say(f"task {task_id} {would}cancelled")
    for task_id in done.requested:
        say(f"task {task_id} is running: cancel {would}requested{' by force' if force else ''}")
    for task_id, state in done.finished.items():
        say(f"task {task_id} had ended already: {state}")
    for others, moves, always in (
        (done.affected, f"{'would end' if dry_run else 'ended'} with it", True),
        (done.later, f"{'would be' if dry_run else 'will be'} cancelled when what is running has ended", False),
    ):
        if others or always:
            named = f": {listed([str(i) for i in others], 20)}" if others else ""
            say(f"{counted(len(others), 'dependant')} {moves}{named}")


@click.command(name="retry")
@ids_or_filter
@click.option("--no-downstream", is_flag=True, help="Leave the tasks alone that ended because of these.")
@click.option(
    "--rerun", is_flag=True, help="With IDs: then also run dependants again that ran because these ended as they did."
)
@filter_options("Ended")
@rate_option
@click.option("--dry-run", is_flag=True, help="With filters: only say which tasks would run again.")
@acts
@common
@prints(("id", "kind", "state"))
def retry_command(
    session: Session,
    /,
    ids: tuple[int, ...],
    text: str,
    no_downstream: bool,
    rerun: bool,
    dry_run: bool,
    limit: int | None,
    rate: float | None,
    **given: Any,
) -> int:
    """Run tasks again that failed, died, were cancelled or skipped, with a new budget of attempts.

    With several IDs, either all run again or none. Tasks that ended because of them are revived. A task that waits
    for its retry or its time runs now. A task cannot run again under a key that another task holds or has completed
    since: then the status is 4.

    A FILTER such as `kind:Mail class:Timeout* ended:<1h` chooses among tasks that failed or died by themselves, or that
    ended as it says. Tasks that ended first come first, 100 of them unless --limit allows more. A task whose key
    belongs to another task now stays as it is; then the status is 4.
    """
    if chosen_by_filters(ids, text, given, limit, rate):
        if rerun:
            raise click.UsageError("--rerun goes with IDs")
        wanted = task_filter(session, text, given, ended=True)
        asked = FilterOptions(100 if limit is None else limit, rate, dry_run, yes=True)
        return run_again(session, "retry", wanted, asked, downstream=not no_downstream)
    if dry_run:
        raise click.UsageError("--dry-run goes with filters")
    _retry(session, ids, no_downstream, rerun)
    return exits.DONE


def note_left(left: Mapping[int, Other]) -> None:
    """Note the tasks that were not revived because another task has their key."""
    for task_id, other in left.items():
        note(f"task {task_id} was not revived: task {other.id} has its key {other.key!r}")


def _retry(session: Session, ids: tuple[int, ...], no_downstream: bool, rerun: bool) -> None:
    from scheduler.operations import tasks

    done = tasks.retry(session.desk, ids, downstream=not no_downstream, rerun=rerun)
    note_left(done.left)
    note_stale(done.stale, rerun)
    for task in done.tasks:
        if task.state.terminal:
            note(f"task {task.id} has ended again at once, {task.error}")
    print_states(session, done.tasks)


def print_states(session: Session, tasks: Sequence[TaskRecord]) -> None:
    """Print what state each of these is in now."""
    print_rows(session, [{"id": task.id, "kind": task.kind, "state": task.state.value} for task in tasks])


def act(session: Session, name: str, task_id: int, **given: Any) -> None:
    """Do a verb that has a module of its own, and print what state the task is in then."""
    from scheduler.operations.details import get_tasks
    from scheduler.operations.verbs import task_verbs

    task_verbs()[name](session.desk, task_id, {option: value for option, value in given.items() if value is not None})
    with session.desk.read() as tx:
        print_states(session, get_tasks(tx, [task_id]))


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
        asked = FilterOptions(limit, rate, dry_run, yes)
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
    from scheduler.cli.task_options import naming_option
    from scheduler.operations import tasks

    changes = take_changes(given, required=False)
    with naming_option():
        made = tasks.copy(session.desk, task_id, changes, key=key, dependencies=not no_dependencies)
    if made.beside is not None:
        note(made.beside)
    if not print_object(session, {"id": int(made.id), "copied": task_id}):
        say(int(made.id))

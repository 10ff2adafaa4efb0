"""``schedctl bulk``: changes of many tasks whose scope is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.filters import filter_options, filter_text, task_filter
from scheduler.cli.options import Number, acts, common
from scheduler.cli.output import masks_of, print_object, print_rows
from scheduler.cli.session import Session, note, note_stale, prints
from scheduler.model.texts import counted

if TYPE_CHECKING:
    from scheduler.operations.desk import Tx
    from scheduler.operations.stored_bulks import BulkItem, BulkRecord

_FIELDS = (
    *("name", "verb", "state", "total", "looked_at", "done", "passed", "failed", "dependants", "created_at"),
    *("updated_at", "finished_at", "actor", "reason", "options", "chosen", "plan", "undoes", "left", "rate"),
)
_COLUMNS = ("name", "verb", "state", "total", "left", "done", "passed", "failed", "created_at", "actor", "reason")
_ITEMS = ("position", "task_id", "before", "result", "note")
_VERBS = ("cancel", "retry", "rerun", "replay", "purge")


@click.group(name="bulk", cls=CommandGroup)
def bulk_command() -> None:
    """Changes of many tasks: planned first, run in batches of 100, stopped, continued, undone."""


@bulk_command.command(name="plan")
@click.argument("verb", type=click.Choice(_VERBS))
@filter_text
@filter_options("Ended, or of cancel stored,")
@click.option("--cascade", is_flag=True, help="cancel: also cancel the tasks that wait for their success.")
@click.option("--force", is_flag=True, help="cancel: end running tasks without waiting for their handlers.")
@click.option("--no-downstream", is_flag=True, help="retry, rerun: leave their dependants alone.")
@click.option("-P", "params", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="replay: change this field.")
@acts
@common
@prints(_FIELDS)
def plan_(
    session: Session,
    /,
    verb: Any,
    text: str,
    cascade: bool,
    force: bool,
    no_downstream: bool,
    params: tuple[str, ...],
    limit: int | None,
    **given: Any,
) -> int:
    """Freeze the tasks that the filters choose, 1,000,000 at most, and show what `bulk run` would do with them.

    Without --status the verb chooses the states: retry takes tasks that failed or died.
    """
    from scheduler.cli.task_options import read_params
    from scheduler.model.bulk import MAX_TASKS, BulkOptions
    from scheduler.operations import stored_bulks

    if limit is not None:
        raise click.UsageError(
            f"--limit is not for bulks: their scope is all that the filters choose, up to {MAX_TASKS}"
        )
    if not text and not any(value is not None and value != () for value in given.values()):
        raise click.UsageError("say which tasks: by a filter such as kind:Mail, --key or --correlation")
    options = BulkOptions(cascade, force, not no_downstream, read_params(params) or None)
    wanted = task_filter(session, text, given, ended=verb != "cancel")
    made = stored_bulks.create(session.desk, verb, wanted, options)
    if made.plan["more"]:
        note(f"the filters choose more than {MAX_TASKS} tasks: the newest {made.total} are the scope")
    if not print_object(session, _view(made, session)):
        _say_plan(made)
    return exits.DONE


def _say_plan(made: BulkRecord) -> None:
    from scheduler.model.texts import counted

    plan = made.plan
    say(f"{made.name}: would {made.verb} {counted(plan['will'], 'task')} of {made.total}")
    for kind, states in plan["kinds"].items():
        say(f"  {kind}: {', '.join(f'{count} {state}' for state, count in states.items())}")
    for reason, count in plan["passed"].items():
        say(f"  passes over {count}: {reason}")
    if plan["dependants"]:
        what = "may end with them" if made.verb in ("cancel", "purge") else "run again after them"
        say(f"  {counted(plan['dependants'], 'other task')} {what}")
    say(f"`schedctl bulk run {made.name}` does it")


@bulk_command.command(name="run")
@click.argument("name")
@click.option("--canary", is_flag=True, help="retry, rerun, replay: one task first, then the rest if it succeeds.")
@click.option("--rate", type=float, metavar="N", help="At most this many tasks a second.")
@acts
@common
@prints(_FIELDS, lasting=True)
def run_(session: Session, /, name: str, canary: bool, rate: float | None) -> int:
    """Start a bulk, or continue one that was stopped or interrupted, and run it to its end.

    An interrupted bulk stays as it is until somebody gives this command again. The status is 4 if the bulk passed
    tasks over. It is 1 if the bulk did not reach its end: somebody stopped it, the canary did not succeed, or no
    live worker serves it.
    """
    from scheduler.operations import stored_bulks

    stored_bulks.start(session.desk, name, canary=canary, rate=rate)
    try:
        done = stored_bulks.run(session.desk, name)
    except KeyboardInterrupt:
        _note_interrupted(session, name)
        raise
    return _end(session, done)


def _note_interrupted(session: Session, name: str) -> None:
    from scheduler.operations import stored_bulks

    with session.desk.read() as tx:
        bulk = stored_bulks.get(tx, name)
    undo = f", `schedctl bulk undo {name}` takes it back" if bulk.verb == "cancel" and bulk.done else ""
    note(f"interrupted after {bulk.position} of {bulk.total}: `schedctl bulk run {name}` goes on{undo}")


def _end(session: Session, done: BulkRecord) -> int:
    """Print how a run of a bulk ended. Returns the exit status."""
    from scheduler.model.bulk import BulkState
    from scheduler.operations import stored_bulks

    if not print_object(session, _view(done, session)):
        _say_done(done)
    canary, stale = stored_bulks.outcome(session.desk, done)
    note_stale(stale, option=False)
    if done.state is not BulkState.DONE:
        why = f"it is {done.state}" if canary is None else canary.describe()
        rest = done.total - done.position
        note(f"{counted(rest, 'task')} {'is' if rest == 1 else 'are'} left: {why}")
        if canary is not None and canary.end is None:
            note(f"`schedctl bulk run {done.name} --canary` looks at it again, and goes on once it has succeeded")
        return exits.FAILED
    return exits.CONFLICT if done.passed or done.failed else exits.DONE


def _say_done(done: BulkRecord) -> None:
    looked = f"{done.position} of {done.total}"
    say(f"{done.name} is {done.state}: {looked} looked at, {done.done} done, {done.passed} passed over")
    if done.dependants:
        say(f"{done.dependants} other tasks changed with them")
    if done.passed or done.failed:
        note(f"`schedctl bulk show {done.name} --result 'passed over'` says why")


@bulk_command.command(name="stop")
@click.argument("name")
@acts
@common
@prints(_FIELDS)
def stop_(session: Session, /, name: str) -> None:
    """Stop a bulk after its present batch; `bulk run` continues it."""
    from scheduler.operations import stored_bulks

    done = stored_bulks.stop(session.desk, name)
    if not print_object(session, _view(done, session)):
        say(f"{name} is stopped after {done.position} of {done.total}")


@bulk_command.command(name="undo")
@click.argument("name")
@acts
@common
@prints(_FIELDS, lasting=True)
def undo_(session: Session, /, name: str) -> int:
    """Take back a cancel: tasks that had not begun are waiting or scheduled again.

    The bulk itself ends, so that nothing continues it.
    """
    from scheduler.operations import stored_bulks

    made = stored_bulks.undo(session.desk, name)
    stored_bulks.start(session.desk, made.name)
    done = stored_bulks.run(session.desk, made.name)
    return _end(session, done)


@bulk_command.command(name="list")
@click.option("--limit", type=Number(1, 10_000), default=20, show_default=True, help="At most this many.")
@common
@prints(_FIELDS)
def list_(session: Session, /, limit: int) -> None:
    """The newest bulks."""
    from scheduler.operations import stored_bulks

    with session.desk.read() as tx:
        found = stored_bulks.newest(tx, limit)
    print_rows(session, [_view(one, session) for one in found], _COLUMNS)


@bulk_command.command(name="show")
@click.argument("name")
@click.option("--result", type=click.Choice(("done", "passed over", "failed")), help="Only tasks with this result.")
@click.option("--limit", type=Number(1, 10_000), default=100, show_default=True, help="At most this many.")
@click.option("--cursor", type=Number(0, 2**31), metavar="N", help="Only tasks behind this position.")
@common
@prints(_ITEMS)
def show_(session: Session, /, name: str, result: str | None, limit: int, cursor: int | None) -> None:
    """Each task of a bulk, what happened to it, and why."""
    from scheduler.model.bulk import ItemResult
    from scheduler.operations import stored_bulks

    wanted = None if result is None else ItemResult(result)
    with session.desk.read() as tx:
        stored_bulks.get(tx, name)
        found, more = stored_bulks.items(tx, name, result=wanted, limit=limit, cursor=-1 if cursor is None else cursor)
        notes = _notes(tx, found)
    rows = [
        {
            "position": item.position,
            "task_id": item.task_id,
            "before": None if item.before is None else item.before.value,
            "result": None if item.result is None else item.result.value,
            "note": notes.get(item.task_id, item.note),
        }
        for item in found
    ]
    print_rows(session, rows, _ITEMS)
    if more is not None:
        note(f"stopped at {limit}, there are more: --cursor {more} shows the next ones")


def _notes(tx: Tx, items: Sequence[BulkItem]) -> dict[int, str | None]:
    """Why tasks were passed over or failed, by id, without secrets: those of URLs, and those of the tasks."""
    from scheduler.model.redact import redact
    from scheduler.operations.details import get_tasks

    notes = {item.task_id: redact(item.note) for item in items if item.note is not None}
    tasks = get_tasks(tx, list(notes))
    hidden = masks_of(tx, {task.kind for task in tasks})
    return notes | {task.id: hidden.error(task.id, task.kind, notes[task.id]) for task in tasks}


def _view(one: BulkRecord, session: Session) -> dict[str, Any]:
    from scheduler.client.bulks import bulk_info
    from scheduler.client.json_views import fields

    found = bulk_info(one, session.database.now())
    shown = {name: getattr(found, name) for name in _FIELDS}
    return {**shown, "state": found.state.value, **fields(one, "created_at", "updated_at", "finished_at")}

"""The filters of commands that change many tasks, and what such a command does and prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.options import SPAN, TASK_ID, Number, read_states
from scheduler.cli.output import print_object, print_rows, print_table
from scheduler.cli.session import Session, note, note_kind, note_stale

if TYPE_CHECKING:
    from scheduler.model.task_filter import TaskFilter
    from scheduler.operations.bulk import Bulk, Each, Run
    from scheduler.operations.changes import Changes
    from scheduler.operations.desk import Tx

F = TypeVar("F", bound=Callable[..., Any])
Again = Literal["retry", "rerun"]

CANCELLED_FIELDS = ("cancelled", "requested", "dependants", "kinds", "more", "dry_run", "bulk")
CHANGED_FIELDS = ("changed", "refused", "kinds", "more", "dry_run", "bulk")
MAX_LIMIT = 100_000_000


class FilterOptions(NamedTuple):
    """How a command changes what its filters choose. ``yes``: without asking."""

    limit: int | None
    rate: float | None
    dry_run: bool
    yes: bool


def _ids_or_filter(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> tuple[int, ...]:
    """A callback: words as ids if all are numbers; else as a filter, which arrives as ``text``."""
    numbers = all(word.isascii() and word.isdigit() for word in words)
    ctx.params["text"] = "" if numbers else " ".join(words)
    return tuple(TASK_ID.convert(word, param, ctx) for word in words) if numbers else ()


def _joined(_ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> str:
    return " ".join(words)


ids_or_filter = click.argument("ids", metavar="[ID… | FILTER]", nargs=-1, callback=_ids_or_filter)
filter_text = click.argument("text", metavar="[FILTER]", nargs=-1, callback=_joined)


def filter_options(ages: str | None = "Stored", *, without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Adds the options that say the same as words of a filter; they arrive as :func:`task_filter` reads them.

    ``ages``: since when tasks are how old; ``without``: options that the command has itself or does not want.
    """
    options = {
        "kind": click.option("--kind", metavar="K[,K…]", help="Tasks of these kinds."),
        "queue": click.option("--queue", metavar="Q[,Q…]", help="Tasks of these queues."),
        "states": click.option(
            "--status", "states", multiple=True, callback=read_states, metavar="S", help="Tasks in these states."
        ),
        "key": click.option("--key", metavar="K", help="Tasks with this key."),
        "correlation": click.option("--correlation", metavar="C", help="Tasks that belong together under this id."),
        "subject": click.option("--subject", metavar="S", help="Tasks about this subject."),
        "fairness": click.option("--fairness-key", metavar="K", help="Tasks that take the turns of this key."),
        "type": click.option(
            "--message-type", metavar="M", help="Messages of this type, which is the kind where none was given."
        ),
        "fields": click.option(
            "--field", "fields", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="Tasks with this in the payload."
        ),
        "class": click.option("--error-class", metavar="E", help="Tasks whose last failure was of this class."),
        "fingerprint": click.option(
            "--fingerprint", metavar="F", help="Tasks whose last failure had this cause, as `dlq list` names it."
        ),
        "older": click.option("--older-than", type=SPAN, metavar="2h", help=f"{ages} longer ago than this."),
        "newer": click.option("--newer-than", type=SPAN, metavar="2h", help=f"{ages} since."),
        "limit": click.option("--limit", type=Number(1, MAX_LIMIT), metavar="N", help="At most this many tasks."),
    }

    def decorate(command: F) -> F:
        for name, option in reversed(options.items()):
            command = command if name in without else option(command)
        return command

    return decorate


rate_option = click.option("--rate", type=float, metavar="N", help="At most this many tasks a second.")


def chosen_by_filters(
    ids: tuple[int, ...], text: str, given: Mapping[str, Any], limit: int | None, rate: float | None
) -> bool:
    """Whether filters choose, and not IDs. Raises UsageError if both do, or neither."""
    chosen = bool(text) or any(value is not None and value != () for value in given.values())
    if bool(ids) == chosen:
        raise click.UsageError("say either IDs, or a filter such as kind:Mail, --key or --correlation")
    if ids and limit is not None:
        raise click.UsageError("--limit goes with filters")
    if ids and rate is not None:
        raise click.UsageError("--rate goes with filters")
    return chosen


def task_filter(
    session: Session, text: str, given: Mapping[str, Any], *, ended: bool = False, bare: bool = False
) -> TaskFilter:
    """The filter of a text and of options. ``ended``: ages count from the tasks' ends. ``bare``: a word without a field
    is looked for in errors. Raises UsageError."""
    from datetime import timedelta

    from scheduler.operations.filter import FilterError, read_filter

    same = ("key", "correlation", "subject", "message_type", "error_class", "fingerprint", "fairness_key")
    keywords: dict[str, Any] = {name: given.get(name) for name in same}
    for name in ("kind", "queue"):
        if given.get(name) is not None:
            keywords[name] = [one for one in given[name].split(",") if one]
    keywords["status"] = given.get("states")
    for name in ("older_than", "newer_than"):
        if given.get(name) is not None:
            keywords[name] = timedelta(microseconds=given[name])
    fields = given.get("fields") or ()
    if fields:
        from scheduler.cli.task_options import read_params

        read_params(fields)
    try:
        return read_filter(session.reader, text, keywords, fields=fields, ended=ended, bare=bare)
    except FilterError as error:
        raise click.UsageError(str(error)) from None


def cancel_chosen(
    session: Session, wanted: TaskFilter, asked: FilterOptions, *, cascade: bool = False, force: bool = False
) -> int:
    """Cancel what the filters choose, after saying what that is. Returns the exit status."""
    from scheduler.model.texts import counted
    from scheduler.operations import bulk

    def cancel(wanted: TaskFilter, run: Run) -> Bulk:
        return bulk.cancel(session.desk, wanted, run, cascade=cascade, force=force)

    done, dry_run = _planned(session, wanted, "cancel", cancel, asked), asked.dry_run
    if done is None:
        return exits.FAILED
    view = {
        "cancelled": done.changed,
        "requested": done.requested,
        "dependants": done.dependants,
        "kinds": done.kinds,
        "more": done.more,
        "dry_run": dry_run,
        "bulk": None if dry_run else done.name,
    }
    if not print_object(session, view) and not dry_run:
        also = f", {counted(len(done.requested), 'running one')} asked to end" if done.requested else ""
        say(f"{counted(len(done.changed), 'task')} cancelled{also}")
        say(f"{counted(done.dependants, 'dependant')} ended with them")
    _note_more(done)
    return exits.DONE


def change_chosen(session: Session, wanted: TaskFilter, changes: Changes, asked: FilterOptions) -> int:
    """Change what the filters choose, after saying what that is. Returns the exit status."""
    from scheduler.cli.task_options import naming_option
    from scheduler.model.texts import counted
    from scheduler.operations import bulk

    def change(wanted: TaskFilter, run: Run) -> Bulk:
        with naming_option():
            return bulk.change(session.desk, wanted, changes, run)

    done, dry_run = _planned(session, wanted, "change", change, asked), asked.dry_run
    if done is None:
        return exits.FAILED
    refused = {str(i): why for i, why in done.refused.items()}
    view = {"changed": done.changed, "refused": refused, "kinds": done.kinds, "more": done.more, "dry_run": dry_run}
    view["bulk"] = None if dry_run else done.name
    if not print_object(session, view) and not dry_run:
        say(f"{counted(len(done.changed), 'task')} changed")
    for why in done.refused.values():
        note(why)
    _note_more(done)
    return exits.CONFLICT if done.conflicts else exits.DONE


def _planned(
    session: Session, wanted: TaskFilter, verb: str, work: Callable[[TaskFilter, Run], Bulk], asked: FilterOptions
) -> Bulk | None:
    """Say what ``work`` would do, ask, and do it; None: the answer was no. Raises UsageError without a terminal.

    Tasks that are stored after the command began are left alone.
    """
    from scheduler.model.texts import counted
    from scheduler.operations.bulk import Run

    if asked.dry_run or not asked.yes:
        plan = work(wanted, Run(asked.limit, dry_run=True))
        if not plan.size:
            with session.database.read() as tx:
                note_kinds(tx, wanted)
        if session.output == "table" or not asked.dry_run:
            _print_plan(plan, verb)
        if asked.dry_run or not plan.size:
            return plan
        if not confirmed(f"{verb} {counted(plan.size, 'task')}"):
            return None
        wanted = wanted._replace(up_to=plan.up_to)
    with breaking_off(verb) as each:
        return work(wanted, Run(asked.limit, rate=asked.rate, each=each))


def confirmed(what: str, *, more: str = "", unchanged: str = "nothing was changed") -> bool:
    """Ask whether to do something that cannot be taken back. Raises UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {what}: say --yes")
    agreed = click.confirm(f"{what[0].upper()}{what[1:]}{more}?", err=True)
    if not agreed:
        note(unchanged)
    return agreed


@contextmanager
def breaking_off(verb: str) -> Iterator[Each]:
    """Yields a function for the end of each transaction. Notes how far a broken bulk came."""
    from scheduler.model.texts import counted

    sofar: list[Bulk] = []

    def each(done: Bulk) -> None:
        sofar[:] = [done]

    try:
        yield each
    except BaseException:
        if sofar:
            done = counted(sofar[0].size, "task")
            note(f"broke off: {verb} was done for {done} by then; the same command goes on")
        raise


def _print_plan(plan: Bulk, verb: str) -> None:
    """What a bulk would do, on stderr's side of a question or as a dry run's output."""
    from scheduler.model.texts import counted

    rows = [
        {"kind": kind, "state": state, "tasks": number}
        for kind, states in sorted(plan.kinds.items())
        for state, number in sorted(states.items())
    ]
    if rows:
        print_table(rows, ("kind", "state", "tasks"))
    say(f"would {verb} {counted(plan.size, 'task')}; {counted(plan.dependants, 'other task')} may end or run again")


def run_again(session: Session, verb: Again, wanted: TaskFilter, asked: FilterOptions, *, downstream: bool) -> int:
    """Retry or rerun what the filters choose. Returns the exit status."""
    from scheduler.operations import bulk
    from scheduler.operations.details import get_tasks

    def act(wanted: TaskFilter, run: Run) -> Bulk:
        return {"retry": bulk.retry, "rerun": bulk.rerun}[verb](session.desk, wanted, run, downstream=downstream)

    dry = bulk.Run(asked.limit, dry_run=True)
    done = act(wanted, dry) if asked.dry_run else _planned(session, wanted, verb, act, asked)
    if done is None:
        return exits.FAILED
    past = "retried" if verb == "retry" else "run again"
    for task_id, holder in done.conflicts.items():
        note(f"task {task_id} was not {past}: task {holder} has its key")
    for task_id, why in done.refused.items():
        note(f"task {task_id} was not {past}: {why}")
    with session.database.read() as tx:
        tasks = get_tasks(tx, done.changed)
        if not done.changed and not done.conflicts and (asked.yes or asked.dry_run):
            note_kinds(tx, wanted)
    print_rows(session, [{"id": t.id, "kind": t.kind, "state": t.state.value} for t in tasks])
    note_stale(done.stale, option=False)
    if asked.dry_run:
        note(f"a dry run: nothing was {past}; up to {done.dependants} other tasks would run again with them")
    elif done.more:
        note(f"{len(done.changed)} were {past}; there may be more")
    return exits.CONFLICT if done.conflicts or done.refused else exits.DONE


def _note_more(done: Bulk) -> None:
    if done.more:
        note("--limit was reached; there may be more")


def note_kinds(tx: Tx, wanted: TaskFilter) -> None:
    """Note the kinds and queues of a filter that nobody knows, as nothing was found of them."""
    for kind in wanted.names("kind") or ():
        note_kind(tx, kind)

"""``schedctl set``: change stored tasks, and settings while daemons run; ``schedctl settings`` shows these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.columns import TASK_FIELDS, task_view
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.filters import (
    CHANGED_FIELDS,
    FilterOptions,
    change_chosen,
    chosen_by_filters,
    filter_options,
    ids_or_filter,
    rate_option,
    task_filter,
)
from scheduler.cli.options import Number, acts, common, common_but_timeout
from scheduler.cli.output import masks_of, print_object, print_rows
from scheduler.cli.session import Session, note, prints
from scheduler.cli.task_options import change_options, take_changes

if TYPE_CHECKING:
    from scheduler.operations.changes import Changes
    from scheduler.operations.limits import LimitTarget


SETTING_FIELDS = ("setting", "value", "changed")
_COLUMNS = ("id", "kind", "state", "priority", "queue", "run_at", "max_attempts")


@click.group(name="set", cls=CommandGroup)
def set_command() -> None:
    """Change stored tasks, and settings while daemons run."""


@set_command.command(name="task")
@ids_or_filter
@change_options("--to-queue")
@filter_options()
@rate_option
@click.option("--dry-run", is_flag=True, help="With filters: only say which tasks would be changed.")
@click.option("--yes", is_flag=True, help="With filters: do not ask.")
@acts
@common_but_timeout
@prints(lambda given: TASK_FIELDS if given["ids"] else CHANGED_FIELDS)
def set_task(
    session: Session,
    /,
    ids: tuple[int, ...],
    text: str,
    dry_run: bool,
    yes: bool,
    limit: int | None,
    rate: float | None,
    **given: Any,
) -> int:
    """Change tasks that wait, are scheduled, or wait for their retry.

    With several IDs, either all are changed or none. A payload is checked against the kind's schema. Tasks that are
    under way or have ended are not changed: then the status is 4.

    A FILTER such as `kind:Mail subject:ada` chooses the tasks, 500 in a transaction. If the command breaks off, give it
    again and it continues. It first says which tasks would be changed, and asks; with --dry-run it only says so.
    """
    changes = take_changes(given)
    if chosen_by_filters(ids, text, given, limit, rate):
        wanted = task_filter(session, text, given)
        return change_chosen(session, wanted, changes, FilterOptions(limit, rate, dry_run, yes))
    if dry_run:
        raise click.UsageError("--dry-run goes with filters")
    _set_tasks(session, list(dict.fromkeys(ids)), changes)
    return exits.DONE


def _set_tasks(session: Session, wanted: list[int], changes: Changes) -> None:
    from scheduler.cli.task_options import naming_option
    from scheduler.operations import tasks

    with naming_option():
        done = tasks.change(session.desk, wanted, changes)
    with session.desk.read() as tx:
        hidden = masks_of(tx, {task.kind for task in done.tasks})
        rows = [hidden.view(task, task_view(task)) for task in done.tasks]
    print_rows(session, rows, _COLUMNS)
    for task_id in done.same:
        note(f"task {task_id} had these values already: nothing is changed, and the audit has no entry")


@set_command.command(name="pool")
@click.argument("pool", type=click.Choice(("high", "medium", "low"), case_sensitive=False))
@click.option("--slots", type=Number(0, 10_000), metavar="N", help="Threads.")
@click.option("--async-slots", type=Number(0, 10_000), metavar="N", help="Coroutines.")
@click.option("--worker", type=Number(1), metavar="ID", help="Only this worker's slots, until it ends.")
@click.option("--reset", is_flag=True, help="Go back to the configuration.")
@acts
@common
@prints(SETTING_FIELDS)
def set_pool(
    session: Session, /, pool: str, slots: int | None, async_slots: int | None, worker: int | None, reset: bool
) -> None:
    """Change the slots of a pool, of every worker, over their configurations; in effect within a second.

    If a pool gets fewer slots, attempts that run in the surplus ones go on.
    """
    from scheduler.operations import limits

    _set(session, limits.place(pool=pool, worker=worker), limits.slots(slots, async_slots), reset=reset)


_cap_option = click.option("--max-concurrency", metavar="N|none", help="The most tasks that may be held at a time.")
_rate_option = click.option("--rate-limit", metavar="100/min|none", help="The most attempts that may start in a time.")


@set_command.command(name="kind")
@click.argument("kind")
@_cap_option
@_rate_option
@click.option("--max-per-worker", metavar="N|none", help="The most tasks that each worker may hold at a time.")
@click.option("--reset", is_flag=True, help="Go back to the limits of the type.")
@acts
@common
@prints(SETTING_FIELDS)
def set_kind(
    session: Session,
    /,
    kind: str,
    max_concurrency: str | None,
    rate_limit: str | None,
    max_per_worker: str | None,
    reset: bool,
) -> None:
    """Change the limits of a kind over all workers, over the limits of its type; in effect within a second.

    With a concurrency key, the cap is that of each key. Running tasks go on.
    """
    from scheduler.operations import limits

    _set(session, limits.place(kind=kind), _caps(max_concurrency, rate_limit, max_per_worker), reset=reset)


@set_command.command(name="key")
@click.argument("names", nargs=-1, required=True, metavar="[KIND] KEY")
@_cap_option
@_rate_option
@click.option("--weight", metavar="W|none", help="The weight of a fairness key, from 0.001 to 1000.")
@click.option("--reset", is_flag=True, help="Go back to the limits of the kind, and the weights of the tasks.")
@acts
@common
@prints(SETTING_FIELDS)
def set_key(
    session: Session,
    /,
    names: tuple[str, ...],
    max_concurrency: str | None,
    rate_limit: str | None,
    weight: str | None,
    reset: bool,
) -> None:
    """Change the limits of one key of a kind over all workers; in effect within a second.

    The cap and the rate are those of a concurrency key. The cap holds in place of the kind's, the rate beside it.
    The weight is that of a fairness key: 2 gets twice the starts of 1. Without KIND it holds for all kinds, and the
    weight of one kind goes before it. Running tasks go on.
    """
    from scheduler.operations import limits

    given = list(names)
    if len(given) > 2:
        raise click.UsageError("set key takes a kind and a key, or a fairness key alone")
    where = limits.place(kind=given[0] if len(given) > 1 else None, key=given[-1])
    _set(session, where, _caps(max_concurrency, rate_limit, weight=weight), reset=reset)


@set_command.command(name="queue")
@click.argument("queue")
@_cap_option
@_rate_option
@click.option("--reset", is_flag=True, help="Remove the limits of the queue.")
@acts
@common
@prints(SETTING_FIELDS)
def set_queue(
    session: Session, /, queue: str, max_concurrency: str | None, rate_limit: str | None, reset: bool
) -> None:
    """Change the limits of a queue over all kinds and workers; in effect within a second.

    They hold beside those of the kinds. Running tasks go on.
    """
    from scheduler.operations import limits

    _set(session, limits.place(queue=queue), _caps(max_concurrency, rate_limit), reset=reset)


def _caps(
    max_concurrency: str | None, rate_limit: str | None, max_per_worker: str | None = None, weight: str | None = None
) -> dict[str, Any]:
    from scheduler.operations.limits import caps

    given: dict[str, Any] = {
        "max_concurrency": _cap(max_concurrency, "--max-concurrency"),
        "max_per_worker": _cap(max_per_worker, "--max-per-worker"),
        "rate_limit": rate_limit,
        "weight": _weight(weight),
    }
    return caps(**{name: None if value == "none" else value for name, value in given.items() if value is not None})


def _cap(text: str | None, option: str) -> int | str | None:
    if text in (None, "none"):
        return text
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise click.UsageError(f"{option} is a whole number from 1 to 1000000, or none, not {text!r}")
    return int(text)


def _weight(text: str | None) -> float | str | None:
    if text in (None, "none"):
        return text
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"--weight is a number, or none, not {text!r}") from None


def _set(session: Session, where: LimitTarget, values: dict[str, Any], *, reset: bool) -> None:
    from scheduler.operations import limits

    if bool(values) == reset:
        raise click.UsageError("say either what to change, or --reset")
    done = limits.reset(session.desk, where) if reset else limits.change(session.desk, where, values)
    if done.unknown is not None:
        note(done.unknown)
    if not print_object(session, {"setting": where.subject, "value": done.value, "changed": done.changed}):
        text = ", ".join(f"{key} {'none' if value is None else value}" for key, value in done.value.items())
        say(f"{where.subject}: {text or 'as programs and configurations say'}")
    if not done.changed:
        note("it was so already")


@click.command(name="settings")
@common
@prints(("setting", "value", "source"))
def settings_command(session: Session, /) -> None:
    """Show the slots of each live worker, and the caps and rates of kinds, keys and queues, as they are in effect.

    SOURCE names where a setting comes from: a program, a configuration, or `schedctl set`, by whom and since when.
    """
    from scheduler.operations.limits import in_effect

    print_rows(session, [one._asdict() for one in in_effect(session.desk)])

"""``schedctl queues``, ``pause``, ``resume``: what waits in each queue, who serves it, and what holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.options import acts, common
from scheduler.cli.output import print_rows
from scheduler.cli.polling import watchable
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scheduler.operations.desk import Desk
    from scheduler.operations.kinds import QueueRecord
    from scheduler.operations.pauses import PauseResult, PauseScope


FIELDS = (
    *("queue", "ready", "later", "held", "running", "retry", "suspended", "waiting", "at_least"),
    *("oldest_ready", "oldest_age", "in", "out", "workers", "unserved", "last_served", "remedy"),
    *("paused", "max_concurrency", "rate_limit"),
)
_COLUMNS = (
    *("queue", "ready", "age", "later", "held", "retry", "suspended"),
    *("in", "out", "workers", "notes"),
)
_NOTED = 10  # queues that nobody serves, in sentences
_PAUSE_FIELDS = ("scope", "name", "since", "by", "reason", "changed")
_PAUSE_COLUMNS = ("scope", "name", "since", "by", "reason")


@click.command(name="queues")
@common
@prints(FIELDS)
@watchable
def queues_command(session: Session, /) -> None:
    """Queues: the tasks that wait in each, their age, the workers that serve it, and the limits that hold it back.

    READY tasks are due, and AGE is how long the oldest has waited for a worker; LATER, RETRY and SUSPENDED are not
    due. HELD tasks are claimed or running. IN and OUT are tasks a second over up to ten minutes. A number with + is
    the least.
    """
    from scheduler.client.json_views import queue_view
    from scheduler.operations.kinds import queues

    database = session.existing()
    with database.read() as tx:
        now = tx.now
        found = queues(tx)
    views = [queue_view(one, now) for one in found.rows]
    if session.output == "table":
        unserved = [text for text in (one.unserved_text for one in found.rows) if text is not None]
        for text in unserved[:_NOTED]:
            note(text)
        if len(unserved) > _NOTED:
            note(f"{len(unserved) - _NOTED} more queues have tasks that no live worker serves")
        for pause in dict.fromkeys(one.pause for one in found.rows if one.pause is not None):
            note(f"{pause.describe()}: `{pause.remedy}` ends that")
    if found.more:
        note(f"there are more queues than the {len(found.rows)} listed")
    if not views:
        note("no task, no worker, no pause and no limit names a queue")
    rows = [view | _row(one, view) for one, view in zip(found.rows, views, strict=True)]
    print_rows(session, rows if session.output == "table" else views, _COLUMNS)


def _row(queue: QueueRecord, view: dict[str, Any]) -> dict[str, Any]:
    notes = [] if queue.pause is None else ["paused"]
    notes += [] if queue.unserved is None else ["unserved"]
    notes += [] if queue.max_concurrency is None else [f"cap {queue.max_concurrency}"]
    notes += [] if queue.rate_limit is None else [queue.rate_limit]
    return {
        **{name: f"{view[name]}+" for name in queue.at_least},
        "age": view["oldest_age"],
        "in": f"{_rate(queue.arriving)}+" if "ready" in queue.at_least else _rate(queue.arriving),
        "out": _rate(queue.leaving),
        "workers": len(queue.workers),
        "notes": ", ".join(notes),
    }


def _rate(value: float) -> float:
    return round(value, 1 if value >= 0.1 else 3)


_names = click.argument("names", metavar="", nargs=-1)
_queues = click.option("--queue", "queues", metavar="Q", multiple=True, help="This queue; may be repeated.")
_kinds = click.option("--kind", "kinds", metavar="K", multiple=True, help="This kind; may be repeated.")


@click.command(name="pause")
@_names
@_queues
@_kinds
@click.option("--all", "everything", is_flag=True, help="Everything.")
@acts
@common
@prints(_PAUSE_FIELDS)
def pause_command(
    session: Session, /, names: tuple[str, ...], queues: tuple[str, ...], kinds: tuple[str, ...], everything: bool
) -> None:
    """Let no worker claim tasks of a queue, of a kind, or any task, until `schedctl resume`; prints all pauses.

    The pause takes effect on the whole fleet within a second. Running tasks go on, and schedules go on making
    tasks. `status`, `show` and `doctor` name each pause, with its time, its author and its reason. For one
    schedule: `schedctl cron pause`.
    """
    from scheduler.operations.pauses import pause

    _refuse_names("pause", names)
    _change(session, queues, kinds, everything, pause, "paused already")


@click.command(name="resume")
@_names
@_queues
@_kinds
@click.option("--all", "everything", is_flag=True, help="End the pause of everything.")
@acts
@common
@prints(_PAUSE_FIELDS)
def resume_command(
    session: Session, /, names: tuple[str, ...], queues: tuple[str, ...], kinds: tuple[str, ...], everything: bool
) -> None:
    """End pauses that `schedctl pause` began; prints the pauses that are left.

    --all ends the pause of everything; single queues and kinds that were paused beside it stay so.
    """
    from scheduler.operations.pauses import resume

    _refuse_names("resume", names)
    _change(session, queues, kinds, everything, resume, "not paused")


def _refuse_names(verb: str, names: tuple[str, ...]) -> None:
    """A bare name may mean a queue, a kind, a schedule or a worker. Raises UsageError."""
    if names:
        other = f"`schedctl cron {verb} {names[0]}`"
        more = f", `schedctl worker resume {names[0]}` for a worker" if verb == "resume" else ""
        raise click.UsageError(f"say --queue {names[0]} or --kind {names[0]}; {other} is for a schedule{more}")


def _change(
    session: Session,
    queues: tuple[str, ...],
    kinds: tuple[str, ...],
    everything: bool,
    change: Callable[[Desk, Sequence[PauseScope]], PauseResult],
    unchanged: str,
) -> None:
    import msgspec

    from scheduler.operations.pauses import PauseScope, scopes

    if not (queues or kinds or everything):
        raise click.UsageError("say which: --queue, --kind or --all")
    done = change(session.desk, scopes(queues=queues, kinds=kinds, everything=everything))
    for text in done.unknown:
        note(text)
    for scope, changed in done.changed.items():
        if not changed:
            note(f"{scope} was {unchanged}")
    rows = []
    for one in done.left:
        changed = done.changed.get(PauseScope(one.scope, one.name), False)
        rows.append({**msgspec.to_builtins(one), "name": one.name or None, "changed": changed})
    print_rows(session, rows, _PAUSE_COLUMNS)
    if not rows:
        note("nothing is paused")

"""``schedctl pause`` and ``schedctl resume``: queues, kinds, or everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli.options import acts, common
from scheduler.cli.output import print_rows, time
from scheduler.cli.session import Session, note, note_kind, note_queue, prints

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.store.db.tx import Tx
    from scheduler.store.pauses import Pause

_FIELDS = ("scope", "name", "since", "by", "reason", "changed")
_COLUMNS = ("scope", "name", "since", "by", "reason")


@click.command(name="pause")
@click.argument("names", metavar="", nargs=-1)
@click.option("--queue", "queues", metavar="Q", multiple=True, help="This queue; may be repeated.")
@click.option("--kind", "kinds", metavar="K", multiple=True, help="This kind; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Everything.")
@acts
@common
@prints(_FIELDS)
def pause_command(
    session: Session, /, names: tuple[str, ...], queues: tuple[str, ...], kinds: tuple[str, ...], everything: bool
) -> None:
    """Let no worker claim tasks of a queue, of a kind, or any task, until `schedctl resume`; prints what is paused.

    Takes effect on the whole fleet within a second. What runs goes on, and schedules go on making tasks. `status`,
    `show` and `doctor` say what is paused, since when, by whom and why. For one schedule: `schedctl cron pause`.
    """
    from scheduler.store.pauses import pause

    _refuse_names("pause", names)
    _change(session, queues, kinds, everything, pause, "paused already")


@click.command(name="resume")
@click.argument("names", metavar="", nargs=-1)
@click.option("--queue", "queues", metavar="Q", multiple=True, help="This queue; may be repeated.")
@click.option("--kind", "kinds", metavar="K", multiple=True, help="This kind; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="End the pause of everything.")
@acts
@common
@prints(_FIELDS)
def resume_command(
    session: Session, /, names: tuple[str, ...], queues: tuple[str, ...], kinds: tuple[str, ...], everything: bool
) -> None:
    """End pauses that `schedctl pause` began; prints what is still paused.

    --all ends the pause of everything; single queues and kinds that were paused beside it stay so.
    """
    from scheduler.store.pauses import resume

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
    change: Callable[[Tx, str, str], bool],
    unchanged: str,
) -> None:
    from scheduler.model.names import check_name
    from scheduler.model.pauses import ALL, KIND, QUEUE
    from scheduler.store.pauses import records

    scopes = [(QUEUE, check_name("queue", name)) for name in dict.fromkeys(queues)]
    scopes += [(KIND, check_name("kind", name)) for name in dict.fromkeys(kinds)]
    if everything:
        scopes.append((ALL, ""))
    if not scopes:
        raise click.UsageError("say which: --queue, --kind or --all")
    database = session.existing()

    def work(tx: Tx) -> tuple[list[bool], list[Pause]]:
        return [change(tx, *scope) for scope in scopes], records(tx)

    done, left = session.write(work)
    with database.read() as tx:
        for kind in kinds:
            note_kind(tx, kind)
        for queue in queues:
            note_queue(tx, queue)
    for (scope, name), changed in zip(scopes, done, strict=True):
        if not changed:
            note(f"{'everything' if scope == ALL else f'{scope} {name}'} was {unchanged}")
    rows = [
        {
            "scope": one.scope,
            "name": one.name or None,
            "since": time(one.at),
            "by": one.actor,
            "reason": one.reason,
            "changed": (one.scope, one.name) in dict(zip(scopes, done, strict=True)),
        }
        for one in left
    ]
    print_rows(session, rows, _COLUMNS)
    if not left:
        note("nothing is paused")

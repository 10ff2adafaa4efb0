"""``schedctl pause`` and ``schedctl resume``: queues, kinds, or everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scheduler.cli.options import acts, common
from scheduler.cli.output import print_rows
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scheduler.operations.desk import Desk
    from scheduler.operations.pauses import PauseResult, Scope

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
    """Let no worker claim tasks of a queue, of a kind, or any task, until `schedctl resume`; prints all pauses.

    The pause takes effect on the whole fleet within a second. Running tasks go on, and schedules go on making
    tasks. `status`, `show` and `doctor` name each pause, with its time, its author and its reason. For one
    schedule: `schedctl cron pause`.
    """
    from scheduler.operations.pauses import pause

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
    change: Callable[[Desk, Sequence[Scope]], PauseResult],
    unchanged: str,
) -> None:
    import msgspec

    from scheduler.operations.pauses import Scope, scopes

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
        changed = done.changed.get(Scope(one.scope, one.name), False)
        rows.append({**msgspec.to_builtins(one), "name": one.name or None, "changed": changed})
    print_rows(session, rows, _COLUMNS)
    if not rows:
        note("nothing is paused")

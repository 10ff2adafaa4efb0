"""``schedctl event``: events that tasks await."""

from __future__ import annotations

from typing import Any

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.exits import CommandGroup
from scheduler.cli.options import Number, acts, common
from scheduler.cli.output import print_object, print_rows, time
from scheduler.cli.session import Session, note, note_no_worker, prints

_FIELDS = ("name", "emitted_at", "emitted_by", "waiting", "size", "payload")


@click.group(name="event", cls=CommandGroup)
def event_command() -> None:
    """Events that tasks await."""


@event_command.command(name="emit")
@click.argument("name", metavar="NAME")
@click.argument("payload", metavar="[JSON]", required=False)
@acts
@common
@prints((*_FIELDS, "first"))
def emit_event(session: Session, /, name: str, payload: str | None) -> int:
    """Emit an event: tasks that await it go on with its payload, now or when they come to it.

    The first emit of a name wins. Emitting it again changes nothing; with another payload it is a conflict.
    """
    from scheduler.client.json_views import event_view
    from scheduler.operations.events import emit

    done = emit(session.desk, name, None if payload is None else _json(payload))
    if not print_object(session, {**event_view(done.event), "first": done.first}):
        if done.first:
            say(f"event {name} emitted")
        else:
            which = "the same" if done.same else "another one, which stays"
            note(f"event {name} was emitted at {time(done.event.emitted_at)}; its payload is {which}")
    return exits.DONE if done.same else exits.CONFLICT


@event_command.command(name="list")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@common
@prints(_FIELDS)
def list_(session: Session, /, limit: int) -> None:
    """Events: those that tasks wait for, then emitted ones, newest first."""
    from scheduler.client.json_views import event_view
    from scheduler.operations.events import listed

    found, idle = listed(session.desk, limit)
    note_no_worker(idle)
    print_rows(session, [event_view(record) for record in found])


def _json(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        from scheduler.model.json_text import json_fault

        raise click.UsageError(
            f"{text[:60]!r} is not JSON: {json_fault(text, error)}; a text needs quotes: '\"text\"'"
        ) from None

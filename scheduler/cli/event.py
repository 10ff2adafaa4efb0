"""``schedctl event``: events that tasks await."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.group import Group
from scheduler.cli.options import Number, acts, common
from scheduler.cli.output import print_object, print_rows, time
from scheduler.cli.session import Session, note, prints
from scheduler.cli.streams import say

if TYPE_CHECKING:
    from scheduler.store.db.tx import Tx
    from scheduler.store.durable.events import EventRecord

_FIELDS = ("name", "emitted_at", "emitted_by", "waiting", "size", "payload")


@click.group(name="event", cls=Group)
def event_command() -> None:
    """Events that tasks await."""


@event_command.command(name="emit")
@click.argument("name", metavar="NAME")
@click.argument("payload", metavar="[JSON]", required=False)
@acts
@common
@prints((*_FIELDS, "first"))
def emit(session: Session, /, name: str, payload: str | None) -> int:
    """Emit an event: tasks that await it go on with its payload, now or when they come to it.

    The first emit of a name wins. Emitting it again changes nothing; with another payload it is a conflict.
    """
    from scheduler.client.tasks import event_payload
    from scheduler.model.names import check_text
    from scheduler.store import audit
    from scheduler.store.durable import events

    check_text(name, "an event's name")
    text = event_payload(None if payload is None else _json(payload))

    def work(tx: Tx) -> tuple[bool, EventRecord | None, str | None]:
        new, _ = events.emit(tx, [events.Emit(name, text)])
        if new:
            audit.record(tx, "event emitted", subject=f"event {name}")
        stored = events.emitted(tx, [name])[name]
        return bool(new), events.record(tx, name), stored.payload

    first, record, stored = session.write(work)
    assert record is not None
    same = first or stored == text
    if not print_object(session, {**_view(record), "first": first}):
        if first:
            say(f"event {name} emitted")
        else:
            which = "the same" if same else "another one, which stays"
            note(f"event {name} was emitted at {time(record.emitted_at)}; its payload is {which}")
    return exits.DONE if same else exits.CONFLICT


@event_command.command(name="list")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@common
@prints(_FIELDS)
def list_(session: Session, /, limit: int) -> None:
    """Events: those that tasks wait for, then emitted ones, newest first."""
    from scheduler.store.durable.events import records

    with session.existing().read() as tx:
        found = records(tx, limit)
        if any(record.emitted_at is None for record in found):
            session.fleet(tx)
    print_rows(session, [_view(record) for record in found])


def _view(record: EventRecord) -> dict[str, Any]:
    import msgspec

    return {
        "name": record.name,
        "emitted_at": time(record.emitted_at),
        "emitted_by": record.emitted_by,
        "waiting": record.waiting,
        "size": record.size,
        "payload": None if record.payload is None else msgspec.json.decode(record.payload),
    }


def _json(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"{text[:60]!r} is not JSON: {error}; a text needs quotes: '\"text\"'") from None

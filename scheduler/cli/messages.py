"""``schedctl sources``, ``sinks``, ``inbox``, ``outbox``: messages in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import click

from scheduler.cli import exits
from scheduler.cli.exits import CommandGroup
from scheduler.cli.options import Number, acts, common
from scheduler.cli.output import print_rows, time
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scheduler.operations.desk import Desk
    from scheduler.operations.messages import SinkStatus, SourceStatus
    from scheduler.operations.pauses import PauseResult, PauseScope

    class MessageFinding(Protocol):
        """The finding of a check, of transports and of executors."""

        @property
        def ok(self) -> bool: ...
        @property
        def text(self) -> str: ...


_SOURCE_FIELDS = (
    *("source", "type", "kind", "ack", "paused", "open", "held", "dead", "last_at", "trouble", "last_error"),
    *("failed_at", "held_since", "at_least"),
)
_SOURCE_COLUMNS = _SOURCE_FIELDS[:11]
_SINK_FIELDS = ("sink", "type", "paused", "waiting", "retrying", "dead", "trouble", "last_error", "at_least")
_SINK_COLUMNS = _SINK_FIELDS[:8]
_RELEASE_FIELDS = ("source", "released", "tasks")
CHECK_FIELDS = ("name", "type", "ok", "found")
_CHANGE_FIELDS = ("name", "paused", "changed")
_REDRIVE_FIELDS = ("name", "moved")
_INBOX_FIELDS = (
    *("source", "key", "state", "task", "deliveries", "first_at", "last_at", "message_id", "subject", "sequence"),
    *("error", "expires_at"),
)
_INBOX_COLUMNS = ("source", "key", "state", "task", "deliveries", "last_at", "error")
_OUTBOX_FIELDS = ("id", "sink", "key", "state", "attempt", "due", "created_at", "group", "error")
_STATES = ("open", "done", "dead", "held", "late")


@click.group(name="sources", cls=CommandGroup)
def sources_command() -> None:
    """Sources of messages."""


@sources_command.command(name="list")
@common
@prints(_SOURCE_FIELDS)
def list_sources(session: Session, /) -> None:
    """The sources of the configuration, whether they are paused, and their messages.

    OPEN: messages that the end of their task settles. HELD: messages that wait for messages before them. DEAD:
    messages that could become no task. TROUBLE: why nothing can be received now. LAST ERROR: why the last dead
    message is dead.
    """
    from scheduler.operations.messages import source_statuses

    sections = session.config.sources
    with session.desk.read() as tx:
        found = source_statuses(tx, sections)
    rows = []
    for one in found:
        section = sections[one.name]
        kind = section.kind or ", ".join(section.kinds) or None
        row: dict[str, Any] = {"source": one.name, "type": section.type, "kind": kind, "ack": section.ack}
        row |= {name: value for name, value in one._asdict().items() if name != "name"}
        rows.append(row | {name: time(row[name]) for name in ("last_at", "failed_at", "held_since")})
    print_rows(session, rows, _SOURCE_COLUMNS)
    _note_at_least(found, "source")
    if not rows:
        note("there is no source: write one as [sources.NAME]")


@sources_command.command(name="check")
@click.argument("names", metavar="[SOURCE]…", nargs=-1)
@common
@prints(CHECK_FIELDS)
def check_sources(session: Session, /, names: tuple[str, ...]) -> int:
    """Connect to these sources, or to all of them. Status 1 if one is not as it should be.

    This command connects by itself, without a daemon; it receives nothing.
    """
    from scheduler.messages.service import check_source

    return check(session, session.config.sources, names, "source", lambda name: check_source(session.config, name))


@sources_command.command(name="pause")
@click.argument("names", metavar="SOURCE…", nargs=-1, required=True)
@acts
@common
@prints(_CHANGE_FIELDS)
def pause_sources(session: Session, /, names: tuple[str, ...]) -> None:
    """Receive nothing from these sources, on the whole fleet within a second or two. Their tasks go on."""
    from scheduler.operations.pauses import pause

    _change(session, "source", names, pause, paused=True)


@sources_command.command(name="resume")
@click.argument("names", metavar="SOURCE…", nargs=-1, required=True)
@acts
@common
@prints(_CHANGE_FIELDS)
def resume_sources(session: Session, /, names: tuple[str, ...]) -> None:
    """Receive from these sources again."""
    from scheduler.operations.pauses import resume

    _change(session, "source", names, resume, paused=False)


@sources_command.command(name="redrive")
@click.argument("name", metavar="SOURCE")
@click.option("--limit", type=Number(1, 1_000_000), default=100, show_default=True, help="At most this many.")
@acts
@common
@prints(_REDRIVE_FIELDS)
def redrive_source(session: Session, /, name: str, limit: int) -> None:
    """Send messages from a source's dead-letter queue to its queue again, the oldest first.

    This command sends by itself, without a daemon. The messages are delivered as new ones. A message that has
    become a task becomes no second one, and a message that still cannot become a task is dead again.
    """
    from scheduler.messages.service import redrive
    from scheduler.operations.messages import note_redrive

    _refuse_unknown(session.config.sources, (name,), "source")
    moved = redrive(session.config, name, limit)
    if moved:
        note_redrive(session.desk, name, moved)
    print_rows(session, [{"name": name, "moved": moved}])
    if moved == limit:
        note("there may be more: say --limit")


@click.group(name="sinks", cls=CommandGroup)
def sinks_command() -> None:
    """Sinks for messages."""


@sinks_command.command(name="list")
@common
@prints(_SINK_FIELDS)
def list_sinks(session: Session, /) -> None:
    """The sinks of the configuration, whether they are paused, and the messages that wait for them."""
    from scheduler.operations.messages import sink_statuses

    sections = session.config.sinks
    with session.desk.read() as tx:
        found = sink_statuses(tx, sections)
    rows = []
    for one in found:
        values = one._asdict()
        rows.append({"sink": values.pop("name"), "type": sections[one.name].type, **values})
    print_rows(session, rows, _SINK_COLUMNS)
    _note_at_least(found, "sink")
    if not rows:
        note("there is no sink: write one as [sinks.NAME]")


@sinks_command.command(name="check")
@click.argument("names", metavar="[SINK]…", nargs=-1)
@common
@prints(CHECK_FIELDS)
def check_sinks(session: Session, /, names: tuple[str, ...]) -> int:
    """Connect to these sinks, or to all of them. Status 1 if one is not as it should be. Publishes nothing."""
    from scheduler.messages.service import check_sink

    return check(session, session.config.sinks, names, "sink", lambda name: check_sink(session.config, name))


@sinks_command.command(name="pause")
@click.argument("names", metavar="SINK…", nargs=-1, required=True)
@acts
@common
@prints(_CHANGE_FIELDS)
def pause_sinks(session: Session, /, names: tuple[str, ...]) -> None:
    """Publish nothing to these sinks; messages wait in the store. The same as `pause --kind sinks.SINK`."""
    from scheduler.operations.pauses import pause

    _change(session, "sink", names, pause, paused=True)


@sinks_command.command(name="resume")
@click.argument("names", metavar="SINK…", nargs=-1, required=True)
@acts
@common
@prints(_CHANGE_FIELDS)
def resume_sinks(session: Session, /, names: tuple[str, ...]) -> None:
    """Publish to these sinks again."""
    from scheduler.operations.pauses import resume

    _change(session, "sink", names, resume, paused=False)


@click.group(name="inbox", cls=CommandGroup)
def inbox_command() -> None:
    """Messages that have come in."""


@inbox_command.command(name="list")
@click.option("--source", metavar="S", help="Only messages of this source.")
@click.option("--state", type=click.Choice(_STATES), help="Only messages in this state.")
@click.option("--key", metavar="K", help="Only the message with this idempotency key.")
@click.option("--task", "task_id", type=Number(1, 2**62), metavar="ID", help="Only the message that became this task.")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@common
@prints(_INBOX_FIELDS)
def list_inbox(
    session: Session, /, source: str | None, state: str | None, key: str | None, task_id: int | None, limit: int
) -> None:
    """Messages that have come in, the last first."""
    from scheduler.model.inbox import InboxState
    from scheduler.operations.messages import inbox_records, source_names

    wanted = None if state is None else InboxState(state)
    with session.desk.read() as tx:
        found = inbox_records(tx, source=source, state=wanted, key=key, task_id=task_id, limit=limit)
        known = source_names(tx, session.config.sources) if source is not None and not found else None
    rows = []
    for one in found:
        row: dict[str, Any] = {**one._asdict(), "state": one.state.value, "task": one.task_id}
        del row["task_id"]
        rows.append(row | {name: time(row[name]) for name in ("first_at", "last_at", "expires_at")})
    print_rows(session, rows, _INBOX_COLUMNS)
    _note_unknown(known, source, "source")


@inbox_command.command(name="release")
@click.argument("source", metavar="SOURCE")
@click.option("--subject", metavar="S", help="Messages of this subject only.")
@acts
@common
@prints(_RELEASE_FIELDS)
def release_inbox(session: Session, /, source: str, subject: str | None) -> None:
    """Run messages that are held because others of their subject are missing, without waiting for `gap_timeout`.

    They run in their order. A missing message that comes later does not run: it is `late` in the inbox.
    """
    from scheduler.operations.messages import release

    made = release(session.desk, source, subject)
    print_rows(session, [{"source": source, "released": len(made), "tasks": made}])
    if not made:
        of = "" if subject is None else f" of subject {subject}"
        there = "" if source in session.config.sources else f"; [sources] has no {source}"
        note(f"no message of source {source}{of} is held{there}")


@click.group(name="outbox", cls=CommandGroup)
def outbox_command() -> None:
    """Messages that go out."""


@outbox_command.command(name="list")
@click.option("--sink", metavar="S", help="Only messages to this sink.")
@click.option("--all", "everything", is_flag=True, help="Also messages that have been published.")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@common
@prints(_OUTBOX_FIELDS)
def list_outbox(session: Session, /, sink: str | None, everything: bool, limit: int) -> None:
    """Messages that wait to go out, with the dead letters among them.

    Each is a task, for `show ID`, `cancel ID` and `dlq replay ID`.
    """
    from scheduler.model.outgoing import PREFIX, sink_kind
    from scheduler.operations.messages import outbox_records, sink_names

    kind = None if sink is None else sink_kind(sink)
    with session.desk.read() as tx:
        found = outbox_records(tx, kind, published=everything, limit=limit)
        known = sink_names(tx, session.config.sinks) if sink is not None and not found else None
    rows = [{**one._asdict(), "due": time(one.due), "created_at": time(one.created_at)} for one in found]
    print_rows(session, rows)
    _note_unknown(known, None if sink is None else sink.removeprefix(PREFIX), "sink")


def check(
    session: Session,
    there: Iterable[str],
    names: tuple[str, ...],
    what: str,
    look: Callable[[str], Sequence[MessageFinding]],
) -> int:
    """Print what is found about these entries of ``[WHATs]``, or about all; the exit status. Raises UsageError."""
    known = dict.fromkeys(there)
    _refuse_unknown(known, names, what)
    if not known:
        raise click.UsageError(f"there is no {what}: write one as [{what}s.NAME]")
    sections: Any = getattr(session.config, f"{what}s")
    rows = [
        {"name": name, "type": sections[name].type, "ok": one.ok, "found": one.text}
        for name in dict.fromkeys(names or known)
        for one in look(name)
    ]
    print_rows(session, rows)
    return exits.DONE if all(row["ok"] for row in rows) else exits.FAILED


def _change(
    session: Session,
    what: str,
    names: tuple[str, ...],
    change: Callable[[Desk, Sequence[PauseScope]], PauseResult],
    *,
    paused: bool,
) -> None:
    from scheduler.model.outgoing import sink_kind
    from scheduler.operations.pauses import scopes

    there: Iterable[str] = getattr(session.config, f"{what}s")
    _refuse_unknown(there, names, what)
    wanted = list(dict.fromkeys(names))
    chosen = scopes(sources=wanted) if what == "source" else scopes(kinds=[sink_kind(name) for name in wanted])
    done = change(session.desk, chosen).changed
    rows = [{"name": n, "paused": paused, "changed": c} for n, c in zip(wanted, done.values(), strict=True)]
    print_rows(session, rows)
    for row in rows:
        if not row["changed"]:
            note(f"{what} {row['name']} was {'paused already' if paused else 'not paused'}")


def _note_at_least(found: Iterable[SourceStatus | SinkStatus], what: str) -> None:
    cut = [one.name for one in found if one.at_least]
    if cut:
        note(f"of {what} {', '.join(cut)} there may be more messages than are counted")


def _note_unknown(known: list[str] | None, name: str | None, what: str) -> None:
    """Say that an empty list is of something that nobody has. ``known`` None: there is nothing to say."""
    if known is not None and name not in known:
        note(f"there is no {what} {name!r}; known are {', '.join(known) or 'none'}")


def _refuse_unknown(there: Iterable[str], names: tuple[str, ...], what: str) -> None:
    known = list(there)
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no {what} {name!r}; [{what}s] has {', '.join(known) or 'none'}")

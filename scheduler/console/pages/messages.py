"""``/messages``, ``/sources/NAME``, ``/sinks/NAME``: messages in and out; pause, resume, and run what is held."""

from __future__ import annotations

from typing import Any

from scheduler.client.json_views import time
from scheduler.console.masks import masked_text
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.model.inbox import InboxState
from scheduler.model.outgoing import sink_kind
from scheduler.model.texts import counted
from scheduler.operations import messages as operations
from scheduler.operations.desk import Tx
from scheduler.operations.messages import InboxRecord, SinkStatus, SourceStatus

ROWS = 100  # messages of one page
STATES = tuple(InboxState)


@page("/messages", nav=Nav("Messages", "m", 65))
def messages(visit: Visit) -> RenderedPage:
    """All sources and sinks: their state, the last failure, what is held, waits or is dead."""
    with visit.read() as tx:
        sources = operations.source_statuses(tx, _sources(visit, tx))
        sinks = operations.sink_statuses(tx, _sinks(visit, tx))
    context: dict[str, Any] = {
        "sources": [(one, _section(visit, "sources", one.name)) for one in sources],
        "sinks": [(one, _section(visit, "sinks", one.name)) for one in sinks],
        "masked_text": masked_text,
    }
    data = {"sources": [_source_view(one) for one in sources], "sinks": [_sink_view(one) for one in sinks]}
    return RenderedPage("messages.html", data, context, "schedctl sources list")


@page("/sources/{name}")
def one_source(visit: Visit) -> RenderedPage:
    """One source, and its messages, those that came last first."""
    name, wanted = visit.params["name"], visit.asked("state")
    if wanted and wanted not in STATES:
        raise BadInputError(f"state is one of {', '.join(STATES)}")
    with visit.read() as tx:
        if name not in _sources(visit, tx):
            raise BadInputError(f"there is no source {name!r:.100}", 404)
        (found,) = operations.source_statuses(tx, [name])
        rows = operations.inbox_records(tx, source=name, state=InboxState(wanted) if wanted else None, limit=ROWS + 1)
    context = {
        "one": found,
        "section": _section(visit, "sources", name),
        "rows": rows[:ROWS],
        "more": len(rows) > ROWS,
        "states": STATES,
        "wanted": wanted,
        "masked_text": masked_text,
    }
    data = _source_view(found) | {"messages": [_message_view(row) for row in rows[:ROWS]]}
    return RenderedPage("source.html", data, context, f"schedctl inbox list --source {name}")


@page("/sinks/{name}")
def one_sink(visit: Visit) -> RenderedPage:
    """One sink, and the messages that are to go out."""
    name, everything = visit.params["name"], visit.asked("all") == "1"
    with visit.read() as tx:
        if name not in _sinks(visit, tx):
            raise BadInputError(f"there is no sink {name!r:.100}", 404)
        (found,) = operations.sink_statuses(tx, [name])
        rows = operations.outbox_records(tx, sink_kind(name), published=everything, limit=ROWS + 1)
    context = {
        "one": found,
        "kind": sink_kind(name),
        "section": _section(visit, "sinks", name),
        "rows": rows[:ROWS],
        "more": len(rows) > ROWS,
        "everything": everything,
        "masked_text": masked_text,
    }
    data = _sink_view(found) | {
        "messages": [
            {**row._asdict(), "due": time(row.due), "created_at": time(row.created_at)}
            | {"error": masked_text(row.error)}
            for row in rows[:ROWS]
        ]
    }
    return RenderedPage("sink.html", data, context, f"schedctl outbox list --sink {name}")


@action("/sources/{name}/release", Verb.RETRY)
def release(visit: Visit) -> ActionDone:
    """Run what is held behind a gap."""
    name = visit.params["name"]
    made = operations.release(visit.jobs.desk, name, visit.given("subject") or None)
    if not made:
        return ActionDone(f"No message of source {name} is held.", ok=False, data={"tasks": []})
    return ActionDone(f"Source {name}: {counted(len(made), 'held message')} let go.", data={"tasks": made})


def _sources(visit: Visit, tx: Tx) -> list[str]:
    config = visit.site.config
    return operations.source_names(tx, () if config is None else config.sources)


def _sinks(visit: Visit, tx: Tx) -> list[str]:
    config = visit.site.config
    return operations.sink_names(tx, () if config is None else config.sinks)


def _section(visit: Visit, table: str, name: str) -> Any:
    config = visit.site.config
    return None if config is None else getattr(config, table).get(name)


def _source_view(one: SourceStatus) -> dict[str, Any]:
    made = one._asdict() | {name: time(getattr(one, name)) for name in ("held_since", "last_at", "failed_at")}
    return made | {"trouble": masked_text(one.trouble), "last_error": masked_text(one.last_error)}


def _sink_view(one: SinkStatus) -> dict[str, Any]:
    return one._asdict() | {"trouble": masked_text(one.trouble), "last_error": masked_text(one.last_error)}


def _message_view(row: InboxRecord) -> dict[str, Any]:
    made = row._asdict() | {name: time(getattr(row, name)) for name in ("first_at", "last_at", "expires_at")}
    return made | {"state": row.state.value, "error": masked_text(row.error)}

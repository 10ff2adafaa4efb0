"""``/events``: which events tasks wait for, which were emitted; emit one."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler.client.json_views import time
from scheduler.console.masks import MASK, masked, masked_json
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.model.json_text import json_fault
from scheduler.operations import events as operations

ROWS = 100
WAITERS = 5  # tasks named of each event


@page("/events", nav=Nav("Events", "v", 70))
def events(visit: Visit) -> RenderedPage:
    """Awaited events, with who waits; then emitted ones, the newest first."""
    cursor = _cursor(visit.asked("cursor"))
    with visit.read() as tx:
        found = operations.page(tx, ROWS, cursor, WAITERS)
    awaited, emitted, waiters = found.awaited, found.emitted, found.waiters
    following = None if found.more is None else "{}:{}".format(*found.more)
    shown = {one.name: masked_json(one.payload) for one in emitted}
    context: dict[str, Any] = {
        "awaited": awaited,
        "emitted": [(one, shown[one.name]) for one in emitted],
        "waiters": waiters,
        "cursor": cursor,
        "more": following,
        "name": visit.asked("name"),
    }
    data = {
        "events": [
            {"name": one.name, "emitted_at": time(one.emitted_at), "emitted_by": one.emitted_by, "size": one.size}
            | {"waiting": one.waiting, "tasks": [waiter.task for waiter in waiters.get(one.name, [])]}
            | {"payload": shown.get(one.name)}
            for one in (*awaited, *emitted)
        ],
        "cursor": following,
    }
    return RenderedPage("events.html", data, context, "schedctl event list")


def _cursor(text: str) -> tuple[int, str] | None:
    if not text:
        return None
    at, sign, name = text.partition(":")
    if not sign or not (at.isascii() and at.isdigit() and len(at) < 19):
        raise BadInputError("cursor is what a page before this one gave")
    return int(at), name


@action("/events/emit", Verb.EVENT_EMIT)
def emit(visit: Visit) -> ActionDone:
    """Emit an event: tasks that await it go on with its payload."""
    name, text = visit.given("name"), visit.given("payload")
    if MASK in text:
        raise BadInputError(f"{MASK} stands for a secret that is not shown: it is no value")
    try:
        payload = msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInputError(f"the payload is not JSON: {json_fault(text, error)}; a text needs quotes") from None
    if operations.emit(visit.jobs.desk, name, payload).first:
        return ActionDone(f"Event {name} is emitted.", data={"first": True, "payload": masked(payload)})
    return ActionDone(f"Event {name} was emitted before: its first payload stays.", ok=False, data={"first": False})

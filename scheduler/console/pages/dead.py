"""``/dead``: dead letters by cause; ``?kind=…&fingerprint=…``: one cause, its letters, and what mends them."""

from __future__ import annotations

import shlex
from typing import Any

from scheduler.client.json_views import task_view, time
from scheduler.console.masks import PageTaskMasks, masked_text
from scheduler.console.pages.kinds import fields_of
from scheduler.console.render import RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.model.task_filter import Term
from scheduler.operations.dead_letters import WINDOW, DeadCause, causes, history, over_kinds
from scheduler.operations.details import get_tasks
from scheduler.operations.filter import compose
from scheduler.operations.kinds import get_kind
from scheduler.operations.search import search
from scheduler.ports import SECOND

LETTERS = 50  # on one page of a cause
SOON_US = 48 * 3600 * SECOND  # retention's removals that are announced


@page("/dead", nav=Nav("Dead letters", "d", 20))
def dead(visit: Visit) -> RenderedPage:
    """Dead letters by cause, or those of one cause."""
    kind, fingerprint = visit.asked("kind"), visit.asked("fingerprint")
    if fingerprint:
        if not kind:
            raise BadInputError("a cause is a kind and a fingerprint: kind is missing")
        return _cause(visit, kind, fingerprint)
    with visit.read() as tx:
        found = causes(tx, kept=_kept(visit), within=SOON_US)
        shown = [one for one in found.causes if kind in ("", one.kind)]
        newest = {task.id: task for task in get_tasks(tx, [one.id for one in shown])}
        masks = PageTaskMasks(tx, {one.kind for one in shown})
        shared = over_kinds(tx, found.causes, kind or None)
        now = tx.now
    errors = {
        one.id: masks.of(newest[one.id]).text(one.error) if one.id in newest else masked_text(one.error)
        for one in shown
    }
    context = {
        "causes": shown,
        "errors": errors,
        "shared": [(one, compose([("state", "dead"), ("fingerprint", ",".join(one.fingerprints))])) for one in shared],
        "kind": kind,
        "whole": found.whole,
        "window": WINDOW,
        "number": sum(one.number for one in shown),
        "leaving": sum(one.leaving for one in shown),
        "first": min((one.first_leaves for one in shown if one.first_leaves is not None), default=None),
        "start": found.start,
        "filter": _filter(kind),
    }
    data = {
        "causes": [_view(one, errors[one.id]) for one in shown],
        "shared": [{**one._asdict(), "oldest": time(one.oldest), "newest": time(one.newest)} for one in shared],
        "whole": found.whole,
        "since": time(found.start),
        "until": time(now),
    }
    command = ["schedctl", "dlq", "list", *(["--kind", kind] if kind else [])]
    return RenderedPage("dead.html", data, context, shlex.join(command))


def _kept(visit: Visit) -> int | None:
    """How long retention keeps dead letters (microseconds), as far as the console's settings say it."""
    config = visit.site.config
    if config is None:
        return None
    kept = config.retention.failed if config.retention.dead is None else config.retention.dead
    return round(kept * SECOND)


def _filter(kind: str, fingerprint: str = "") -> str:
    """The filter of /tasks that means the same, which bulks take their scope from."""
    return compose([("state", "dead"), ("kind", kind), ("fingerprint", fingerprint)])


def _view(one: DeadCause, error: str | None) -> dict[str, Any]:
    return {
        **one._asdict(),
        "error": error,
        "oldest": time(one.oldest),
        "newest": time(one.newest),
        "first_leaves": None if one.first_leaves is None else time(one.first_leaves),
    }


def _cause(visit: Visit, kind: str, fingerprint: str) -> RenderedPage:
    cursor = visit.number("cursor", least=1)
    terms = [Term("state", ("dead",)), Term("kind", (kind,)), Term("fingerprint", (fingerprint,))]
    with visit.read() as tx:
        every = causes(tx, kept=_kept(visit), within=SOON_US)
        one = next((c for c in every.causes if (c.kind, c.fingerprint) == (kind, fingerprint)), None)
        found = search(tx, terms, limit=LETTERS, cursor=cursor)
        masks = PageTaskMasks(tx, {kind})
        record = get_kind(tx, kind)
        past = history(tx, kind, fingerprint)
    rows = [(task, masks.of(task)) for task in found.tasks]
    sample = rows[0] if rows else None
    payload = None if sample is None else sample[1].payload(sample[0].payload)
    context: dict[str, Any] = {
        "cause": one,
        "kind": kind,
        "fingerprint": fingerprint,
        "whole": every.whole,
        "start": every.start,
        "rows": rows,
        "found": found,
        "cursor": cursor,
        "sample": sample,
        "payload": payload,
        "error": None if sample is None else sample[1].text(sample[0].error),
        "fields": fields_of({} if record is None else record.schema, payload),
        "history": past,
        "masked_text": masked_text,
        "filter": _filter(kind, fingerprint),
        "acts": visit.may(Verb.REPLAY) or visit.may(Verb.PURGE),
    }
    letters = [
        {**task_view(task), "payload": mask.payload(task.payload), "result": None,
         "headers": mask.value(task.headers), "error": mask.text(task.error)}
        for task, mask in rows
    ]  # fmt: skip
    data = {
        "cause": None if one is None else _view(one, context["error"]),
        "letters": letters,
        "cursor": found.cursor,
        "fields": context["fields"],
        "history": [
            {"at": time(e.at), "action": e.action, "actor": e.actor, "reason": e.reason, "bulk": e.bulk, "tasks": n}
            for e, n in past
        ],
    }
    command = shlex.join(["schedctl", "dlq", "list", "--kind", kind, "--fingerprint", fingerprint])
    return RenderedPage("dead_cause.html", data, context, command)

"""The calls of the API that look: each shows what it finds as ``-o json`` does, without secrets."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler.client import json_views
from scheduler.client.analysis import estimate_view, forecast_view, graph_view
from scheduler.console.api import arguments
from scheduler.console.pages.bulks import bulk_view
from scheduler.console.pages.task import plain_log
from scheduler.console.visit import Visit
from scheduler.operations import (
    analysis,
    audit,
    dead_letters,
    details,
    events,
    kinds,
    limits,
    pauses,
    schedules,
    workers,
)
from scheduler.operations.filter import instant
from scheduler.operations.masks import ViewMasks, masked, masked_text
from scheduler.operations.search import search
from scheduler.operations.status import glance, next_command, verdict_of

_AUDITED = ("action", "by", "subject", "via", "bulk")


def health(visit: Visit, given: arguments.Args) -> dict[str, Any]:
    """Whether nothing is stuck, and a worker takes tasks; a verdict, and its causes, each with the next command."""
    with visit.read() as tx:
        seen = glance(tx)
    wrong = [*seen.status.stuck, *([] if seen.status.idle is None else [seen.status.idle])]
    problems = [masked(json_views.problem_view(one)) | {"next": next_command(one)} for one in wrong]
    return {"ok": not wrong, **masked(json_views.health_view(verdict_of(seen))), "problems": problems}


def status(visit: Visit, given: arguments.Args) -> dict[str, Any]:
    """The store at a glance."""
    with visit.read() as tx:
        seen = glance(tx)
    found: dict[str, Any] = masked(json_views.status_view(seen.status, seen.at))
    return found


def list_tasks(visit: Visit, given: arguments.Tasks) -> dict[str, Any]:
    """Tasks, the newest first; ``cursor``: of the next page; ``bounded``: not all were looked at."""
    with visit.read() as tx:
        wanted = visit.filter(tx, given.filter)
        found = search(tx, wanted, limit=given.limit, cursor=given.cursor, broken=lambda _: None)
        rows = [json_views.task_view(one.at(tx.now)) for one in found.tasks]
        masks = ViewMasks(tx, {one.kind for one in found.tasks})
        shown = [masks.view(one, row) for one, row in zip(found.tasks, rows, strict=True)]
    return {"tasks": shown, "cursor": found.cursor, "bounded": found.bound}


def show_task(visit: Visit, given: arguments.Args) -> dict[str, Any]:
    """Everything about a task."""
    with visit.read() as tx:
        task = details.get_task(tx, visit.params["id"])
        return ViewMasks(tx, [task.kind]).view(task, json_views.whole_task_view(tx, task))


def why(visit: Visit, given: arguments.Args) -> dict[str, Any]:
    """Why a task does not run, or how it ended."""
    with visit.read() as tx:
        task = details.get_task(tx, visit.params["id"])
        row = {"id": task.id, "kind": task.kind, "state": task.at(tx.now).state.value}
        return ViewMasks(tx, [task.kind]).view(task, row | {"why": details.reason(tx, task)})


def show_logs(visit: Visit, given: arguments.Logs) -> dict[str, Any]:
    """What the attempts of a task wrote, oldest first; ``cut``: more was written before it."""
    with visit.read() as tx:
        task = details.get_task(tx, visit.params["id"])
        masks = ViewMasks(tx, [task.kind])
        texts = [(claim, masks.text(task, plain_log(text))) for claim, text in details.attempt_logs(tx, task.id)]
        known = {one.claim: one for one in details.attempts(tx, task.id)} if texts else {}
    written = [
        {
            "attempt": known[claim].number if claim in known else None,
            "outcome": known[claim].outcome.value if claim in known else None,
            "text": text[-given.tail :],
            "cut": len(text) > given.tail,
        }
        for claim, text in texts
    ]
    return {"id": task.id, "kind": task.kind, "state": task.state.value, "attempts": written}


def show_graph(visit: Visit, given: arguments.Graph) -> dict[str, Any]:
    """The tasks that edges connect with a task, how long they may take, and what blocks most."""
    with visit.read() as tx:
        found = analysis.graph(tx, visit.params["id"], given.limit)
        left = analysis.graph_estimate(tx, found)
    return graph_view(found) | {"estimate": estimate_view(left)}


def forecast(visit: Visit, given: arguments.Ahead) -> dict[str, Any]:
    """What the schedules will run, when, for how long, and where slots are too few."""
    with visit.read() as tx:
        found = forecast_view(schedules.forecast(tx, given.hours))
    for one in found["schedules"]:
        one["fires"] = one["fires"][: given.fires]
    del found["load"]
    shown: dict[str, Any] = masked(found)
    return shown


def list_dead_letters(visit: Visit, given: arguments.DeadLetters) -> dict[str, Any]:
    """Dead letters by cause, the largest group first, or each of them, the latest first."""
    with visit.read() as tx:
        wanted = visit.filter(tx, given.filter)
        if given.each:
            letters = dead_letters.newest(tx, wanted, given.limit)
            masks = ViewMasks(tx, {one.kind for one in letters.tasks})
            return {
                "tasks": [masks.view(one, json_views.task_view(one)) for one in letters.tasks],
                "more": letters.more,
                "bounded": letters.cut is not None,
            }
        found = dead_letters.groups(tx, wanted, given.limit)
        masks = ViewMasks(tx, {one.kind for one in found.groups})
        rows = [json_views.dead_group_view(*one, masks) for one in zip(found.groups, found.totals, strict=True)]
    return {"groups": rows, "more": found.more, "bounded": found.cut is not None}


def list_schedules(visit: Visit, given: arguments.Args) -> list[dict[str, Any]]:
    """All schedules, with their next fire times."""
    with visit.read() as tx:
        found = schedules.seen(tx)
        masks = ViewMasks(tx, {one.kind for one in found.found})
        return [json_views.schedule_view(one, found, masks) for one in found.found]


def list_pauses(visit: Visit, given: arguments.Args) -> list[dict[str, Any]]:
    """What is paused, the oldest first."""
    return [pause_view(one) for one in pauses.in_effect(visit.desk)]


def list_limits(visit: Visit, given: arguments.Args) -> list[dict[str, Any]]:
    """Slots, caps and rates in effect, and who says so."""
    return [one._asdict() | {"source": masked_text(one.source)} for one in limits.in_effect(visit.desk)]


def list_workers(visit: Visit, given: arguments.Workers) -> list[dict[str, Any]]:
    """Workers: what they serve, hold and run."""
    with visit.read() as tx:
        found = workers.now(tx, every=given.every)
    return [json_views.worker_view(one, found.at) for one in found.workers]


def list_queues(visit: Visit, given: arguments.Args) -> list[dict[str, Any]]:
    """The waiting tasks of each queue, its workers, and the reason that holds it back."""
    with visit.read() as tx:
        return [masked(json_views.queue_view(one, tx.now)) for one in kinds.queues(tx).rows]


def list_events(visit: Visit, given: arguments.Most) -> list[dict[str, Any]]:
    """Awaited events, then emitted ones, the newest first."""
    found, _ = events.listed(visit.desk, given.limit)
    return [masked(json_views.event_view(one)) for one in found]


def list_audit(visit: Visit, given: arguments.Audit) -> dict[str, Any]:
    """Who changed what, the newest first; ``cursor``: of the next page."""
    now = visit.jobs.database.now()
    since, until = (instant(text, now) if text else None for text in (given.since, given.until))
    action, by, subject, via, bulk = (getattr(given, name) or None for name in _AUDITED)
    with visit.read() as tx:
        wanted = audit.AuditFilter(given.task, action, by, subject, via, bulk, since, until)
        found, more = audit.shown(tx, wanted, given.limit, given.cursor)
    return {"entries": [{"about": one.about, **json_views.audit_view(one)} for one in found], "cursor": more}


def list_bulks(visit: Visit, given: arguments.Most) -> list[dict[str, Any]]:
    """The newest bulks."""
    return [bulk_view(one) for one in visit.jobs.bulks.list(given.limit)]


def show_bulk(visit: Visit, given: arguments.BulkItems) -> dict[str, Any]:
    """A bulk and its tasks: what became of each."""
    name = visit.params["name"]
    found = visit.jobs.bulks.items(name, result=given.result, limit=given.limit, cursor=given.cursor)
    items = [msgspec.structs.asdict(one) | {"note": masked_text(one.note)} for one in found]
    cursor = found[-1].position if len(found) == given.limit else None
    return {**bulk_view(visit.jobs.bulks.get(name)), "items": items, "cursor": cursor}


def pause_view(one: pauses.PauseInfo) -> dict[str, Any]:
    """A pause as JSON."""
    shown: dict[str, Any] = msgspec.to_builtins(one)
    return shown | {"name": one.name or None, "reason": masked_text(one.reason)}

"""``/schedules``: the recurring schedules, the runs of one, and what may be done with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.client.json_views import time
from scheduler.console.masks import masked_json, masked_text
from scheduler.console.render import Done, Page
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import Visit
from scheduler.operations import schedules as operations
from scheduler.operations.schedules import RunRecord, ScheduleRecord
from scheduler.ports import FOREVER

RUNS = 30
NEXT = 10
SHOWN = 500  # schedules on one page


@page("/schedules", nav=Nav("Schedules", "s", 40))
def schedules(visit: Visit) -> Page:
    """All schedules, those that need a look first."""
    word = visit.asked("q").lower()
    with visit.read() as tx:
        found = operations.seen(tx)
    unserved = found.unserved if found.fleet.claiming else {}
    fitting = [one for one in found.found if word in one.name.lower() or word in one.kind.lower()]
    fitting.sort(key=lambda one: (one.trouble is None and one.name not in unserved, one.name))
    context: dict[str, Any] = {
        "found": fitting[:SHOWN],
        "total": len(found.found),
        "left": max(0, len(fitting) - SHOWN),
        "q": visit.asked("q"),
        "unserved": unserved,
        "at": found.at,
        "forever": FOREVER,
        "graph_kind": operations.GRAPH,
        "local": operations.local_time,
    }
    return Page("schedules.html", [_view(one, unserved) for one in fitting], context, "schedctl cron list")


def _is_known(visit: Visit) -> bool:
    with visit.read() as tx:
        return operations.exists(tx, visit.params["name"])


@page("/schedules/{name:path}", known=_is_known)
def one_schedule(visit: Visit) -> Page:
    """One schedule: its next fire times, its runs."""
    name = visit.params["name"]
    cursor = visit.number("cursor", least=1)
    with visit.read() as tx:
        found = operations.ahead(tx, name, NEXT, even_broken=True)
        runs = operations.runs(tx, name, RUNS + 1, cursor)
    one, kind = found.one, found.kind
    payload = None if one.graph is not None else masked_json(one.payload, None if kind is None else kind.schema)
    context: dict[str, Any] = {
        "one": one,
        "runs": runs[:RUNS],
        "more": runs[RUNS - 1].first if len(runs) > RUNS else None,
        "cursor": cursor,
        "payload": payload,
        "tasks": [] if one.graph is None else operations.decode_graph(one.graph),
        "next": found.marks,
        "nothing": "it cannot be read" if found.one.trouble is not None else found.nothing or "",
        "notes": found.unserved,
        "forever": FOREVER,
        "masked_text": masked_text,
    }
    data = _view(one, {}) | {
        "payload": payload,
        "next": [{"at": time(mark.instant_us), "local": mark.local} for _, mark in context["next"]],
        "runs": [_run_view(run) for run in runs[:RUNS]],
        "cursor": context["more"],
    }
    return Page("schedule.html", data, context, f"schedctl cron runs {name}")


def _view(one: ScheduleRecord, unserved: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": "graph" if one.kind == operations.GRAPH else one.kind,
        "recurrence": one.recurrence.describe(),
        "next_at": time(one.next_at),
        "next_local": operations.local_time(one),
        "last_slot": time(one.last_slot),
        "last_task": one.last_task,
        "paused": one.paused,
        "catchup": one.catchup,
        "overlap": one.overlap,
        "owner": one.owner,
        "trouble": one.trouble,
        "unserved": unserved.get(one.name),
    }


def _run_view(run: RunRecord) -> dict[str, Any]:
    return {
        "run": run.run,
        "first": run.first,
        "slot": time(run.slot),
        "origin": run.origin,
        "state": run.state.value,
        "states": {state.value: count for state, count in run.states.items()},
        "started_at": time(run.started_at),
        "finished_at": time(run.finished_at),
        "error": masked_text(run.error),
    }


@action("/schedules/pause/{name:path}", Verb.SCHEDULE_PAUSE)
def pause(visit: Visit) -> Done:
    """Fire nothing until resumed."""
    name = visit.params["name"]
    operations.pause(visit.jobs.desk, name)
    return Done(f"Schedule {name} is paused.", undo=("Undo: resume it", f"/schedules/resume/{name}", {}))


@action("/schedules/resume/{name:path}", Verb.SCHEDULE_PAUSE)
def resume(visit: Visit) -> Done:
    """Go on with the next fire time."""
    name = visit.params["name"]
    operations.resume(visit.jobs.desk, name)
    return Done(f"Schedule {name} goes on.", undo=("Undo: pause it", f"/schedules/pause/{name}", {}))


@action("/schedules/trigger/{name:path}", Verb.SCHEDULE_TRIGGER)
def trigger(visit: Visit) -> Done:
    """Run it once now."""
    name = visit.params["name"]
    done = operations.trigger(visit.jobs.desk, name)
    made, beside = int(done.made), done.beside
    message = f"Schedule {name} runs once now: task {made}."
    if beside is not None:
        message += f" It runs beside task {beside}: overlap skip holds between fire times only."
    return Done(message, undo=("Undo: cancel it", f"/tasks/{made}/cancel", {}), data={"id": made})


@action("/schedules/delete/{name:path}", Verb.SCHEDULE_DELETE)
def delete(visit: Visit) -> Done:
    """Forget it; its tasks stay."""
    name = visit.params["name"]
    visit.jobs.schedules.delete(name)
    return Done(f"Schedule {name} is deleted. A program that registers it brings it back.", to="/schedules")

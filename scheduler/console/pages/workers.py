"""``/workers``: where workers run, what they serve and run; drain, resume, restart."""

from __future__ import annotations

from typing import Any

from scheduler.client.json_views import worker_view
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import Visit
from scheduler.operations import workers

SHOWN = 300  # workers on one page
NAMED = 2  # running tasks of a worker that are named


@page("/workers", nav=Nav("Workers", "w", 50))
def workers_page(visit: Visit) -> RenderedPage:
    """The workers that go round; with ``?all=1`` the latest that have ended, too."""
    every = visit.asked("all") == "1"
    with visit.read() as tx:
        seen, held = workers.now(tx, every=every), workers.held(tx)
    found = sorted(seen.workers, key=lambda one: (not one.alive, -one.id))
    context: dict[str, Any] = {
        "rows": [(one, workers.pool_use(one, held)) for one in found[:SHOWN]],
        "left": max(0, len(found) - SHOWN),
        "every": every,
        "at": seen.at,
        "idle": seen.idle,
        "notes": [text for one in found for text in workers.notes(one)],
        "claiming": sum(one.claims for one in found),
        "named": NAMED,
    }
    data = [worker_view(one, seen.at) | {"held": workers.held_of(one, held)} for one in found]
    return RenderedPage("workers.html", data, context, "schedctl workers --all" if every else "schedctl workers")


@action("/workers/{id:int}/drain", Verb.DRAIN)
def drain(visit: Visit) -> ActionDone:
    """Let a worker claim nothing more."""
    number = visit.params["id"]
    workers.drain(visit.jobs.desk, number)
    return ActionDone(f"Worker {number} drains.", undo=("Undo: resume it", f"/workers/{number}/resume", {}))


@action("/workers/{id:int}/resume", Verb.DRAIN)
def resume(visit: Visit) -> ActionDone:
    """Let a draining worker claim again."""
    number = visit.params["id"]
    workers.resume(visit.jobs.desk, number)
    return ActionDone(f"Worker {number} claims again.", undo=("Undo: drain it", f"/workers/{number}/drain", {}))


@action("/workers/{id:int}/restart", Verb.DRAIN)
def restart(visit: Visit) -> ActionDone:
    """Let a daemon end and start anew."""
    number = visit.params["id"]
    workers.restart(visit.jobs.desk, number)
    return ActionDone(f"Worker {number} is to restart.")

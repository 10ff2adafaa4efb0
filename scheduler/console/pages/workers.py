"""``/workers``: where workers run, what they serve and run; drain, resume, restart."""

from __future__ import annotations

from typing import Any, NamedTuple

from scheduler.client.json_views import worker_view
from scheduler.console.render import Done, Page
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import Visit
from scheduler.model.registry import ASYNC, PROCESS, THREAD
from scheduler.store.read import workers as store
from scheduler.store.read.workers import WorkerRecord

SHOWN = 300  # workers on one page
SLOTS = (THREAD, ASYNC, PROCESS)
NAMED = 2  # running tasks of a worker that are named


class PoolUse(NamedTuple):
    """Tasks of a pool's priority that a worker holds, beside the pool's slots. A task may run in a lower pool.

    ``of``: what the slots are. Child processes belong to all pools.
    """

    name: str
    of: str
    held: int
    slots: int


@page("/workers", nav=Nav("Workers", "w", 50))
def workers(visit: Visit) -> Page:
    """The workers that go round; with ``?all=1`` the latest that have ended, too."""
    every = visit.asked("all") == "1"
    with visit.read() as tx:
        found = store.workers(tx, every=every)
        held = store.held_by_pool(tx)
        now = tx.now
    found.sort(key=lambda one: (not one.alive, -one.id))
    context: dict[str, Any] = {
        "rows": [(one, _pools(one, held)) for one in found[:SHOWN]],
        "left": max(0, len(found) - SHOWN),
        "every": every,
        "at": now,
        "idle": store.no_worker_reason(found),
        "notes": [text for one in found for text in _notes(one)],
        "claiming": sum(one.claims for one in found),
        "named": NAMED,
    }
    data = [worker_view(one, now) | {"held": _held(one, held)} for one in found]
    return Page("workers.html", data, context, "schedctl workers --all" if every else "schedctl workers")


def _pools(worker: WorkerRecord, held: dict[tuple[int, str, int], int]) -> list[PoolUse]:
    made: list[PoolUse] = []
    for name, (threads, coroutines) in worker.capacity.pools.items():
        made.append(PoolUse(name, "threads", held.get((worker.id, name, THREAD), 0), threads))
        made.append(PoolUse(name, "coroutines", held.get((worker.id, name, ASYNC), 0), coroutines))
    in_children = sum(held.get((worker.id, name, PROCESS), 0) for name in worker.capacity.pools)
    if in_children:
        made.append(PoolUse("all", "child processes", in_children, worker.capacity.processes or 0))
    return [one for one in made if one.slots or one.held]


def _held(worker: WorkerRecord, held: dict[tuple[int, str, int], int]) -> dict[str, int]:
    """The tasks of each pool's priority, whatever slots they have."""
    found = {name: sum(held.get((worker.id, name, one), 0) for one in SLOTS) for name in worker.capacity.pools}
    return {name: n for name, n in found.items() if n or sum(worker.capacity.pools[name])}


def _notes(worker: WorkerRecord) -> list[str]:
    found = [store.far_text(worker), store.orphans_text(worker)]
    return [text for text in found if text] + [store.hung_text(worker, hang) for hang in worker.hung]


@action("/workers/{id:int}/drain", Verb.DRAIN)
def drain(visit: Visit) -> Done:
    """Let a worker claim nothing more."""
    number = visit.params["id"]
    visit.jobs.workers.drain(number)
    return Done(f"Worker {number} drains.", undo=("Undo: resume it", f"/workers/{number}/resume", {}))


@action("/workers/{id:int}/resume", Verb.DRAIN)
def resume(visit: Visit) -> Done:
    """Let a draining worker claim again."""
    number = visit.params["id"]
    visit.jobs.workers.resume(number)
    return Done(f"Worker {number} claims again.", undo=("Undo: drain it", f"/workers/{number}/drain", {}))


@action("/workers/{id:int}/restart", Verb.DRAIN)
def restart(visit: Visit) -> Done:
    """Let a daemon end and start anew."""
    number = visit.params["id"]
    visit.jobs.workers.restart(number)
    return Done(f"Worker {number} is to restart.")

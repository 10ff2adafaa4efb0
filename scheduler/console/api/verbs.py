"""The calls of the API that change something: each reads its arguments, calls one operation, and says all it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from scheduler.client import json_views
from scheduler.console.api import arguments
from scheduler.console.api.arguments import Changed
from scheduler.console.api.looks import pause_view
from scheduler.console.masks import MASK
from scheduler.console.pages.bulks import bulk_view, of_verb
from scheduler.console.pages.task_verbs import COMMAND_KINDS, check_command, without_commands
from scheduler.console.visit import BadInputError, Visit
from scheduler.model.bulk import BulkVerb
from scheduler.model.retry import RetryPolicy
from scheduler.model.task_filter import TaskFilter, only
from scheduler.operations import (
    bulk,
    dead_letters,
    events,
    limits,
    pauses,
    schedules,
    tasks,
    workers,
)
from scheduler.operations.changes import Changes
from scheduler.operations.masks import masked, masked_text
from scheduler.operations.published import get_published, new_task
from scheduler.operations.verbs import TaskVerb

Again = tasks.Again | dead_letters.Replayed


# Verbs on tasks


def submit(visit: Visit, given: arguments.Submit) -> dict[str, Any]:
    """Store a task. ``created``: false if another one has its key; ``unserved``: why none would run it."""
    if given.kind in COMMAND_KINDS and not visit.site.settings.commands:
        raise BadInputError(f"{given.kind} runs commands: allow that by [console] commands", 403)
    _no_mask(given.payload, given.headers)
    with visit.read() as tx:
        record = get_published(tx, given.kind)
    spec = new_task(given.kind, given.payload, record, given)
    done, no_worker, unserved = tasks.submit(visit.desk, spec)
    return {"id": int(done), "created": done.created, "unserved": no_worker or unserved}


def cancel(visit: Visit, given: arguments.Cancel) -> Changed:
    """End tasks: waiting ones at once, running ones are asked to."""
    cascade, force = given.cascade, given.force
    if given.ids is None:
        return _in_bulk(visit, given, partial(bulk.cancel, cascade=cascade, force=force))
    ids = _ids(given, dry_run=True)
    done, _ = tasks.cancel(visit.desk, ids, cascade=cascade, force=force, dry_run=given.dry_run)
    return Changed(
        changed=list(done.cancelled),
        requested=list(done.requested),
        dependants=len(done.affected),
        refused={one: f"it had ended already: {state}" for one, state in done.finished.items()},
        dry_run=given.dry_run,
    )


def on_task(name: str, verb: TaskVerb) -> Callable[[Visit, Any], Changed]:
    """The call of a verb that has a module of its own."""

    def call(visit: Visit, given: arguments.Act) -> Changed:
        verb.act(visit.desk, visit.params["id"], given)
        return Changed(changed=[visit.params["id"]])

    call.__name__, call.__doc__ = name, verb.act.__doc__
    return call


def retry(visit: Visit, given: arguments.Retry) -> Changed:
    """Run tasks again that ended without success."""
    if given.ids is None:
        _of_ids("rerun", given.rerun)
        return _in_bulk(visit, given, partial(bulk.retry, downstream=given.downstream))
    return _again(tasks.retry(visit.desk, _ids(given), downstream=given.downstream, rerun=given.rerun))


def rerun(visit: Visit, given: arguments.Rerun) -> Changed:
    """Run ended tasks again from their beginnings, successes too."""
    if given.ids is None:
        return _in_bulk(visit, given, partial(bulk.rerun, downstream=given.downstream))
    return _again(tasks.rerun(visit.desk, _ids(given), downstream=given.downstream))


def change(visit: Visit, given: arguments.Change) -> Changed:
    """Change tasks that wait, are scheduled, or wait for their retry."""
    made: Any = {name: getattr(given, name) for name in Changes.__optional_keys__}
    made = {name: value for name, value in made.items() if value is not UNSET}
    _no_mask(*(made.get(name) for name in ("payload", "fields", "headers")))
    if "retry" in made:
        made["retry"] = _retry(made["retry"])
    works = bool({"payload", "fields"} & set(made))
    if given.ids is None:
        return _in_bulk(visit, given, partial(_change, made), commands=not works)
    for task_id in _ids(given) if works else ():
        check_command(visit, task_id)
    done = tasks.change(visit.desk, _ids(given), made)
    same = dict.fromkeys(done.same, "it had these values already")
    return Changed(changed=[one.id for one in done.tasks if one.id not in same], refused={**same})


def replay(visit: Visit, given: arguments.Replay) -> Changed:
    """Run dead letters again."""
    if given.ids is None:
        _of_ids("copy", given.copy)
        _of_ids("rerun", given.rerun)
        return _in_bulk(visit, given, bulk.replay)
    return _again(dead_letters.replay(visit.desk, _ids(given), copy=given.copy, rerun=given.rerun))


def purge(visit: Visit, given: arguments.Purge) -> Changed:
    """Remove dead letters for good."""
    wanted = _wanted(visit, None, given.filter, given.up_to)
    if not wanted.ended_before:
        raise BadInputError("say in the filter how old they are, such as ended:>7d")
    return _done(bulk.purge(visit.desk, wanted, bulk.Run(given.limit, given.dry_run)), dry_run=given.dry_run)


# The fleet


def pause(visit: Visit, given: arguments.Scopes) -> dict[str, Any]:
    """Let no worker claim tasks of these."""
    return _paused(pauses.pause(visit.desk, _scopes(given)))


def resume(visit: Visit, given: arguments.Scopes) -> dict[str, Any]:
    """End these pauses."""
    return _paused(pauses.resume(visit.desk, _scopes(given)))


def set_limits(visit: Visit, given: arguments.SetLimits) -> dict[str, Any]:
    """Change limits while workers run."""
    where = _place(given)
    slots = limits.slots(given.slots, given.async_slots)
    caps = limits.caps(given.max_concurrency, given.rate_limit, given.max_per_worker, given.weight)
    if (caps if given.pool is not None else slots) or ((given.queue or given.key) and "max_per_worker" in caps):
        raise BadInputError("slots are of pools, caps and rates of kinds, keys and queues, max_per_worker of kinds")
    return _set(limits.change(visit.desk, where, slots | caps))


def reset_limits(visit: Visit, given: arguments.Place) -> dict[str, Any]:
    """Let the configuration, or the type of a task, say it again."""
    return _set(limits.reset(visit.desk, _place(given)))


def drain(visit: Visit, given: arguments.OfWorker) -> dict[str, Any]:
    """Let a worker claim nothing more."""
    workers.drain(visit.desk, given.id)
    return {"id": given.id, "draining": True}


def undrain(visit: Visit, given: arguments.OfWorker) -> dict[str, Any]:
    """Let a draining worker claim again."""
    workers.resume(visit.desk, given.id)
    return {"id": given.id, "draining": False}


def restart(visit: Visit, given: arguments.OfWorker) -> dict[str, Any]:
    """Let a daemon end and start anew."""
    workers.restart(visit.desk, given.id)
    return {"id": given.id, "restarting": True}


def pause_schedule(visit: Visit, given: arguments.OfName) -> dict[str, Any]:
    """Fire nothing until resumed."""
    return _schedule(schedules.pause(visit.desk, given.name))


def resume_schedule(visit: Visit, given: arguments.OfName) -> dict[str, Any]:
    """Go on with the next fire time."""
    return _schedule(schedules.resume(visit.desk, given.name))


def trigger(visit: Visit, given: arguments.OfName) -> dict[str, Any]:
    """Run a schedule once now; ``beside``: a task of its run that still goes on."""
    done = schedules.trigger(visit.desk, given.name)
    return {"id": int(done.made), "beside": done.beside}


def delete_schedule(visit: Visit, given: arguments.OfName) -> dict[str, Any]:
    """Forget a schedule; its tasks stay."""
    schedules.delete(visit.desk, given.name)
    return {"deleted": given.name}


def emit(visit: Visit, given: arguments.Emit) -> dict[str, Any]:
    """Emit an event: the first of a name wins."""
    _no_mask(given.payload)
    done = events.emit(visit.desk, given.name, given.payload)
    return {**masked(json_views.event_view(done.event)), "first": done.first}


# Bulks


def plan_bulk(verb: BulkVerb, visit: Visit, given: arguments.Plan) -> dict[str, Any]:
    """Freeze which tasks a bulk changes, and say what it would do."""
    _no_mask(given.fields)
    wanted = _wanted(visit, given.ids, given.filter)
    if given.fields is not None:
        wanted = without_commands(visit, wanted)
    made = visit.jobs.bulks.create(
        verb,
        wanted,
        cascade=given.cascade,
        force=given.force,
        downstream=given.downstream,
        fields=given.fields,
    )
    return bulk_view(made)


def start_bulk(verb: BulkVerb, visit: Visit, given: arguments.Start) -> dict[str, Any]:
    """Run a bulk in the background, or go on with it."""
    of_verb(visit, given.name, verb)
    done = visit.jobs.bulks.start(given.name, canary=given.canary, rate=given.rate)
    visit.site.wake_bulks()
    return bulk_view(done)


def stop_bulk(verb: BulkVerb, visit: Visit, given: arguments.OfName) -> dict[str, Any]:
    """Stop a bulk after its present transaction."""
    of_verb(visit, given.name, verb)
    return bulk_view(visit.jobs.bulks.stop(given.name))


def undo_bulk(visit: Visit, given: arguments.OfName) -> dict[str, Any]:
    """Take back a cancel in the background."""
    of_verb(visit, given.name, "cancel")
    made = visit.jobs.bulks.undo(given.name)
    done = visit.jobs.bulks.start(made.name)
    visit.site.wake_bulks()
    return bulk_view(done)


# Parts


def _wanted(visit: Visit, ids: Iterable[int] | None, text: str | None, up_to: int | None = None) -> TaskFilter:
    if (ids is None) == (text is None):
        raise BadInputError("say which tasks: by ids or by filter, one of the two")
    if ids is not None:
        return TaskFilter((only("id", *ids),))
    with visit.read() as tx:
        wanted = visit.filter(tx, text or "")
    if not wanted.terms:
        raise BadInputError("the filter is empty: say which tasks, such as kind:Mail")
    return wanted._replace(up_to=up_to)


def _ids(given: arguments.Which, *, dry_run: bool = False) -> Sequence[int]:
    if given.filter is not None:
        raise BadInputError("say which tasks: by ids or by filter, one of the two")
    if given.dry_run and not dry_run:
        raise BadInputError("dry_run goes with a filter: ids are changed all or none")
    return given.ids or ()


def _of_ids(name: str, given: bool) -> None:
    if given:
        raise BadInputError(f"{name} goes with ids")


def _in_bulk(visit: Visit, given: arguments.Which, act: Callable[..., bulk.Bulk], *, commands: bool = True) -> Changed:
    """``commands``: whether tasks that run commands are among them, also if those are not to be changed."""
    wanted = _wanted(visit, None, given.filter, given.up_to)
    wanted = wanted if commands else without_commands(visit, wanted)
    return _done(act(visit.desk, wanted, bulk.Run(given.limit, given.dry_run)), dry_run=given.dry_run)


def _change(made: Changes, desk: Any, wanted: TaskFilter, run: bulk.Run) -> bulk.Bulk:
    return bulk.change(desk, wanted, made, run)


def _done(done: bulk.Bulk, *, dry_run: bool) -> Changed:
    same = ("changed", "requested", "dependants", "kinds", "conflicts", "more", "up_to")
    return Changed(
        **{name: getattr(done, name) for name in same},
        refused={one: masked_text(text) for one, text in done.refused.items()},
        stale=done.stale.ids,
        stale_more=done.stale.cut,
        dry_run=dry_run,
        bulk=None if dry_run else done.name,
    )


def _again(done: Again) -> Changed:
    return Changed(
        changed=[one.id for one in done.tasks],
        conflicts={one: other.id for one, other in done.left.items()},
        stale=done.stale.ids,
        stale_more=done.stale.cut,
    )


def _retry(number: int) -> RetryPolicy | None:
    return RetryPolicy(max_attempts=number + 1) if number else None


def _no_mask(*values: Any) -> None:
    """Refuse to store what stands for a hidden secret."""
    if any(MASK in msgspec.json.encode(value).decode() for value in values):
        raise BadInputError(f"{MASK} stands for a secret that is not shown: it is no value")


def _scopes(given: arguments.Scopes) -> list[pauses.PauseScope]:
    return pauses.scopes(queues=given.queues, kinds=given.kinds, sources=given.sources, everything=given.everything)


def _paused(done: pauses.PauseResult) -> dict[str, Any]:
    changed = [str(one) for one, other in done.changed.items() if other]
    return {"changed": changed, "pauses": [pause_view(one) for one in done.left], "unknown": done.unknown}


def _place(given: arguments.Place) -> limits.LimitTarget:
    return limits.place(pool=given.pool, worker=given.worker, kind=given.kind, key=given.key, queue=given.queue)


def _set(done: limits.SetResult) -> dict[str, Any]:
    return {"setting": done.place.subject, "value": done.value, "changed": done.changed, "unknown": done.unknown}


def _schedule(one: schedules.ScheduleRecord) -> dict[str, Any]:
    return {"name": one.name, "paused": one.paused, "next_at": json_views.time(one.next_at)}

"""Emits and awaits events for a handler; see ``handle.py``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler.model.checkpoint import CheckpointType, failure_of
from scheduler.ports import FOREVER
from scheduler.store.durable import checkpoints, events, waits
from scheduler.store.durable.checkpoints import CheckpointEntry
from scheduler.store.durable.events import EventEmit, lock_name
from scheduler.store.durable.waits import StoredWait
from scheduler.store.requests.request import Answer, AttemptRequest, Work


def emit(work: Work, asked: Sequence[AttemptRequest]) -> list[Answer | None]:
    """Emit ``event`` with ``payload`` (JSON text). Answers whether it was the first."""
    locked = work.tx.dialect.lock_names(work.tx, {lock_name(a.args["event"]) for a in asked})
    able = [a for a in asked if lock_name(a.args["event"]) in locked]
    if not able:
        return [None] * len(asked)
    emits = [EventEmit(a.args["event"], a.args["payload"], a.task_id) for a in able]
    new, woken = events.emit(work.tx, emits, lock=False)
    work.woken += woken
    answers: list[Answer | None] = []
    entries: list[CheckpointEntry] = []
    for a in asked:
        if lock_name(a.args["event"]) not in locked:
            answers.append(None)
            continue
        first = a.args["event"] in new
        new.discard(a.args["event"])  # of several in this cycle, only one is
        value = msgspec.json.encode(first).decode()
        entries.append(
            CheckpointEntry(
                a.task_id, a.claim, a.args["name"], CheckpointType.EMIT, a.args["seq"], value, note=a.args.get("note")
            )
        )
        answers.append({"value": value})
    checkpoints.write(work.tx, entries)
    return answers


def await_event(work: Work, asked: Sequence[AttemptRequest]) -> list[Answer | None]:
    """Await ``event``, with ``timeout`` (microseconds, None: for ever). Answers a payload, a failure, or ``until``."""
    tx, now = work.tx, work.tx.now
    locked = tx.dialect.lock_names(tx, {lock_name(a.args["event"]) for a in asked}, shared=True)
    ends = waits.deadlines(tx, [a.label for a in asked])
    happened = events.emitted(tx, [a.args["event"] for a in asked])
    answers: list[Answer | None] = []
    entries: list[CheckpointEntry] = []
    pending: list[StoredWait] = []
    for a in asked:
        name, timeout = a.args["event"], a.args["timeout"]
        until = ends.get(a.label, FOREVER if timeout is None else now + timeout)
        event = happened.get(name)
        if lock_name(name) not in locked:
            answers.append(None)
            continue
        entry = CheckpointEntry(
            a.task_id, a.claim, a.args["name"], CheckpointType.EVENT, a.args["seq"], note=a.args.get("note")
        )
        # What counts is when it was emitted, not when a worker reads it. An event from before the wait began
        # is in time, even if the clock was set back since.
        if event is not None and (a.label not in ends or event.emitted_at <= until):
            entries.append(entry._replace(value=event.payload))
            answers.append({"value": event.payload})
        elif until <= now:
            failure = msgspec.json.encode(failure_of(TimeoutError(f"event {name!r} was not emitted in time"))).decode()
            entries.append(entry._replace(failure=failure))
            answers.append({"failure": failure})
        else:
            pending.append(StoredWait(*a.label, name, until, a.claim))
            answers.append({"until": until})
    checkpoints.write(tx, entries)
    waits.end(tx, [(e.task_id, e.name) for e in entries if (e.task_id, e.name) in ends])
    waits.register(tx, pending)
    return answers

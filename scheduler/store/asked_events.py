"""Emitting and awaiting events from inside a handler; see ``requests.py``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler.model.checkpoint import Sort, failure_of
from scheduler.ports import FOREVER
from scheduler.store import checkpoints, events, waits
from scheduler.store.asked import Answer, Asked, Work
from scheduler.store.checkpoints import Entry
from scheduler.store.events import Emit, lock_name
from scheduler.store.waits import Wait


def emit(work: Work, asked: Sequence[Asked]) -> list[Answer | None]:
    """``event``, ``payload`` (JSON text). Answers whether it was the first."""
    locked = work.dialect.lock_names(work.connection, {lock_name(a.args["event"]) for a in asked})
    able = [a for a in asked if lock_name(a.args["event"]) in locked]
    if not able:
        return [None] * len(asked)
    emits = [Emit(a.args["event"], a.args["payload"], a.task_id) for a in able]
    new, woken = events.emit(work.connection, emits, work.now, lock=False)
    work.woken += woken
    answers: list[Answer | None] = []
    entries: list[Entry] = []
    for a in asked:
        if lock_name(a.args["event"]) not in locked:
            answers.append(None)
            continue
        first = a.args["event"] in new
        new.discard(a.args["event"])  # of several in this turn, only one is
        value = msgspec.json.encode(first).decode()
        entries.append(
            Entry(a.task_id, a.claim, a.args["name"], Sort.EMIT, a.args["seq"], value, note=a.args.get("note"))
        )
        answers.append({"value": value})
    checkpoints.write(work.connection, work.dialect, entries, work.now)
    return answers


def await_event(work: Work, asked: Sequence[Asked]) -> list[Answer | None]:
    """``event``, ``timeout`` (microseconds, None: for ever). Answers its payload, a failure, or ``until``."""
    connection, dialect, now = work.connection, work.dialect, work.now
    locked = dialect.lock_names(connection, {lock_name(a.args["event"]) for a in asked}, shared=True)
    ends = waits.deadlines(connection, dialect, [a.label for a in asked])
    happened = events.emitted(connection, dialect, [a.args["event"] for a in asked])
    answers: list[Answer | None] = []
    entries: list[Entry] = []
    pending: list[Wait] = []
    for a in asked:
        name, timeout = a.args["event"], a.args["timeout"]
        until = ends.get(a.label, FOREVER if timeout is None else now + timeout)
        event = happened.get(name)
        if lock_name(name) not in locked:
            answers.append(None)
            continue
        entry = Entry(a.task_id, a.claim, a.args["name"], Sort.EVENT, a.args["seq"], note=a.args.get("note"))
        # What counts is when it was emitted, not when a worker came to look. One that was there before anybody waited
        # is in time, even if the clock was set back since.
        if event is not None and (a.label not in ends or event.emitted_at <= until):
            entries.append(entry._replace(value=event.payload))
            answers.append({"value": event.payload})
        elif until <= now:
            failure = msgspec.json.encode(failure_of(TimeoutError(f"event {name!r} was not emitted in time"))).decode()
            entries.append(entry._replace(failure=failure))
            answers.append({"failure": failure})
        else:
            pending.append(Wait(*a.label, name, until, a.claim))
            answers.append({"until": until})
    checkpoints.write(connection, dialect, entries, now)
    waits.end(connection, dialect, [(e.task_id, e.name) for e in entries if (e.task_id, e.name) in ends])
    waits.register(connection, dialect, pending, now)
    return answers

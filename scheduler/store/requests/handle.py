"""Writes what running attempts ask for: one transaction, lists only, under the fence.

A request is a name and JSON-able arguments, its answer JSON-able, too: a child process sends them through a socket.
An attempt that has lost its claim is answered so, and nothing of it is written. A request whose rows another
transaction holds is not answered yet (None): it has to be sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from scheduler.model.checkpoint import CheckpointType, failure_of
from scheduler.store.db.dialect import bind_rows, fence
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints
from scheduler.store.durable.checkpoints import CheckpointEntry
from scheduler.store.predicates import IS_HELD
from scheduler.store.requests import children, events
from scheduler.store.requests.request import Answer, AttemptRequest, Work
from scheduler.store.tasks import control

log = logging.getLogger("scheduler.engine")


def answer(
    tx: Tx, worker: int, asked: Sequence[AttemptRequest], *, one_by_one: bool = False
) -> tuple[list[Answer | None], int]:
    """Do what is asked; an answer for each, None for those to be asked again; and how many tasks woke because of it.

    ``held``: whether the claim is still the worker's; ``cancelled``: the task is to end; ``error``: see
    :func:`scheduler.model.checkpoint.revived`. ``one_by_one``: one that the database refuses keeps no other from being
    answered.
    """
    if one_by_one:
        each = [_isolated(tx, worker, one) for one in asked]
        return [given for given, _ in each], sum(woken for _, woken in each)
    answers: list[Answer | None] = [{"held": False}] * len(asked)
    beats = [(a.task_id, a.claim, a.args.get("percent"), a.args.get("message")) for a in asked if a.what != "note"]
    held = control.stamp(tx, worker, beats) if beats else set()
    fenced = _fence(tx, worker, {a.key for a in asked if a.what in _WRITES and a.key in held})
    done = _done(tx, asked)
    work = Work(tx)
    todo: dict[str, list[int]] = {}
    for i, one in enumerate(asked):
        if one.what in _UNFENCED:
            todo.setdefault(one.what, []).append(i)
        elif one.key in held:
            if one.what not in _WRITES:
                answers[i] = {"held": True}
            elif one.key not in fenced:
                answers[i] = None
            elif fenced[one.key] and one.what not in _ALLOWED_AFTER_CANCEL:
                answers[i] = {"held": True, "cancelled": True}
            elif i in done:
                answers[i] = {"held": True, "cancelled": fenced[one.key]} | done[i]
            else:
                todo.setdefault(one.what, []).append(i)
    for what, handler in (_WRITES | _UNFENCED).items():
        places = todo.get(what)
        if places:
            for i, given in zip(places, handler(work, [asked[i] for i in places]), strict=True):
                answers[i] = None if given is None else {"held": True, "cancelled": fenced.get(asked[i].key)} | given
    return answers, work.woken


def _fence(tx: Tx, worker: int, keys: set[tuple[int, int]]) -> dict[tuple[int, int], bool]:
    """Hold these claims as they are until the commit; whether each was asked to end. Never waits for a row."""
    if not keys:
        return {}
    rows = tx.dialect.rows({"id": int, "claim": int})
    found = tx.run(
        f"SELECT t.id, t.claim, t.cancel_requested FROM {rows} j JOIN schedd_tasks t ON t.id = j.id "
        f"WHERE {fence(IS_HELD)} ORDER BY t.id {tx.dialect.share_free}",
        worker=worker,
        rows=bind_rows(list(keys)),
    )
    return {(row[0], row[1]): row[2] is not None for row in found}


def _done(tx: Tx, asked: Sequence[AttemptRequest]) -> dict[int, Answer]:
    """Answers to requests that are sent again although an unanswered commit has done them.

    What they made is there, and must not be made twice.
    """
    again = {i: one for i, one in enumerate(asked) if one.again and one.what in _WRITES}
    known = checkpoints.find(tx, [one.label for one in again.values()]) if again else {}
    return {
        i: {"value": found.value} if found.failure is None else {"failure": found.failure}
        for i, one in again.items()
        if (found := known.get(one.label)) is not None and found.type is _CHECKPOINT_TYPES[one.what]
    }


def _isolated(tx: Tx, worker: int, one: AttemptRequest) -> tuple[Answer | None, int]:
    try:
        with tx.connection.begin_nested():
            given, woken = answer(tx, worker, [one])
            return given[0], woken
    except (sa.exc.OperationalError, sa.exc.InterfaceError):
        raise  # trouble with the database, not with this request
    except Exception as error:
        log.exception("a request cannot be carried out: %s", one.what, extra={"task": one.task_id})
        return {"held": True, "error": failure_of(error)}, 0


def _record(work: Work, asked: Sequence[AttemptRequest]) -> list[Answer | None]:
    """Steps that have succeeded."""
    checkpoints.write(work.tx, [CheckpointEntry(a.task_id, a.claim, type=CheckpointType.STEP, **a.args) for a in asked])
    return [{} for _ in asked]


def _sleep(work: Work, asked: Sequence[AttemptRequest]) -> list[Answer | None]:
    """Sleeps that begin: until when is recorded, so that they end then whatever happens."""
    entries = [
        CheckpointEntry(
            a.task_id,
            a.claim,
            a.args["name"],
            CheckpointType.SLEEP,
            a.args["seq"],
            str(a.args["until"]),
            note=a.args.get("note"),
        )
        for a in asked
    ]
    checkpoints.write(work.tx, entries)
    return [{} for _ in asked]


def _note(work: Work, asked: Sequence[AttemptRequest]) -> list[Answer | None]:
    notes = [(a.task_id, a.claim, name, a.args["note"]) for a in asked for name in a.args["names"]]
    checkpoints.annotate(work.tx, notes)
    return [{} for _ in asked]


_Handler = Callable[[Work, Sequence[AttemptRequest]], list[Answer | None]]
# In the order in which they are done. A heartbeat is none of these: its stamp is all that it wants.
_WRITES: dict[str, _Handler] = {
    "record": _record,
    "sleep": _sleep,
    "emit": events.emit,
    "await_event": events.await_event,
    "spawn": children.spawn,
    "await_tasks": children.await_tasks,
}
_CHECKPOINT_TYPES = {
    "record": CheckpointType.STEP,
    "sleep": CheckpointType.SLEEP,
    "emit": CheckpointType.EMIT,
    "await_event": CheckpointType.EVENT,
    "spawn": CheckpointType.SPAWN,
    "await_tasks": CheckpointType.TASK,
}
_ALLOWED_AFTER_CANCEL = frozenset({"record"})  # it has been done
_UNFENCED: dict[str, _Handler] = {"note": _note}  # need no fence

"""Work that no live worker serves: which worker did last, and what an operator may do with it."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import msgspec

from scheduler.model.texts import listed, rfc3339
from scheduler.store.db.tx import Tx
from scheduler.store.read.workers import Fleet
from scheduler.store.workers import EXECUTOR_HOST

_RECENT = 500  # workers among which the one is looked for
_LAST = (
    "SELECT w.host, w.pid, w.queues, w.heartbeat_at, k.kind FROM "
    f"(SELECT id, host, pid, queues, heartbeat_at FROM schedd_workers WHERE host <> '{EXECUTOR_HOST}' "
    f"ORDER BY id DESC LIMIT {_RECENT}) w "
    "LEFT JOIN schedd_worker_kinds k ON k.worker = w.id AND k.kind = :kind ORDER BY w.heartbeat_at DESC"
)


class LeftBehind(NamedTuple):
    """``last``: the worker that served it last and when, if it is known; ``remedy``: what to do, with the command."""

    last: str | None
    remedy: str


def left_behind(tx: Tx, fleet: Fleet, queue: str, kind: str) -> LeftBehind:
    """Of tasks of this kind in this queue, which no live worker serves."""
    known = fleet.knows(kind) or not fleet.claiming  # without any worker the kind is not to blame
    last = None
    for row in tx.run(_LAST, kind=kind):
        if row.kind is not None and (not known or _serves(row.queues, queue)):
            last = f"worker {row.host}:{row.pid} served it last, until {rfc3339(row.heartbeat_at, exact=False)}"
            break
    if not known:
        give_up = f"`schedctl cancel --kind {shlex.quote(kind)}`"
        return LeftBehind(last, f"Start a worker whose program has kind {kind}, or give the tasks up: {give_up}.")
    others = sorted({q for worker in fleet.claiming if kind in worker.kinds for q in worker.queues})
    to = shlex.quote(others[0]) if others else "QUEUE"
    move = f"`schedctl set task --queue {shlex.quote(queue)} --to-queue {to}`"
    served = f" (live workers serve {listed(others)})" if len(others) > 1 else ""
    return LeftBehind(last, f"Start a worker that serves queue {queue}, or move the tasks: {move}{served}.")


def _serves(text: str, queue: str) -> bool:
    try:
        queues = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        return False
    return "*" in queues or queue in queues

"""Work that no live worker serves: recurring schedules that make such tasks are reported, and held back at one run; of
tasks, which worker did serve them last, and what an operator may do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from scheduler.model.texts import counted, listed, rfc3339
from scheduler.store.db.tx import Tx
from scheduler.store.read.workers import Fleet
from scheduler.store.workers import EXECUTOR_HOST


class _Options(msgspec.Struct):
    """Of the task that each slot makes."""

    queue: str = "default"
    priority: int = 1
    schema_version: int = 1
    executor: str | None = None


class _Node(_Options):
    """A task of a recurring graph."""

    kind: str = ""


class Unserved(NamedTuple):
    """A schedule, why no worker would run its tasks, and when a program registered it last (microseconds).

    ``holds``: whether it stores one run at most meanwhile, as no live worker knows the kind.
    """

    name: str
    reason: str
    seen_at: int
    holds: bool = False


def unserved_schedules(tx: Tx, fleet: Fleet) -> list[Unserved]:
    """Those that are not paused, by name."""
    found = []
    for row in tx.run(
        "SELECT name, kind, options, graph, catchup, seen_at FROM schedd_schedules WHERE paused = 0 ORDER BY name"
    ):
        try:
            tasks = [(row.kind, msgspec.json.decode(row.options, type=_Options))]
            if row.graph is not None:
                tasks = [(one.kind, one) for one in msgspec.json.decode(row.graph, type=list[_Node])]
        except msgspec.MsgspecError:
            continue  # reported as a schedule that cannot be read
        for kind, options in tasks:
            reason = fleet.unserved(options.queue, kind, options.schema_version, options.priority, options.executor)
            if reason is not None:
                holds = row.catchup != "all" and not fleet.executors and not fleet.knows(kind)
                found.append(Unserved(row.name, reason, row.seen_at, holds))
                break
    return found


def describe(found: Iterable[Unserved]) -> list[tuple[str, int]]:
    """A sentence for each reason, and how many schedules it is about."""
    groups: dict[str, list[Unserved]] = {}
    for one in found:
        groups.setdefault(one.reason, []).append(one)
    return [(_sentence(reason, several), len(several)) for reason, several in groups.items()]


def _sentence(reason: str, several: list[Unserved]) -> str:
    # When it was registered tells what its program left behind from what is missing since it was started.
    names = listed([f"{one.name} (registered last at {rfc3339(one.seen_at, exact=False)})" for one in several])
    make, which, each = ("makes", several[0].name, "it") if len(several) == 1 else ("make", "NAME", "each")
    held = "one run waits at most; " if all(one.holds for one in several) else ""
    return (
        f"{counted(len(several), 'schedule')} {make} tasks that no worker runs, since {reason}: {names}; {held}"
        f"`schedctl cron pause {shlex.quote(which)}` stops {each}"
    )


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
        give_up = f"`schedctl bulk plan cancel --kind {shlex.quote(kind)}`"  # which `bulk undo` can take back
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

"""Which workers there are, and what they serve: by the predicates that claiming uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.model.capacity import (
    PROCESS,
    SLOT_TYPES,
    THREAD,
    Capacity,
    HungHandler,
    OrphanedAttempts,
    UnmovedHandler,
)
from scheduler.model.defaults import POOLS
from scheduler.model.state import RUNNING
from scheduler.model.texts import counted, listed, rfc3339, span_text
from scheduler.model.worker_states import DRAINING, LIVE, STOPPED, WORKER_STATES
from scheduler.ports import FOREVER
from scheduler.store.broken_rows import options_of
from scheduler.store.db.schema_version import VERSION, knows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import HELD
from scheduler.store.read.executors import ExecutorStatus, executor_statuses, unplaced

if TYPE_CHECKING:
    import sqlalchemy as sa

NOT_LIVE = "no worker is live"
LOST = "lost"  # its lease ran out, and no worker has reclaimed its tasks yet
GONE = "gone"  # its process has ended, as its host knows, and no worker has reclaimed its tasks yet
_RECENT = 50
_MAX_RUNNING = 1000  # running tasks named, of all workers
_ROW = (
    "SELECT id, incarnation, host, pid, version, state, queues, pools, started_at, heartbeat_at, lease_until, "
    f"drain_requested, skew FROM schedd_workers WHERE lease_until < {FOREVER}"  # executors have none
)


class WorkerTask(NamedTuple):
    """A handler that is under way. ``since``: microseconds."""

    id: int
    kind: str
    since: int | None


class WorkerRecord(NamedTuple):
    """One worker. ``state``: live, draining, stopped, dead; lost: its lease ran out, unnoticed so far; gone: its
    process has ended without a word.

    ``capacity``: its slots; ``holds``: tasks that it has claimed or is running; ``running``: those
    of them that are under way; ``skew``: its machine's clock behind the server's. Times are microseconds.
    """

    id: int
    incarnation: str
    host: str
    pid: int
    version: str
    state: str
    queues: tuple[str, ...]
    capacity: Capacity
    kinds: tuple[str, ...]
    holds: int
    started_at: int
    heartbeat_at: int
    lease_until: int
    skew: int
    running: tuple[WorkerTask, ...]
    versions: Mapping[str, int]  # the schema_version that it knows of each of its kinds
    unknown_schema: str | None = None  # of the database, if its program does not know it

    @property
    def label(self) -> str:
        """``host:pid``."""
        return f"{self.host}:{self.pid}"

    @property
    def claims(self) -> bool:
        """Whether it takes new work."""
        fit = self.capacity.lease_needed is None and self.unknown_schema is None and not self.capacity.failing
        return fit and self.state == WORKER_STATES[LIVE]

    @property
    def lost(self) -> bool:
        """Whether it neither goes round nor has been found dead yet: the next live worker takes back what it holds."""
        return self.state in (LOST, GONE)

    @property
    def alive(self) -> bool:
        """Whether it goes round: live or draining."""
        return self.state in WORKER_STATES[:STOPPED]

    def serves_queue(self, queue: str) -> bool:
        """Whether it takes tasks of this queue."""
        return "*" in self.queues or queue in self.queues

    @property
    def orphans(self) -> int:
        """How many handlers run here that lost their claims; 0 of a worker that does not go round any more."""
        return sum(one.count for one in self.capacity.orphans) if self.alive else 0

    @property
    def orphaned_tasks(self) -> tuple[int, ...]:
        """The tasks of these, or some of them."""
        return tuple(sorted(i for one in self.capacity.orphans for i in one.tasks)) if self.alive else ()

    @property
    def hung(self) -> tuple[HungHandler, ...]:
        """The handlers that hang here; none of a worker that does not go round any more."""
        return self.capacity.hung if self.alive else ()

    @property
    def unmoved(self) -> tuple[UnmovedHandler, ...]:
        """The handlers that have not moved for long; none of a worker that does not go round any more."""
        return self.capacity.unmoved if self.alive else ()

    def knows(self, kind: str, version: int) -> bool:
        """Whether it can read tasks of this kind that were scheduled with this schema_version."""
        return self.versions.get(kind, -1) >= version


def workers(tx: Tx, *, every: bool = False) -> list[WorkerRecord]:
    """Workers that have neither stopped nor been found dead; ``every``: the most recent of those too."""
    some = f"ORDER BY id DESC LIMIT {_RECENT}" if every else f"AND state < {STOPPED}"
    rows = tx.run(f"{_ROW} {some}").fetchall()
    held = {
        row.worker: row.n
        for row in tx.run(f"SELECT worker, count(*) AS n FROM schedd_tasks WHERE {HELD} GROUP BY worker")
    }
    running: dict[int, list[WorkerTask]] = {}
    # The sum keeps SQLite from walking all tasks by their ids instead of those that are held.
    for row in tx.run(
        f"SELECT worker, id, kind, started_at FROM schedd_tasks WHERE {HELD} "
        f"AND state + 0 = {RUNNING} ORDER BY id + 0 LIMIT {_MAX_RUNNING}"
    ):
        running.setdefault(row.worker, []).append(WorkerTask(row.id, row.kind, row.started_at))
    schema = tx.run(f"SELECT {VERSION}").scalar_one()
    kinds: dict[int, dict[str, int]] = {}
    for row in tx.run(
        "SELECT k.worker, k.kind, k.schema_version FROM schedd_worker_kinds k "
        f"JOIN schedd_workers w ON w.id = k.worker WHERE w.state < {STOPPED} ORDER BY k.kind"
    ):
        kinds.setdefault(row.worker, {})[row.kind] = row.schema_version
    found = [
        WorkerRecord(
            r.id,
            r.incarnation,
            r.host,
            r.pid,
            r.version,
            _state(r, _capacity(r.pools), tx.now),
            _queues(r.queues),
            _capacity(r.pools),
            tuple(kinds.get(r.id, ())),
            held.get(r.id, 0),
            r.started_at,
            r.heartbeat_at,
            r.lease_until,
            r.skew,
            tuple(running.get(r.id, ())),
            kinds.get(r.id, {}),
            schema if _unknown(r.pools, schema) else None,
        )
        for r in rows
    ]
    return sorted(found, key=lambda w: w.id)


def _queues(text: str) -> tuple[str, ...]:
    """What a worker has published; none for a text that no version of schedd wrote, as :func:`_capacity`."""
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except msgspec.MsgspecError:
        return ()


def _capacity(text: str) -> Capacity:
    try:
        return msgspec.json.decode(text, type=Capacity)
    except msgspec.MsgspecError:
        return Capacity()


def _unknown(pools: str, schema: str | None) -> bool:
    known = _capacity(pools).schema
    return bool(known) and schema is not None and not knows(known, schema)


def _is_here(host: str) -> bool:
    import socket  # only where a worker is live

    return host == socket.gethostname()


def _state(row: sa.Row[Any], capacity: Capacity, now: int) -> str:
    if row.state < STOPPED and row.lease_until < now:
        return LOST
    if row.state < STOPPED and _is_here(row.host):
        from scheduler.store.db.begun import is_gone

        if is_gone(capacity.begun):
            return GONE
    if row.state == LIVE and row.drain_requested is not None:
        return WORKER_STATES[DRAINING]  # it will notice in a moment
    return WORKER_STATES[row.state] if row.state in range(len(WORKER_STATES)) else LOST


def no_worker_reason(found: Iterable[WorkerRecord]) -> str | None:
    """Why no worker takes new work at all; None if one does."""
    alive = [w for w in found if w.alive]
    if any(w.claims for w in alive):
        return None
    if not alive:
        return NOT_LIVE
    far = [text for w in alive if (text := far_text(w) or failing_text(w)) is not None]
    draining = [w.label for w in alive if w.state != WORKER_STATES[LIVE]]
    if not far:
        return f"every live worker is draining ({listed(draining)})"
    rest = f"; draining: {listed(draining)}" if draining else ""
    return f"{'; '.join(far)}{rest}"


def clock_text(worker: WorkerRecord, now: int, least: int) -> str | None:
    """What to say of a worker whose clock is off by more than ``least`` microseconds."""
    early = worker.heartbeat_at - now
    if not worker.alive or max(early, abs(worker.skew)) <= least:
        return None
    if early > least:  # only a file has times of each machine's own
        return f"the clock of worker {worker.label} is ahead by {span_text(early)}, so it begins tasks too early"
    side = "ahead" if worker.skew < 0 else "behind"
    return f"the clock of worker {worker.label} is {side} by {span_text(abs(worker.skew))}; times do not depend on it"


def far_text(worker: WorkerRecord) -> str | None:
    """What to say of a worker that claims nothing, as the database is too far away for its lease, or has a schema that
    it does not know."""
    if worker.unknown_schema is not None and worker.alive:
        return (
            f"worker {worker.label} claims nothing, as the database has schema {worker.unknown_schema} and it knows "
            f"{worker.capacity.schema}: stop it, and start a schedd that knows the schema"
        )
    if worker.capacity.lease_needed is None or worker.state != WORKER_STATES[LIVE]:
        return None
    return (
        f"worker {worker.label} claims nothing, as the database is too far away for its lease: set [worker] lease to "
        f"{worker.capacity.lease_needed:g} s at least"
    )


def failing_text(worker: WorkerRecord) -> str | None:
    """What to say of a worker that renews its lease, but whose cycles fail."""
    if not worker.capacity.failing or not worker.alive:
        return None
    return f"worker {worker.label} neither claims nor records what has ended: {worker.capacity.failing}"


def orphans_phrase(orphans: Iterable[OrphanedAttempts]) -> str:
    """``2 attempts that lost their claims (task 5, 7)``."""
    found = list(orphans)
    count = sum(one.count for one in found)
    tasks = listed([str(i) for i in sorted(i for one in found for i in one.tasks)])
    lost = "1 attempt that lost its claim" if count == 1 else f"{count} attempts that lost their claims"
    return f"{lost} (task {tasks})"


def orphans_text(worker: WorkerRecord) -> str | None:
    """What to say of a worker that runs attempts that lost their claims."""
    if not worker.orphans:
        return None
    rest = "it fills its slot until it ends" if worker.orphans == 1 else "they fill their slots until they end"
    restart = f"`schedctl worker restart {worker.id}` ends it"
    return f"worker {worker.label} runs {orphans_phrase(worker.capacity.orphans)}; {rest}: {restart}"


def hung_text(worker: WorkerRecord, hang: HungHandler) -> str:
    """What to say of a handler that hangs: which, since when, and what an operator can do."""
    since = rfc3339(hang.since, exact=False)
    if not hang.blocks:
        what = f"task {hang.task} ({hang.kind}) hangs on worker {worker.label}, past its timeout since {since}"
    else:
        who = f"task {hang.task} ({hang.kind})" if hang.task else "something that a handler left behind"
        loop = f"the event loop of {POOLS[hang.priority]} tasks on worker {worker.label}"
        behind = f", {counted(len(hang.behind), 'coroutine')} cannot go on" if hang.behind else ""
        what = f"{who} blocks {loop} since {since}{behind}"
    return f"{what}: {hang.remedy(worker.id)}"


def held_by_pool(tx: Tx) -> dict[tuple[int, str, int], int]:
    """How many tasks each worker has claimed or is running, by (worker, pool of their priority, slot type)."""
    types, found = slot_types(tx), dict[tuple[int, str, int], int]()
    rows = tx.run(
        f"SELECT worker, priority, kind, count(*) AS n FROM schedd_tasks WHERE {HELD} "
        "AND worker IS NOT NULL GROUP BY worker, priority, kind"
    )
    for row in rows:
        key = row.worker, POOLS[row.priority], types.get(row.kind, THREAD)
        found[key] = found.get(key, 0) + row.n
    return found


class Drained(NamedTuple):
    """How far a draining worker is. ``over``: it knows, and holds and runs nothing any more; ``lost``:
    its lease ran out, so it will not come to know."""

    over: bool
    holds: int
    orphans: tuple[OrphanedAttempts, ...]
    lost: bool


def drained(tx: Tx, worker: int) -> Drained:
    """Look how far a worker is with draining."""
    row = tx.run("SELECT state, pools, lease_until FROM schedd_workers WHERE id = :id", id=worker).one_or_none()
    holds = tx.run(f"SELECT count(*) FROM schedd_tasks WHERE worker = :id AND {HELD}", id=worker).scalar_one()
    if row is None:
        return Drained(holds == 0, int(holds), (), True)
    orphans = _capacity(row.pools).orphans if row.state < STOPPED else ()
    over = row.state != LIVE and holds == 0 and not orphans
    return Drained(over, int(holds), orphans, row.state < STOPPED and row.lease_until < tx.now)


def slot_types(tx: Tx) -> dict[str, int]:
    """The type of slot that runs each kind, as far as workers have reported it."""
    rows = tx.run("SELECT name, options FROM schedd_kinds")
    found = {row.name: options_of(row.options).get("slot_type") for row in rows}
    return {name: SLOT_TYPES.index(slot_type) for name, slot_type in found.items() if slot_type in SLOT_TYPES}


class Fleet:
    """The workers that take new work, and what none of them serves."""

    def __init__(
        self,
        found: list[WorkerRecord],
        slot_types: Mapping[str, int],
        executors: Mapping[str, ExecutorStatus] = MappingProxyType({}),
    ) -> None:
        self.executors = executors
        self.claiming = [w for w in found if w.claims]
        self.no_worker = no_worker_reason(found)
        self.slot_types = slot_types
        self._kinds = {w.id: frozenset(w.kinds) for w in self.claiming}
        self.next_alone: Sequence[sa.Row[Any]] | None = None  # suspects that are due: None before they are asked for

    def serving(self, queue: str, kind: str, version: int = 0) -> list[WorkerRecord]:
        """The workers that would claim a task of this queue, kind and schema_version."""
        some = [w for w in self.claiming if kind in self._kinds[w.id] and w.serves_queue(queue)]
        return [w for w in some if w.knows(kind, version)]

    def knows(self, kind: str) -> bool:
        """Whether one of the workers knows this kind, in whatever queue."""
        return any(kind in kinds for kinds in self._kinds.values())

    def newest(self, queue: str, kind: str) -> int:
        """The highest schema_version that the workers know which serve this queue and kind; 0 if none does."""
        return max((w.versions[kind] for w in self.serving(queue, kind)), default=0)

    def places(self, queue: str) -> ExecutorStatus | None:
        """The executor that takes tasks of this queue though they name none."""
        return next((one for one in self.executors.values() if one.serves_queue(queue) and one.reason is None), None)

    def starts_workers(self, queue: str) -> ExecutorStatus | None:
        """The executor that starts workers for this queue, whether it can at present or not."""
        elastic = (one for one in self.executors.values() if one.scale is not None and one.serves_queue(queue))
        return next(elastic, None)

    def unserved(
        self,
        queue: str,
        kind: str,
        version: int = 0,
        priority: int | None = None,
        executor: str | None = None,
        *,
        suspect: bool = False,
    ) -> str | None:
        """Why no worker would run a task of this queue, kind, schema_version and priority; None if one would.

        ``priority`` None: whatever slots it needs. ``executor``: that it names. ``suspect``: it is in quarantine, so a
        child process may run it, too.
        """
        if executor is not None:
            return unplaced(self.executors, executor, queue)
        placer, known = self.places(queue), self.knows(kind)
        if placer is not None and (placer.scale is None or (known and placer.scale.trouble is None)):
            return None
        newest = self.newest(queue, kind)
        if newest:
            if newest >= version:
                return self._slotless(self.serving(queue, kind, version), queue, kind, priority, suspect=suspect)
            return f"no live worker knows schema_version {version} of kind {kind!r}, the newest knows {newest}"
        elastic = self.starts_workers(queue)
        if known and elastic is not None and elastic.idle_reason is not None:
            return elastic.idle_reason
        if self.no_worker is not None:
            return self.no_worker
        if not known:
            return f"no live worker serves kind {kind!r}"
        if not any(w.serves_queue(queue) for w in self.claiming):
            return f"no live worker serves queue {queue!r}"
        return f"no live worker serves both kind {kind!r} and queue {queue!r}"

    def _slotless(
        self, serving: list[WorkerRecord], queue: str, kind: str, priority: int | None, *, suspect: bool
    ) -> str | None:
        slot_type = self.slot_types.get(kind)
        if priority is None or slot_type is None:
            return None
        fit = {slot_type, PROCESS} if suspect else {slot_type}
        if not all(worker.capacity.lacks(priority, one) for worker in serving for one in fit):
            return None
        what = ("a thread slot", "an async slot", "a child process")[slot_type]
        return f"no live worker that serves kind {kind!r} in queue {queue!r} has {what} for {POOLS[priority]} tasks"


def fleet_of(tx: Tx, found: list[WorkerRecord]) -> Fleet:
    """The same, of workers that were read already."""
    return Fleet(found, slot_types(tx), executor_statuses(tx))


def read_fleet(tx: Tx) -> Fleet:
    """The workers that take new work."""
    return fleet_of(tx, workers(tx))

"""How things stand: counts, the oldest ready task, the workers, and what is stuck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.defaults import POOLS
from scheduler.model.lanes import kind_of
from scheduler.model.problem import Problem
from scheduler.model.state import TaskState
from scheduler.model.times import SECOND
from scheduler.store import pauses
from scheduler.store.db.tx import Tx
from scheduler.store.inbox_held import HeldMessage, held
from scheduler.store.pauses import Pause
from scheduler.store.predicates import HELD
from scheduler.store.read.by_hand import ByHand, set_by_hand
from scheduler.store.read.counts import about, pools
from scheduler.store.read.flow import Flow, flows
from scheduler.store.read.message_counts import DeadMessages, recent_dead
from scheduler.store.read.problems import problems
from scheduler.store.read.ready import ReadyCause, cause_of
from scheduler.store.read.shared_causes import SharedCauses, shared_causes
from scheduler.store.read.snapshot import Snapshot, due_ids
from scheduler.store.read.workers import Fleet, WorkerRecord
from scheduler.store.tasks.claim import LaneHead

MAX_COUNTED = 100_000  # tasks of each index that are counted
_WAITS = 60 * SECOND  # a task that is ready for longer is asked for its cause
_MAX_HEADS = 20  # lanes whose tasks behind a pause are counted


class PoolCount(NamedTuple):
    """Tasks of one priority: due now, later, claimed or running; and the slots that live workers have for it."""

    due: int
    later: int
    held: int
    slots: int
    async_slots: int


class ReadyTask(NamedTuple):
    """A task that only wants a worker. ``since``: microseconds. ``cause``: what keeps it, once it has waited."""

    id: int
    kind: str
    queue: str
    since: int
    cause: ReadyCause | None = None


class PausedWork(NamedTuple):
    """A pause, and how many tasks are due behind it, up to a bound."""

    pause: Pause
    due: int


class Status(NamedTuple):
    """What ``schedctl status`` tells. Counts end at a number of tasks of each index, and of each priority."""

    states: dict[str, int]
    pools: dict[str, PoolCount]
    oldest: ReadyTask | None
    oldest_dead: int | None  # when the oldest dead letter died
    workers: list[WorkerRecord]
    stuck: list[Problem]
    paused: list[PausedWork]
    capped: frozenset[str] = frozenset()  # states that may have more; "pools": so may pools
    held: Sequence[HeldMessage] = ()  # messages that wait for others before them
    idle: Problem | None = None  # that no worker takes tasks
    by_hand: Sequence[ByHand] = ()  # what people have set and not taken back
    flows: Sequence[Flow] = ()  # of queues whose backlog is some minutes old
    dead_messages: Sequence[DeadMessages] = ()  # that could become no task, in the last day
    causes: SharedCauses = SharedCauses([], 0, True)  # of the newest dead letters, over all kinds


class Standing(NamedTuple):
    """What people and Prometheus read: tasks by state, the states that may have more, and what is wrong."""

    seen: Snapshot
    states: dict[str, int]
    capped: frozenset[str]
    problems: list[Problem]


def standing(tx: Tx, most: int = MAX_COUNTED) -> Standing:
    """How things stand; see :func:`status`."""
    seen = Snapshot(tx)
    states, capped = about(tx, most)
    seen.unreadable = any(name not in set(TaskState) for name in states)
    return Standing(seen, states, capped, problems(seen))


def status(tx: Tx, most: int = MAX_COUNTED) -> Status:
    """How things stand at ``now`` (microseconds). Reads narrow indexes only.

    ``most``: tasks of each index, and of each priority, that are counted.
    """
    seen, states, capped, found = standing(tx, most)
    stuck = [one for one in found if one.name != "idle"]
    pool_counts, more = _pools(tx, seen.fleet, seen.heads, most)
    oldest_dead, causes = None, SharedCauses([], 0, True)
    if states.get("dead"):
        from scheduler.store.read import dead_letters

        oldest_dead, causes = dead_letters.oldest(tx), shared_causes(tx)
    return Status(
        states,
        pool_counts,
        _oldest(seen),
        oldest_dead,
        seen.workers,
        stuck,
        paused_work(tx, seen.due),
        capped | {"pools"} if more else capped,
        held(tx),
        next((one for one in found if one.name == "idle"), None),
        set_by_hand(tx),
        flows(tx, seen.due),
        recent_dead(tx),
        causes,
    )


def paused_work(tx: Tx, due: list[LaneHead]) -> list[PausedWork]:
    """What is paused, and how many of the due lanes' tasks wait behind each pause."""
    found = []
    for pause in pauses.records(tx):
        behind = [head for head in due if pause.holds(head.queue, kind_of(head.lane))]
        found.append(PausedWork(pause, sum(len(due_ids(tx, head)) for head in behind[:_MAX_HEADS])))
    return found


def _pools(tx: Tx, fleet: Fleet, heads: list[LaneHead], most: int) -> tuple[dict[str, PoolCount], bool]:
    """The tasks and slots of each pool, and whether there may be more tasks."""
    ready, held = pools(tx, heads, most), {0: 0, 1: 0, 2: 0}
    for row in tx.run(f"SELECT priority, count(*) AS n FROM schedd_tasks WHERE {HELD} GROUP BY priority"):
        held[row.priority] = row.n
    slots = {name: [w.capacity.pools[name] for w in fleet.claiming] for name in POOLS}
    counts = {
        name: PoolCount(
            ready.due[priority],
            ready.later[priority],
            held[priority],
            sum(s for s, _ in slots[name]),
            sum(a for _, a in slots[name]),
        )
        for priority, name in enumerate(POOLS)
    }
    return counts, ready.capped


def _oldest(seen: Snapshot) -> ReadyTask | None:
    tx = seen.tx
    if not seen.oldest:
        return None
    _, row, since = min(seen.oldest, key=lambda one: (one[2], one[1].id))
    cause = cause_of(tx, row, seen.fleet) if tx.now - since > _WAITS else None
    return ReadyTask(row.id, row.kind, row.queue, since, cause)

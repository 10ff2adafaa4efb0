"""How many workers an executor starts: by the age of the backlog that it sees, within bounds.

Age, not length: a thousand short tasks may be gone before a worker has begun, and one task that waits for an hour needs
one. Workers end by themselves when they are idle, so nothing is decided about fewer.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.inbox import INBOX
from scheduler.model.lanes import executor_of, kind_of
from scheduler.model.outgoing import OUTBOX
from scheduler.model.pauses import Pauses
from scheduler.model.registry import Registry
from scheduler.ports import SECOND
from scheduler.store import worker_jobs
from scheduler.store.db.tx import Tx
from scheduler.store.read.ready import ready_since
from scheduler.store.tasks import claim, limits
from scheduler.store.tasks.claim import LaneHead
from scheduler.store.tasks.limits import KnownLimits

LANES_PER_LOOK = 2000  # lanes that one look reads; the next one goes on behind them
MAX_AGED = 100  # due lanes, the earliest ones, among which the oldest task is looked for
ALL_QUEUES = "*"
_OF_DAEMONS = (INBOX, OUTBOX)  # queues of sources and sinks, which such workers have not


class ScaleRules(NamedTuple):
    """``least``, ``most``: workers at a time; ``older``: seconds that a task is due before more of them are started;
    ``cooldown``: seconds from the last start to the next."""

    least: int
    most: int
    older: float
    cooldown: float


class Workforce(NamedTuple):
    """``waiting``: jobs that have not begun; ``working``: those that have. ``rest``: seconds since one was last
    submitted or begun, None: none ever was."""

    waiting: int
    working: int
    rest: float | None

    @property
    def jobs(self) -> int:
        """All that there are."""
        return self.waiting + self.working


class PoolBacklog(NamedTuple):
    """Tasks that are due, and that a worker could run. ``age``: seconds since the oldest was due, None: there is none;
    ``tasks``: how many, as far as they were counted."""

    age: float | None = None
    tasks: int = 0


def more_workers(rules: ScaleRules, force: Workforce, backlog: PoolBacklog) -> int:
    """How many workers to start now.

    At least as many as make up ``least``. One for a backlog that is old; for one that stays old, as many again as work,
    so that ten thousand tasks have enough after some rounds. None while others have not begun: whether they are enough
    shows when they work.
    """
    room = max(0, rules.most - force.jobs)
    missing = min(room, rules.least - force.jobs)
    if missing > 0:
        return missing
    if backlog.age is None or backlog.age < rules.older or force.waiting:
        return 0
    if force.rest is not None and force.rest < rules.cooldown:
        return 0
    return min(room, max(1, min(force.working, backlog.tasks)))


def superfluous(rules: ScaleRules, force: Workforce, quiet: float, idle: float) -> int:
    """How many of the jobs that have not begun to cancel, as nothing has been due for ``quiet`` seconds."""
    return max(0, min(force.waiting, force.jobs - rules.least)) if quiet >= idle else 0


class BacklogView:
    """Looks for ``[executors.NAME]``: at the tasks of its queues that name no executor, or this one."""

    def __init__(self, name: str, queues: tuple[str, ...], registry: Registry) -> None:
        self._name = name
        self._queues = frozenset(queues)
        self._registry = registry
        self._after: LaneHead | None = None  # where the next look at the lanes begins

    def look(self, tx: Tx, pauses: Pauses, most: int) -> PoolBacklog:
        """What is due and neither paused nor held back by a cap or rate; ``most`` tasks are counted."""
        heads = claim.lane_heads(tx, self._after, LANES_PER_LOOK)
        self._after = heads[-1] if len(heads) >= LANES_PER_LOOK else None
        due = sorted(
            (head for head in heads if head.run_at <= tx.now and self._takes(head, pauses)), key=lambda one: one.run_at
        )
        if not due:
            return PoolBacklog()
        known = limits.known(tx)
        free = [head for head in due[:MAX_AGED] if _has_room(tx, known, head)]
        if not free:
            return PoolBacklog()
        since = min(ready_since(tx, head.id, head.run_at) for head in free)
        return PoolBacklog(max(0, tx.now - since) / SECOND, worker_jobs.count_due(tx, free, most))

    def _takes(self, head: LaneHead, pauses: Pauses) -> bool:
        kind = kind_of(head.lane)
        ours = ALL_QUEUES in self._queues or head.queue in self._queues
        ours = ours and executor_of(head.lane) in (None, self._name) and head.queue not in _OF_DAEMONS
        return ours and self._registry.get(kind) is not None and not pauses.hold(head.queue, kind)


def _has_room(tx: Tx, known: KnownLimits, head: LaneHead) -> bool:
    """Whether no cap or rate keeps this lane's tasks from being claimed. A bound for each worker does not."""
    if not known.concern(head.queue, kind_of(head.lane)):
        return True
    rooms = limits.headroom(tx, known.of(head.queue, head.lane), locked=False)
    return all(room.free != 0 and room.starts != 0 for room in rooms.values())

"""Capacity: the slots that a worker publishes, and how many of them are taken. Pure.

The rules are those of ``engine/dispatch/planner.py``. Tasks run in the slots of their priority's pool and of the pools
below it. All priorities share the child processes; high tasks get one more when the others have taken them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from scheduler.model.defaults import POOLS
from scheduler.model.problem import TransportProblem

# Slot types: threads, asyncio, child processes. With the priority they name the slots of a pool.
THREAD, ASYNC, PROCESS = range(3)
SlotKey = tuple[int, int]
SLOT_TYPES = ("thread", "async", "process")  # published names of the slot types, in the order of their numbers
HIGH = 0
MAX_UNMOVED = 50  # handlers that one worker names


class Room(NamedTuple):
    """The slots in which tasks of one priority and slot type may run.

    ``busy``: slots that are certainly taken; ``more``: tasks claimed beyond ``slots``; ``guests``: tasks of higher
    priorities, which may take one of these slots or one of their own pool.
    """

    slots: int
    busy: int
    more: int = 0
    guests: int = 0

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        return self.busy >= self.slots

    @property
    def free(self) -> bool:
        """Whether a slot is free, wherever the guests run."""
        return self.busy + self.guests < self.slots

    def plus(self, other: Room) -> Room:
        """The sum of two workers' slots."""
        return Room(*map(sum, zip(self, other, strict=True)))


class OrphanedAttempts(msgspec.Struct, frozen=True, array_like=True):
    """Attempts that lost their claims: their handlers fill slots of this pool until they end.

    ``tasks``: some of their tasks; this worker does not claim those meanwhile.
    """

    priority: int
    slot_type: int
    count: int
    tasks: tuple[int, ...] = ()


class HungHandler(msgspec.Struct, frozen=True, array_like=True):
    """A handler that hangs in a slot of this pool: past its timeout, or it ``blocks`` the event loop of the pool.

    ``task`` 0: what blocks the loop is no task's. ``since``: microseconds; ``behind``: (id, claim) of some that stand
    still on the same loop.
    """

    task: int
    claim: int
    kind: str
    priority: int
    slot_type: int
    since: int
    blocks: bool = False
    behind: tuple[tuple[int, int], ...] = ()

    def remedy(self, worker: int) -> str:
        """The advice for an operator."""
        restart = f"`schedctl worker restart {worker}` frees the slot"
        return f"`schedctl cancel --force {self.task}` ends the task, {restart}" if self.task else restart


class UnmovedHandler(msgspec.Struct, frozen=True, array_like=True):
    """A handler without a limit of its own that has not moved since ``since`` (microseconds), at ``where`` in its code.

    It may hang, or wait for something slow.
    """

    task: int
    claim: int
    kind: str
    since: int
    where: str = ""


class Scale(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an executor that starts workers publishes: how many it wants now, and may have; ``older``: seconds that a
    task is due before another one is started; ``trouble``: why the last one did not begin."""

    wanted: int = 0
    most: int = 0
    older: float = 0.0
    trouble: str | None = None


class Capacity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pools are (thread slots, async slots).

    ``processes``: children, None: an older program did not say; ``most``: tasks that it holds at most, 0: as many as
    its slots take; ``childless``: no child can be started at present; ``hung``: handlers that hang; ``unmoved``: some
    that may hang; ``begun``: the file on its host that says which handlers have begun; ``lease_needed``: the database
    is too far away for its lease, so it claims nothing until that has so many seconds; ``troubles``: what is wrong with
    the sources and sinks of its process; ``job``: the executor's job that it is; ``scale``: of an executor that starts
    workers; ``failing``: why its cycles fail, '': they do not; ``schema``: of the database that its program was made
    for, '': an older one did not say; ``short_first``: the queues of which it starts short graphs first.
    """

    high: tuple[int, int] = (0, 0)
    medium: tuple[int, int] = (0, 0)
    low: tuple[int, int] = (0, 0)
    processes: int | None = None
    most: int = 0
    childless: bool = False
    orphans: tuple[OrphanedAttempts, ...] = ()
    hung: tuple[HungHandler, ...] = ()
    unmoved: tuple[UnmovedHandler, ...] = ()
    begun: str = ""
    lease_needed: float | None = None
    troubles: tuple[TransportProblem, ...] = ()
    job: str = ""
    scale: Scale | None = None
    failing: str = ""
    schema: str = ""
    short_first: tuple[str, ...] = ()

    @property
    def pools(self) -> dict[str, tuple[int, int]]:
        """(thread slots, async slots) by the pool's name."""
        return {name: getattr(self, name) for name in POOLS}

    def starts_short_first(self, queue: str) -> bool:
        """Whether it starts the short graphs of this queue first."""
        return "*" in self.short_first or queue in self.short_first

    def pool(self, priority: int) -> tuple[int, int]:
        """(thread slots, async slots) of this priority's pool."""
        return self.pools[POOLS[priority]]

    def lacks(self, priority: int, slot_type: int) -> bool:
        """Whether the worker has no slot that could run tasks of this priority and slot type."""
        if slot_type == PROCESS:
            return self.processes is not None and not (self.processes and sum(self.pool(priority)))
        return not any(self.pool(one)[slot_type] for one in range(priority, len(POOLS)))

    def room(self, priority: int, slot_type: int, held: Mapping[SlotKey, int]) -> Room | None:
        """The room for tasks of this priority and slot type beside the held tasks; None: not known."""
        if slot_type == PROCESS:
            return None if self.processes is None else self._children(self.processes, priority, held)
        orphans_here = [self._orphans(one, slot_type) for one in range(len(POOLS))]
        slots = sum(self.pool(one)[slot_type] for one in range(priority, len(POOLS)))
        own = sum(held.get((one, slot_type), 0) for one in range(priority, len(POOLS)))
        over = guests = 0  # tasks of higher priorities that must, and that may, take slots of these pools
        for one in range(priority):
            over += held.get((one, slot_type), 0)
            above = min(over, max(0, self.pool(one)[slot_type] - orphans_here[one]))
            over, guests = over - above, guests + above
        taken = own + over + sum(orphans_here[priority:])
        return Room(slots, min(taken, slots), max(0, taken - slots), guests)

    def orphans_of(self, priority: int, slot_type: int) -> list[OrphanedAttempts]:
        """The orphaned attempts that fill slots in which tasks of this priority and slot type may run."""
        some = [one for one in self.orphans if one.slot_type == slot_type]
        return [one for one in some if one.priority >= priority or slot_type == PROCESS]

    def _orphans(self, priority: int, slot_type: int) -> int:
        return sum(s.count for s in self.orphans if (s.priority, s.slot_type) == (priority, slot_type))

    def _children(self, count: int, priority: int, held: Mapping[SlotKey, int]) -> Room:
        high, *others = (held.get((one, PROCESS), 0) + self._orphans(one, PROCESS) for one in range(len(POOLS)))
        lower = sum(others)
        slots = count + 1 if priority == HIGH and lower >= count else count
        if priority == HIGH:
            taken, waiting = high + min(lower, count), max(0, lower - count)
        else:
            taken, waiting = high + lower, 0
        return Room(slots, min(taken, slots), max(0, taken - slots) + waiting)

"""What a worker can run at a time, as it publishes that of itself; and what of it is taken. Pure.

By the rules of ``engine/planner.py``: a level's tasks run in the slots of its own pool and of the pools below it, which
help; the child processes are shared by all levels, and high tasks get one more when the others have taken them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from scheduler.model.registry import PROCESS, SlotKey

POOLS = ("high", "medium", "low")
SORTS = ("thread", "async", "process")  # as kinds are published, in the order of their numbers
HIGH = 0


class Room(NamedTuple):
    """The slots in which tasks of one level and sort may run.

    ``busy``: of ``slots``, those that are taken for certain; ``more``: tasks claimed beyond them; ``guests``: tasks of
    higher levels that may have one of the others, or one of their own pools.
    """

    slots: int
    busy: int
    more: int = 0
    guests: int = 0

    @property
    def full(self) -> bool:
        """Whether none of them is free."""
        return self.busy >= self.slots

    @property
    def free(self) -> bool:
        """Whether one of them is, whatever the guests have."""
        return self.busy + self.guests < self.slots

    def plus(self, other: Room) -> Room:
        """Those of two workers."""
        return Room(*map(sum, zip(self, other, strict=True)))


class Stray(msgspec.Struct, frozen=True, array_like=True):
    """Bodies whose claims were taken from them: they fill slots of this pool until they end.

    ``tasks``: some of theirs, which this worker does not run beside them.
    """

    level: int
    sort: int
    count: int
    tasks: tuple[int, ...] = ()


class Capacity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pools are (thread slots, async slots).

    ``processes``: children, None: an older program did not say; ``most``: tasks that it holds at most, 0: as many as
    its slots take; ``childless``: no child can be started at present.
    """

    high: tuple[int, int] = (0, 0)
    medium: tuple[int, int] = (0, 0)
    low: tuple[int, int] = (0, 0)
    processes: int | None = None
    most: int = 0
    childless: bool = False
    strays: tuple[Stray, ...] = ()

    @property
    def pools(self) -> dict[str, tuple[int, int]]:
        """(thread slots, async slots) by name."""
        return {name: getattr(self, name) for name in POOLS}

    def pool(self, level: int) -> tuple[int, int]:
        """(thread slots, async slots) of this level's pool."""
        return self.pools[POOLS[level]]

    def lacks(self, level: int, sort: int) -> bool:
        """Whether it has no slot at all that could run tasks of this level and sort."""
        if sort == PROCESS:
            return self.processes is not None and not (self.processes and sum(self.pool(level)))
        return not any(self.pool(one)[sort] for one in range(level, len(POOLS)))

    def room(self, level: int, sort: int, held: Mapping[SlotKey, int]) -> Room | None:
        """What is left for tasks of this level and sort beside what it holds, by level and sort; None: not known."""
        if sort == PROCESS:
            return None if self.processes is None else self._children(self.processes, level, held)
        stray = [self._strays(one, sort) for one in range(len(POOLS))]
        slots = sum(self.pool(one)[sort] for one in range(level, len(POOLS)))
        own = sum(held.get((one, sort), 0) for one in range(level, len(POOLS)))
        over = guests = 0  # of the higher levels' tasks: those that must, and that may, have slots of these pools
        for one in range(level):
            over += held.get((one, sort), 0)
            above = min(over, max(0, self.pool(one)[sort] - stray[one]))
            over, guests = over - above, guests + above
        taken = own + over + sum(stray[level:])
        return Room(slots, min(taken, slots), max(0, taken - slots), guests)

    def strays_of(self, level: int, sort: int) -> list[Stray]:
        """Those that fill slots in which tasks of this level and sort may run."""
        return [s for s in self.strays if s.sort == sort and (sort == PROCESS or s.level >= level)]

    def _strays(self, level: int, sort: int) -> int:
        return sum(s.count for s in self.strays if (s.level, s.sort) == (level, sort))

    def _children(self, count: int, level: int, held: Mapping[SlotKey, int]) -> Room:
        high, *others = (held.get((one, PROCESS), 0) + self._strays(one, PROCESS) for one in range(len(POOLS)))
        lower = sum(others)
        slots = count + 1 if level == HIGH and lower >= count else count
        if level == HIGH:
            taken, waiting = high + min(lower, count), max(0, lower - count)
        else:
            taken, waiting = high + lower, 0
        return Room(slots, min(taken, slots), max(0, taken - slots) + waiting)

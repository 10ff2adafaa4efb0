"""How many workers an executor starts: by the age of the backlog, within bounds. Pure.

Age, not length: a thousand short tasks may be gone before a worker has begun, and one task that waits for an hour needs
one. Workers end by themselves when they are idle, so nothing is decided about fewer.
"""

from __future__ import annotations

from typing import NamedTuple


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


class Backlog(NamedTuple):
    """Tasks that are due, and that a worker could run. ``age``: seconds since the oldest was due, None: there is none;
    ``tasks``: how many, as far as they were counted."""

    age: float | None = None
    tasks: int = 0


def more_workers(rules: ScaleRules, force: Workforce, backlog: Backlog) -> int:
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

"""The deadlines of a task's whole life: ``max_duration`` and ``max_delay``. Pure.

``max_duration`` counts from when the task was made (or retried by hand). ``max_delay`` counts while the task could run
or runs: from when nothing but a worker was missing, from the start of its attempt, or from its last sign of progress
(checkpoint, progress report, heartbeat), whichever was last; not while it waits for parents, its time or an event.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.outcome import Failure
from scheduler.model.state import CLAIMED, FIRST_TERMINAL, WAITING
from scheduler.model.texts import span_text
from scheduler.ports import FOREVER

TOO_LONG = "MaxDurationExceeded"
TOO_SLOW = "MaxDelayExceeded"


class TaskLifetime(NamedTuple):
    """The times of a task that its deadlines depend on, in microseconds. ``ready_at``: when its last parent ended."""

    state: int
    run_at: int
    ready_at: int | None
    claimed_at: int | None
    started_at: int | None
    last_sign: int | None
    expires_at: int | None
    max_duration: int | None
    max_delay: int | None


class DeadlineVerdict(NamedTuple):
    """``reason``: why to cancel the task, None if it may live on; ``check_at``: when to check it again."""

    reason: Failure | None
    check_at: int | None


def first_look(now: int, run_at: int, expires_at: int | None, max_delay: int | None) -> int | None:
    """When to check a new task first; None if it has no deadline."""
    looks = [] if max_delay is None else [max(now, run_at) + max_delay]
    return min(looks + ([] if expires_at is None else [expires_at]), default=None)


def lived_too_long(max_duration: int | None) -> Failure:
    """The reason for a cancel by ``max_duration``."""
    span = "" if max_duration is None else f" of {span_text(max_duration)}"
    return Failure(f"lived longer than its max_duration{span}", TOO_LONG)


def check_deadlines(life: TaskLifetime, now: int) -> DeadlineVerdict:
    """Check a task's deadlines at this moment."""
    if life.state >= FIRST_TERMINAL:
        return DeadlineVerdict(None, None)
    if life.expires_at is not None and life.expires_at <= now:
        return DeadlineVerdict(lived_too_long(life.max_duration), None)
    if life.max_delay is None:
        return DeadlineVerdict(None, life.expires_at)
    since = _since(life, now)
    if since is not None and since + life.max_delay <= now:
        what = "did not start" if life.started_at is None else "got no further"
        return DeadlineVerdict(Failure(f"{what} within its max_delay of {span_text(life.max_delay)}", TOO_SLOW), None)
    # What waits may be ready in a moment, and is judged again then.
    check_at = (now if since is None else since) + life.max_delay
    return DeadlineVerdict(None, check_at if life.expires_at is None else min(check_at, life.expires_at))


def _since(life: TaskLifetime, now: int) -> int | None:
    """Since when the task could make progress and did not.

    Later than ``now`` if it sleeps; None if it waits for something without a known time.
    """
    if life.state == WAITING or (life.run_at >= FOREVER and life.state < CLAIMED):
        return None
    if life.state >= CLAIMED:
        begun = life.started_at if life.started_at is not None else life.claimed_at
    else:
        begun = max(life.run_at, life.ready_at or 0)
        if begun > now:
            return begun
    return max(begun or 0, life.last_sign or 0)

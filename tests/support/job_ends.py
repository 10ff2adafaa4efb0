"""Waits for what an executor says of jobs."""

from __future__ import annotations

from scheduler.executors.ports import Executor, Seen
from support.fleet import until

PATIENCE = 60.0  # seconds: the machine may be busy


def seen(executor: Executor, name: str) -> Seen | None:
    """What it says of this job now."""
    return next((one for one in executor.observe() if one.name == name), None)


def over(executor: Executor, name: str) -> Seen:
    """What it says of this job once it is over."""
    found: list[Seen] = []

    def look() -> bool:
        one = seen(executor, name)
        if one is not None and one.phase.over:
            found.append(one)
        return bool(found)

    until(look, PATIENCE)
    return found[0]


def end_all(executor: Executor) -> None:
    """Cancel all its jobs, and wait until they are over."""
    executor.cancel([one.handle for one in executor.observe()], 0.0)
    until(lambda: all(one.phase.over for one in executor.observe()), PATIENCE)

"""Processes and engines that should not be there any more."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "SCHEDD_TEST_MARK"


def marked(value: str) -> list[str]:
    """Living processes, but this one, that were started with this mark in their environment: pid and command line."""
    wanted = f"{MARK}={value}".encode()
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{place.name} {command[:200]}")
        except OSError:
            continue  # gone, or another user's
    return found


def none_left(value: str, timeout: float = 10.0) -> None:
    """Wait until none is left. Raises AssertionError that names those there are."""
    deadline = time.monotonic() + timeout
    while left := marked(value):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)


@contextmanager
def stopping_engines() -> Iterator[None]:
    """Stop every engine that the test started and did not stop, as when it failed: such an engine would claim the tasks
    of later tests in the same database."""
    from scheduler import Scheduler

    started: weakref.WeakSet[Scheduler] = weakref.WeakSet()
    start = Scheduler.start

    def noted(jobs: Scheduler) -> None:
        started.add(jobs)
        start(jobs)

    Scheduler.start = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Scheduler.start = start  # type: ignore[method-assign]
        for jobs in list(started):
            if jobs.is_running():
                jobs.stop_now()
                jobs.close()

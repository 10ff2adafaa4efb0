"""``with jobs:`` leaves nothing open, and a later use opens what it needs."""

from __future__ import annotations

import os
import time

import pytest

from scheduler import ConfigError, Context, Scheduler, Task, TaskState, task
from support.databases import Database


@task
def double(ctx: Context, number: int) -> int:
    return 2 * number


class Isolated(Task, isolation="process"):
    def run(self, ctx: Context) -> None: ...


def descriptors() -> set[tuple[str, str]]:
    """What this process has open: files, sockets and pipes."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            # An earlier test's file may be deleted meanwhile: it is the same one.
            found.add((name, os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)")))
        except OSError:
            pass  # the listing's own
    return found


def nothing_left_since(before: set[tuple[str, str]]) -> None:
    """Wait until nothing more is open: the notifier's thread closes its connection when it ends, a moment later."""
    deadline = time.monotonic() + 10
    while left := descriptors() - before:
        assert time.monotonic() < deadline, f"left open: {left}"
        time.sleep(0.01)


def test_the_block_closes_what_it_and_the_program_before_it_opened(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(double)
    before = descriptors()
    early = jobs.task(double, number=1).schedule()  # notifies other processes, by a notifier of the caller's
    with jobs:
        late = jobs.task(double, number=2).schedule()
        assert [jobs.result(early, timeout=10), jobs.result(late, timeout=10)] == [2, 4]
        assert descriptors() - before
    nothing_left_since(before)


def test_a_later_use_opens_the_scheduler_again(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(double)
    with jobs:
        first = jobs.task(double, number=1).schedule()
        assert jobs.result(first, timeout=10) == 2
    before = descriptors()
    assert jobs.get_task_status(first) is TaskState.SUCCESS
    second = jobs.task(double, number=2).schedule()
    with jobs:
        assert jobs.result(second, timeout=10) == 4
    nothing_left_since(before)


def test_the_block_closes_after_an_error_too(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(double)
    before = descriptors()
    jobs.task(double, number=1).schedule()
    try:
        with jobs:
            raise LookupError("of the program")
    except LookupError:
        pass
    nothing_left_since(before)


def test_a_type_that_cannot_run_here_is_not_kept(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.model.registry.LINUX", False)
    with Scheduler(database.url) as jobs:
        with pytest.raises(ConfigError, match="kind 'Isolated'"):
            jobs.register(Isolated)
        jobs.register(double)  # nor is the one after it refused
        assert [kind.name for kind in jobs.registry] == ["double"]

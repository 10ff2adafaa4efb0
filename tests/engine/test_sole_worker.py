"""A sole worker sends no notifications, from its first moment on. It notices a worker that joins later."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler import Context, Scheduler, task
from scheduler.engine import engine as loop
from scheduler.engine.engine import YIELD_S
from scheduler.engine.maintenance import periodic as periodic
from scheduler.engine.maintenance.registration import COMMANDS_EVERY_S
from scheduler.store import reaper
from scheduler.store.db.notifier import NullNotifier
from scheduler.testing import FakeClock, engine_of
from support.databases import Database
from support.fleet import Fleet, ends, run_claimed, step


@task
def plain(ctx: Context, n: int = 0) -> None: ...


class ExpensiveNotifier(NullNotifier):
    """Costs a transaction, as PostgreSQL's does."""

    expensive = True

    def __init__(self) -> None:
        self.sent = 0

    def notify(self) -> None:
        self.sent += 1


def with_notifier(jobs: Scheduler) -> ExpensiveNotifier:
    notifier = ExpensiveNotifier()
    engine_of(jobs).registration.notifier = notifier  # type: ignore[assignment]
    return notifier


def notifications_for_a_child(jobs: Scheduler, notifier: ExpensiveNotifier) -> int:
    """How often it notifies in cycles that make a task ready."""
    parent = jobs.task(plain).schedule()
    child = jobs.task(plain).depend_on(parent).schedule()
    jobs.task(plain).after(60).depend_on(parent).schedule()  # which it does not claim itself with that cycle
    before = notifier.sent
    for _ in range(3):
        step(jobs)
        run_claimed(jobs)
    assert ends(jobs, child) == ["succeeded"]
    return notifier.sent - before


def test_a_sole_worker_sends_no_notification(fleet: Fleet) -> None:
    jobs = fleet.worker(plain)
    notifier = with_notifier(jobs)
    step(jobs)
    assert engine_of(jobs).lease.is_only_worker()
    assert notifications_for_a_child(jobs, notifier) == 0


def test_a_worker_that_joins_notifies_and_is_notified(fleet: Fleet, clock: FakeClock) -> None:
    first, second = fleet.worker(plain), fleet.worker(plain)
    notifier, its = with_notifier(first), with_notifier(second)
    step(first)
    step(second)
    assert its.sent == 1
    assert not engine_of(second).lease.is_only_worker()
    clock.advance(COMMANDS_EVERY_S)
    step(first)  # as that notification makes it
    engine_of(first).step()
    assert not engine_of(first).lease.is_only_worker()
    assert notifications_for_a_child(first, notifier) > 0


def test_a_worker_that_joins_notifies_though_its_first_look_fails(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = fleet.worker(plain)
    notifier = with_notifier(jobs)

    def fails(*args: object) -> None:
        raise RuntimeError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(reaper, "find_expired", fails)
        with pytest.raises(RuntimeError, match="unforeseen"):
            engine_of(jobs).step()
    assert notifier.sent == 1


def test_it_is_alone_again_when_the_other_has_gone(fleet: Fleet, clock: FakeClock) -> None:
    first, second = fleet.worker(plain), fleet.worker(plain)
    step(second)
    step(first)
    assert not engine_of(first).lease.is_only_worker()
    second.stop()
    clock.advance(periodic.REAP_EVERY)
    engine_of(first).step()
    assert engine_of(first).lease.is_only_worker()


def test_the_loop_gives_way_to_what_it_has_handed_out(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep the interpreter for what comes after a cycle, while the slot that it woke waits. Not where it
    has recorded something, too: the links of a chain would wait for it."""
    slept: list[float] = []
    gave = threading.Event()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        gave.set()

    @task
    def link(ctx: Context, n: int) -> None:
        assert n or gave.wait(30)

    monkeypatch.setattr(loop, "time", SimpleNamespace(sleep=sleep))
    jobs: Any = Scheduler(database.url)
    jobs.register(link)
    with jobs:
        with jobs.batch() as batch:
            last = batch.task(link, 0)
            for n in range(1, 4):
                last = batch.task(link, n).depend_on(last)
        ended = jobs.wait(batch.ids, timeout=30)
    assert {info.state for info in ended.values()} == {"success"}
    assert slept == [YIELD_S]

"""Notifications on PostgreSQL: a NOTIFY takes a lock that all commits share, so many become few, and follow commits."""

from __future__ import annotations

import functools
import gc
import queue
import threading
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from scheduler import Context, Scheduler, task
from scheduler.ports import SystemClock, spawn_thread
from scheduler.store.db import notifier as notifiers
from scheduler.store.db.database import Database as Store
from support.databases import Database

APART = 0.2


def plain(url: str) -> str:
    """The URL of a database as its driver takes it."""
    return url.replace("postgresql+psycopg:", "postgresql:")


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_many_notifications_become_few_and_the_last_arrives(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "_DEBOUNCE", APART)
    store = Store(database.url, SystemClock())
    notifier = notifiers.PgNotifier(store)
    with psycopg.connect(plain(database.url), autocommit=True) as ear:
        ear.execute(f"LISTEN {notifiers.CHANNEL}")
        begun = time.monotonic()
        for _ in range(1000):
            notifier.notify()
        took = time.monotonic() - begun
        received = sum(1 for _ in ear.notifies(timeout=20, stop_after=2))
        assert received == 2, "one at once, and one for those that followed"
        received += sum(1 for _ in ear.notifies(timeout=2 * APART))
        assert received <= 2 + took / APART
    notifier.close()
    store.dispose()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_one_thread_notifies_for_all_that_asked_too_soon(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when no more requests come, or with the notifier. A later request starts another one."""
    monkeypatch.setattr(notifiers, "_DEBOUNCE", 0.2)
    monkeypatch.setattr(notifiers, "_LINGER", 2)
    made: list[threading.Thread] = []

    def spawn(target: Callable[[], None], name: str) -> threading.Thread:
        made.append(spawn_thread(target, name))
        return made[-1]

    store = Store(database.url, SystemClock())
    notifier = notifiers.PgNotifier(store, spawn)
    with psycopg.connect(plain(database.url), autocommit=True) as ear:
        ear.execute(f"LISTEN {notifiers.CHANNEL}")
        for _ in range(3):
            notifier._last = time.monotonic()
            for _ in range(10):
                notifier.notify()  # too soon
            assert sum(1 for _ in ear.notifies(timeout=20, stop_after=1)) == 1
            made[-1].join(20)
            assert not made[-1].is_alive()
    assert len(made) == 3
    monkeypatch.setattr(notifiers, "_DEBOUNCE", 3600.0)
    notifier.notify()
    notifier.notify()
    assert made[3].is_alive()
    notifier.close()
    made[3].join(20)
    assert not made[3].is_alive()
    notifier.notify()
    assert len(made) == 4
    store.dispose()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_notifications_of_a_stream_go_further_apart(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(notifiers, "time", SimpleNamespace(monotonic=lambda: now[0] / 1000))
    notifier = notifiers.PgNotifier(Store(database.url, SystemClock()))

    def spans(every: int, until: int) -> list[int]:
        """Milliseconds between two that statements carry, with a statement in so many milliseconds."""
        sent = []
        for _ in range(0, until, every):
            now[0] += every
            if notifier.carried() is not None:
                sent.append(now[0])
        return [after - before for before, after in pairwise(sent)]

    found = spans(1, 200)
    assert found[0] in (3, 4)
    assert {*found[-6:]} <= {12, 13}
    now[0] += 1000
    assert spans(7, 196) == [7] * 27, "none of them waits, now that the stream has ended"


def expect_notifications(ear: psycopg.Connection[Any], count: int) -> None:
    """So many notifications come, and no more."""
    if count:
        assert sum(1 for _ in ear.notifies(timeout=20, stop_after=count)) == count
    assert sum(1 for _ in ear.notifies(timeout=0.2)) == 0


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("thread", ["there is one", "none can be started"])
def test_no_notification_is_pending_when_it_closes(
    database: Database, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    """Other workers are notified of what an engine hands back with its last cycle, too."""
    monkeypatch.setattr(notifiers, "_DEBOUNCE", 3600.0)

    def spawn(target: Callable[[], None], name: str) -> threading.Thread:
        if thread != "there is one":
            raise RuntimeError("can't start new thread")
        return spawn_thread(target, name)

    store = Store(database.url, SystemClock())
    notifier = notifiers.PgNotifier(store, spawn)
    with psycopg.connect(plain(database.url), autocommit=True) as ear:
        ear.execute(f"LISTEN {notifiers.CHANNEL}")
        notifier.notify()
        notifier.notify()  # too soon
        expect_notifications(ear, 1 if thread == "there is one" else 2)
        notifier.close()
        notifier.notify()
        notifier.close()
        expect_notifications(ear, 1 if thread == "there is one" else 0)
    store.dispose()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_notifier_wakes_the_others_and_not_itself(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifiers, "_DEBOUNCE", 0.0)
    store = Store(database.url, SystemClock())
    received: queue.Queue[str] = queue.Queue()
    pair = {name: notifiers.PgNotifier(store) for name in ("one", "two")}
    for name, notifier in pair.items():
        notifier.listen(name, functools.partial(received.put, name))
    assert {received.get(timeout=20), received.get(timeout=20)} == {"one", "two"}, "what was sent before they listened"
    for sender, other in (("one", "two"), ("two", "one"), ("one", "two")):
        pair[sender].notify()
        assert received.get(timeout=20) == other
    with psycopg.connect(plain(database.url), autocommit=True) as caller:
        caller.execute(f"NOTIFY {notifiers.CHANNEL}")  # as notify_after_commit does
    assert {received.get(timeout=20), received.get(timeout=20)} == {"one", "two"}
    assert received.empty()
    for notifier in pair.values():
        notifier.close()
    store.dispose()


@task
def work(ctx: Context) -> None: ...


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_single_task_is_there_when_its_notification_comes(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(work)
    with psycopg.connect(plain(database.url), autocommit=True) as ear:
        ear.execute(f"LISTEN {notifiers.CHANNEL}")
        stored = jobs.task(work).schedule()
        assert sum(1 for _ in ear.notifies(timeout=20, stop_after=1)) == 1
        assert ear.execute("SELECT id FROM schedd_tasks").fetchall() == [(stored,)]
    jobs.close()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_failed_notification_keeps_no_task_from_being_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of notifications may be full, say; here the name of the sender is too long."""
    jobs = Scheduler(database.url)
    jobs.register(work)
    jobs.task(work).schedule()
    assert isinstance(jobs._notifier, notifiers.PgNotifier)
    monkeypatch.setattr(notifiers, "_DEBOUNCE", 0.0)
    monkeypatch.setattr(jobs._notifier, "_own", "x" * 9000)
    stored = jobs.task(work).schedule()
    assert jobs.list_tasks()[0].id == stored
    monkeypatch.setattr(jobs._notifier, "_own", "")
    with psycopg.connect(plain(database.url), autocommit=True) as ear:
        ear.execute(f"LISTEN {notifiers.CHANNEL}")
        jobs.task(work).schedule()
        assert sum(1 for _ in ear.notifies(timeout=20, stop_after=1)) == 1, "its connection still serves"
    jobs.close()


def test_notifications_can_be_left_out(database: Database) -> None:
    jobs = Scheduler(database.url, notify=False)
    jobs.register(work)
    jobs.task(work).schedule()
    assert isinstance(jobs._notifier, notifiers.NullNotifier)
    jobs.close()


def test_a_notifier_that_its_program_drops_leaves_no_socket_open(tmp_path: Path) -> None:
    """As a program does that schedules a task and lets go of its Scheduler without close()."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notifier = notifiers.SocketNotifier(tmp_path)
        notifier.notify()
        del notifier
        gc.collect()
    assert [str(warning.message) for warning in caught] == []

"""Notifications on PostgreSQL: a NOTIFY takes a lock that all commits share, so many become few, and follow commits."""

from __future__ import annotations

import errno
import functools
import gc
import queue
import subprocess
import sys
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
from scheduler.store.db.notified import Notified
from scheduler.system import processes
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


class Machine:
    """Processes of one machine that use one store, by a clock that is set: milliseconds."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self._store = store
        monkeypatch.setattr(notifiers, "time", SimpleNamespace(monotonic=lambda: self.now / 1000))
        monkeypatch.setattr(notifiers, "_name", lambda database: database.url.database)

    def process(self) -> notifiers.PgNotifier:
        def none(*_: Any) -> threading.Thread:
            raise RuntimeError("can't start new thread")

        made = notifiers.PgNotifier(self._store, none)
        made._notified._page[:] = bytes(len(made._notified._page))  # another test's
        return made

    def carry(self, *processes: notifiers.PgNotifier, every: int, until: int) -> list[int]:
        """When statements carry one, if each process stores a task in so many milliseconds, one after the other."""
        sent = []
        for turn in range(0, until, every):
            self.now += every
            notifier = processes[turn // every % len(processes)]
            if notifier.carried() is not None:
                sent.append(self.now)
            else:
                notifier._asked += 1
                notifier._asked_at = self.now / 1000
        return sent


@pytest.fixture
def machine(database: Database, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(Store(database.url, SystemClock()), monkeypatch)


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_one_notification_serves_the_streams_of_all_processes(machine: Machine) -> None:
    processes = [machine.process() for _ in range(4)]
    sent = machine.carry(*processes, every=1, until=600)
    assert {after - before for before, after in pairwise(sent[-10:])} <= {12, 13}


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_who_stores_a_task_now_and_then_waits_for_no_stream_of_others(machine: Machine) -> None:
    stream, rare = machine.process(), machine.process()
    for _ in range(5):
        machine.carry(stream, every=1, until=50)
        assert rare.carried() is not None
    machine.carry(rare, every=1, until=50)  # once it streams, too, it does until it pauses
    machine.carry(stream, every=1, until=50)
    assert rare.carried() is not None


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_what_another_process_sent_before_a_task_does_not_tell_of_it(machine: Machine) -> None:
    ours, theirs = machine.process(), machine.process()
    machine.carry(ours, theirs, every=1, until=200)
    for before in (True, False):
        machine.now += 13
        if before:
            assert theirs.carried() is not None
        machine.now += 1
        ours._asked, ours._asked_at = ours._asked + 1, machine.now / 1000
        if not before:
            machine.now += 1
            theirs._begin(machine.now / 1000)
        machine.now += 1
        ours._hear_others(machine.now / 1000)
        assert (ours._told < ours._asked) is before


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_worker_that_its_own_notification_does_not_wake_serves_no_other(machine: Machine) -> None:
    worker, caller = machine.process(), machine.process()
    worker._own = "worker"
    machine.carry(worker, every=1, until=200)
    assert caller._notified.last() == float("-inf")
    machine.carry(caller, every=1, until=200)
    assert worker._notified.last() == caller._last


PROGRAM = """
import sys, time
from scheduler import Context, Scheduler, task

@task
def work(ctx: Context) -> None: ...

jobs = Scheduler(sys.argv[1])
jobs.register(work)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(300):
    jobs.task(work).schedule()
print("stored", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_processes_that_stream_tell_of_each_task(database: Database) -> None:
    """None of them ends meanwhile. By the last notification that comes, all is stored."""
    jobs = Scheduler(database.url)
    jobs.database.open()
    jobs.close()
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, database.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    with psycopg.connect(plain(database.url), autocommit=True) as ear:
        ear.execute(f"LISTEN {notifiers.CHANNEL}")
        for program in programs:
            assert program.stdin is not None
            print(file=program.stdin, flush=True)
        received, seen = 0, 0
        while seen < 1200:
            coming = sum(1 for _ in ear.notifies(timeout=20, stop_after=1))
            assert coming, f"{seen} tasks told of, by {received} notifications"
            received += coming
            ((seen,),) = ear.execute("SELECT count(*) FROM schedd_tasks").fetchall()
    assert received < 1200
    for program in programs:
        assert program.communicate("\n", timeout=60)[0] == "stored\n"
        assert program.returncode == 0


@pytest.mark.posix
def test_moments_of_two_stores_are_told_apart() -> None:
    one, same, other, alone = (Notified(name) for name in ("a store", "a store", "another one", None))
    one.tell(12.5)
    assert same.last() == 12.5
    assert other.last() == alone.last() == float("-inf")


@pytest.mark.posix
@pytest.mark.parametrize("found", ["a directory", "another user's", "a link", "no room"])
def test_a_page_that_cannot_be_shared_is_a_processs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr("scheduler.system.files.of_this_run", lambda: tmp_path)
    if found == "another user's":
        user = 4242
        monkeypatch.setattr(processes, "user_id", lambda: user)
    page = tmp_path / f"schedd-{processes.user_id()}.notified"
    if found == "a directory":
        page.mkdir()
    elif found == "a link":
        (tmp_path / "target").touch()
        page.symlink_to(tmp_path / "target")
    elif found == "no room":

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        monkeypatch.setattr("scheduler.system.files.allocate", full)
    one, same = Notified("a store"), Notified("a store")
    one.tell(1.0)
    assert (one.last(), same.last()) == (1.0, float("-inf"))


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

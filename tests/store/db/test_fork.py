"""A process that forks after it has used the database: no connection crosses."""

from __future__ import annotations

import os
import threading
import time

import pytest

from scheduler import Context, Scheduler, Task
from support.databases import Database


class Quick(Task, kind="quick"):
    def run(self, ctx: Context) -> None: ...


@pytest.mark.posix
def test_a_forked_child_uses_connections_of_its_own(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(Quick)
    jobs.task(Quick()).schedule()
    engine = jobs.database.open()
    with jobs.database.read() as tx:  # one is in use, and one in the pool
        tx.connection.exec_driver_sql("SELECT 1")
        jobs.task(Quick()).schedule()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                made = [jobs.task(Quick()).schedule() for _ in range(50)]
                assert jobs.database.open() is not engine
                jobs.close()
                os.write(write, f"{len(made)}".encode())
            except BaseException as error:
                os.write(write, repr(error).encode()[:2000])
            finally:
                os._exit(0)
        os.close(write)
        made = [jobs.task(Quick()).schedule() for _ in range(50)]
        printed = os.read(read, 4000).decode()
        os.close(read)
        os.waitpid(child, 0)
        assert printed == "50"
        tx.connection.exec_driver_sql("SELECT 1")
    assert len(set(made)) == 50
    assert jobs.database.open() is engine
    assert len(jobs.list_tasks(limit=1000)) == 102
    jobs.close()


@pytest.mark.posix
@pytest.mark.parametrize("early", [True, False], ids=["used before", "used first after"])
def test_what_a_child_stores_after_its_parent_has_closed_is_not_lost(database: Database, early: bool) -> None:
    """The parent's last connection would remove the log that the child writes to."""
    jobs = Scheduler(database.url)
    jobs.register(Quick)
    jobs.task(Quick()).schedule()
    (told, tell), (heard, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        try:
            if early:
                jobs.task(Quick()).schedule()
            os.write(answer, b"!")
            os.read(told, 1)
            for _ in range(3):
                jobs.task(Quick()).schedule()
        finally:
            os._exit(0)  # as if it were killed
    assert os.read(heard, 1) == b"!"
    jobs.close()
    other = Scheduler(database.url)  # opens the file anew
    before = len(other.list_tasks())
    os.close(tell)
    os.waitpid(child, 0)
    for one in (told, heard, answer):
        os.close(one)
    assert (before, len(other.list_tasks())) == (1 + early, 4 + early)
    other.close()
    with Scheduler(database.url) as last:
        assert len(last.list_tasks()) == 4 + early


# SQLite itself does not survive a fork in the middle of a writing transaction.
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_fork_while_another_thread_writes_leaves_the_child_free(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(Quick)
    jobs.task(Quick()).schedule()
    inside, go = threading.Event(), threading.Event()

    def write_for_long() -> None:
        with jobs.database.write():
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=write_for_long)
    thread.start()
    assert inside.wait(10)
    child = os.fork()
    if child == 0:
        begun = time.monotonic()
        try:
            jobs.task(Quick()).schedule()
        finally:
            os._exit(0 if time.monotonic() - begun < 30 else 1)
    threading.Event().wait(0.2)
    go.set()
    thread.join(10)
    assert os.waitpid(child, 0)[1] == 0
    assert len(jobs.list_tasks()) == 2
    jobs.close()


def test_a_forked_child_that_stops_leaves_its_parents_engine_alone(database: Database) -> None:
    # Without a fork, since SQLite's own locks do not survive one while the engine's thread is in the middle of a call.
    jobs = Scheduler(database.url)
    jobs.register(Quick)
    jobs.start()
    engine = jobs.engine
    assert engine.wait_ready(10)
    jobs._on_fork()
    assert not jobs.is_running()
    assert jobs.stop() == []
    with jobs.database.read() as tx:
        assert tx.connection.exec_driver_sql("SELECT state FROM schedd_workers").scalar_one() == 0
    assert engine.is_running()
    engine.stop(hand_back_running=False)
    jobs.close()

"""A failover to a standby: everything follows it, and nothing of the lost past counts there (PostgreSQL)."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from faults.harness import until
from scheduler import ConfigError, Scheduler, StoreUnavailableError, UnknownTaskError, task
from scheduler.model.spec import TaskId
from scheduler.store.admin import doctor as checks
from scheduler.store.admin.surroundings import check_surroundings
from scheduler.store.db.engines import server_arguments
from scheduler.store.db.identity import STEP
from scheduler.store.db.urls import parse_url
from support.replication import Pair

SOON = 5.0  # seconds
PATIENCE = 60.0  # seconds that a busy machine may take where no promise is measured


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


@task
def echo(ctx: Any, word: str) -> str:
    return word


def listens(server: Any) -> bool:
    """Whether a notifier listens there."""
    return bool(server.sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'schedd listener'"))


def stored(jobs: Scheduler, word: str, kind: Any = echo) -> TaskId:
    """Schedule as a careful caller does: again, while the database is away."""

    def attempt() -> TaskId | None:
        try:
            return jobs.task(kind, word).schedule()
        except StoreUnavailableError:
            return None

    found = until(attempt, "a task can be stored", PATIENCE, 0.05)
    assert found is not None
    return found


@pytest.mark.alone
@pytest.mark.case(68, pure=True)
@pytest.mark.parametrize(
    ("spelling", "change"),
    [("lists", "fail over"), ("pairs", "demotion that keeps sessions")],
)
def test_listeners_and_all_else_follow_the_server_that_takes_writes(pair: Pair, spelling: str, change: str) -> None:
    jobs, caller = Scheduler(pair.url(spelling), lease=30), Scheduler(pair.url(spelling))
    for one in jobs, caller:
        one.register(echo)
    try:
        jobs.start()
        until(lambda: listens(pair.primary), "a notifier listens on the primary")
        assert caller.result(stored(caller, "before"), timeout=PATIENCE) == "before"
        pair.caught_up()
        if change == "fail over":
            pair.fail_over()
        else:
            pair.promote()
            pair.demote()
        begun = time.monotonic()
        assert caller.result(stored(caller, "after"), timeout=SOON) == "after"
        until(lambda: listens(pair.standby), "the notifier follows", SOON)
        assert time.monotonic() < begun + SOON
        assert pair.standby.sql("SELECT count(*) FROM schedd_tasks WHERE state = 6", "jobs")[0][0] == 2
        if change == "fail over":  # and then the old primary comes back, the first of the hosts
            pair.primary.start()
            caller.database.distrust()  # so that a new connection is made
            with pytest.raises(StoreUnavailableError, match="was the primary before timeline 00000002"):
                caller.task(echo, "to the past").schedule()
            assert pair.primary.sql("SELECT count(*) FROM schedd_tasks", "jobs")[0][0] == 1
    finally:
        caller.close()
        jobs.close()


@pytest.mark.alone
@pytest.mark.case(67, pure=True)
def test_what_a_failover_loses_is_never_taken_for_what_comes_after_it(pair: Pair) -> None:
    old_may_end, new_may_end = threading.Event(), threading.Event()
    begun: list[tuple[int, str, str]] = []
    lost: list[str] = []

    @task
    def hold(ctx: Any, word: str) -> str:
        begun.append((ctx.id, word, ctx.idempotency_key))
        (old_may_end if word.startswith("old") else new_may_end).wait(30)
        try:
            ctx.check_cancelled()
        except BaseException as error:
            lost.append(type(error).__name__)
            raise
        return word

    @task
    def late(ctx: Any) -> str:
        begun.append((ctx.id, "late", ctx.idempotency_key))
        (new_may_end if old_may_end.is_set() else old_may_end).wait(30)
        return "new" if new_may_end.is_set() else "old"

    jobs, caller = (Scheduler(pair.url(), lease=3, pools={"medium": (20, 0)}) for _ in range(2))
    for one in jobs, caller:
        for kind in echo, hold:
            one.register(kind)
    caller.register(late)
    try:
        jobs.start()
        assert caller.result(stored(caller, "before"), timeout=PATIENCE) == "before"
        survivor = caller.task(late).schedule()  # no worker serves its kind yet
        worker = jobs.engine.worker
        pair.cut()
        jobs.register(late)
        with caller.batch() as batch:
            for number in range(40):  # more than a sequence is ahead in what was replicated
                batch.task(echo, f"lost {number}")
        held = [caller.task(hold, f"old {number}").schedule() for number in range(4)]
        until(lambda: len(begun) == 5, "the handlers have begun")
        pair.fail_over()

        until(lambda: jobs.engine.worker not in (0, worker), "the daemon begins anew", SOON)
        assert jobs.engine.worker > STEP
        news = [stored(caller, f"new {number}", hold) for number in range(4)]
        assert min(news) > STEP
        until(lambda: len(begun) == 9, "the new ones have begun")
        keys = [key for _, _, key in begun]
        assert len(set(keys)) == 9
        assert {key for number, _, key in begun if number in news} == {f"task-e2-{number}" for number in news}
        old_may_end.set()
        until(lambda: len(lost) == 4, "the held handlers learn that their leases are lost")
        assert set(lost) == {"LeaseLost"}
        until(lambda: len(begun) == 10, "what survived runs once more")
        assert begun[-1] == (survivor, "late", f"task-{survivor}")
        new_may_end.set()
        assert [caller.result(number, timeout=PATIENCE) for number in news] == [f"new {number}" for number in range(4)]
        assert caller.result(survivor, timeout=PATIENCE) == "new"
        for number in held:
            with pytest.raises(UnknownTaskError, match="is gone: a failover or a restore"):
                caller.result(number, timeout=0)
        with pytest.raises(UnknownTaskError, match="is gone"):  # as schedctl asks, by the number alone
            caller.get_task(int(held[0]))
        rows = pair.standby.sql("SELECT count(*) FROM schedd_tasks WHERE result LIKE '%old%'", "jobs")
        assert rows == [(0,)]
    finally:
        old_may_end.set()
        new_may_end.set()
        caller.close()
        jobs.close()


@pytest.mark.case(68, pure=True)
@pytest.mark.parametrize(
    ("hosts", "fits"),
    [
        ("host=a,b&port=1,2", True),
        ("host=a:1&host=b:2&target_session_attrs=read-write", True),
        ("host=a,b,c&port=1,2", False),
    ],
)
def test_a_url_names_several_hosts_in_both_spellings(hosts: str, fits: bool) -> None:
    url = f"postgresql+psycopg://me@/jobs?{hosts}"
    if not fits:
        with pytest.raises(ConfigError, match="host=a,b&port=1,2"):
            parse_url(url)
        return
    found = server_arguments(parse_url(url), "schedd")
    assert (found["host"], found["port"], found["target_session_attrs"]) == ("a,b", "1,2", "read-write")


@pytest.mark.case(67)
def test_an_id_never_names_another_task_than_its_caller_was_given(store_url: str) -> None:
    """Another one has got the id here by hand: behind a pooler a failover may be unseen for a moment."""
    with Scheduler(store_url) as jobs:
        jobs.register(echo)
        given = jobs.task(echo, "mine").schedule()
        with jobs.batch() as batch:
            batch.task(echo, "mine, too")
        ids = [given, *batch.ids]
        assert pickle.loads(pickle.dumps(ids[0])).created_at == given.created_at
        assert set(jobs.wait(ids, timeout=PATIENCE)) == set(ids)
        if jobs.database.dialect.name == "sqlite":
            return  # whose file is not mistaken for another one: see test_replaced_file.py
        with jobs.database.write() as tx:
            tx.connection.exec_driver_sql("UPDATE schedd_tasks SET created_at = created_at + 1")
        for task_id in ids:
            for look in jobs.get_task, jobs.wait, jobs.result:
                with pytest.raises(UnknownTaskError, match="another task has its id"):
                    look(task_id)
            assert jobs.get_task(int(task_id)).id == task_id  # a caller that has only the number


@pytest.mark.case(67, pure=True)
def test_doctor_warns_of_an_asynchronous_standby(pair: Pair) -> None:
    def found() -> checks.DoctorFinding:
        with jobs.database.read() as tx:
            every = check_surroundings(jobs.database, tx, "1")
        return next(finding for finding in every if finding.check == "standbys")

    with closing(Scheduler(pair.url())) as jobs:
        note = found()
        assert note.level == checks.NOTE
        assert "walreceiver follows asynchronously" in note.text
        assert "synchronous_standby_names" in note.text
        pair.primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        pair.primary.sql("SELECT pg_reload_conf()")
        until(lambda: found().level == checks.OK, "the standby is synchronous")


@pytest.mark.case(67, pure=True)
def test_a_commit_whose_wait_for_the_standby_is_cancelled_is_not_acknowledged(pair: Pair) -> None:
    """PostgreSQL takes it for done, with a warning: a cancel, a statement_timeout or a cut connection does that."""
    pair.primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
    pair.primary.sql("SELECT pg_reload_conf()")
    synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
    until(lambda: pair.primary.sql(synchronous), "the standby is synchronous")
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    def schedule() -> None:
        caller.task(echo, "alone").schedule()

    def store_batch() -> None:
        with caller.batch() as batch:
            for number in range(3):
                batch.task(echo, f"{number} of a batch")

    with closing(Scheduler(pair.url())) as caller, ThreadPoolExecutor(1) as threads:
        caller.register(echo)
        schedule()
        pair.standby.stop("immediate")
        for store in schedule, store_batch:
            call = threads.submit(store)
            until(lambda: pair.primary.sql(cancel), "the commit waits for the standby", PATIENCE)
            with pytest.raises(StoreUnavailableError, match="the wait for the standby was cancelled"):
                call.result(PATIENCE)

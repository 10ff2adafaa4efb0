"""Pausing a queue, a kind or everything: what is paused is not claimed by any worker, and what runs goes on."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import ConfigError
from scheduler.model.pauses import Pauses
from scheduler.store.read import explain
from scheduler.store.read.status import status
from scheduler.testing import drain, engine_of
from support.bench import Bench, Soft, Step


def why(bench: Bench, task_id: int) -> str:
    with bench.jobs.database.read() as tx:
        return explain.why(tx, task_id) or ""


def test_a_paused_queue_is_not_claimed(bench: Bench) -> None:
    assert bench.jobs.pause(queue="mail", reason="provider down", by="alice")
    held = bench.jobs.task(Step("mail")).queue("mail").schedule()
    bench.step("other").schedule()
    assert bench.drain() == ["other"]
    assert why(bench, held).endswith("by alice: provider down; `schedctl resume --queue mail` ends that")
    later = bench.jobs.task(Step("later")).queue("mail").after(60).schedule()
    assert "at present queue mail is paused" in why(bench, later)
    assert bench.jobs.resume(queue="mail")
    assert bench.drain() == ["mail"]
    assert bench.advance(60) == ["later"]


def test_a_paused_kind_is_not_claimed_whatever_its_queue_and_key(bench: Bench) -> None:
    bench.jobs.pause(kind="Soft")
    for queue in ("default", "mail"):
        bench.jobs.task(Soft(queue)).queue(queue).schedule()
    bench.step("x").schedule()
    assert bench.drain() == ["x"]
    bench.jobs.resume(kind="Soft")
    assert sorted(bench.drain()) == ["default", "mail"]


def test_everything_paused_and_what_stays_paused_after_it(bench: Bench) -> None:
    bench.jobs.pause(all=True)
    bench.jobs.pause(queue="mail")
    bench.step("x").schedule()
    bench.jobs.task(Step("mail")).queue("mail").schedule()
    assert bench.drain() == []
    assert [(p.scope, p.name) for p in bench.jobs.pauses()] == [("all", ""), ("queue", "mail")]
    bench.jobs.resume(all=True)
    assert bench.drain() == ["x"]
    bench.jobs.resume(queue="mail")
    assert bench.drain() == ["mail"]
    assert bench.jobs.pauses() == []


def test_the_whole_fleet_learns_of_it_within_a_second(bench: Bench) -> None:
    other = bench.worker()
    drain(bench.jobs)
    drain(other)
    bench.jobs.pause(queue="default")
    bench.step("x").schedule()
    bench.clock.advance(1)
    drain(other)
    assert bench.script.ran == []
    bench.jobs.resume(queue="default")
    bench.clock.advance(1)
    drain(other)
    assert bench.script.ran == ["x"]


def test_children_that_become_ready_in_a_paused_queue_wait(bench: Bench) -> None:
    bench.jobs.pause(queue="mail")
    parent = bench.step("parent").schedule()
    child = bench.jobs.task(Step("child")).queue("mail").depend_on([parent]).schedule()
    bench.step("sibling", parent).schedule()
    assert bench.drain() == ["parent", "sibling"]
    assert bench.state(child) == "scheduled"
    bench.jobs.resume(queue="mail")
    assert bench.drain() == ["child"]


def test_a_capped_kind_that_is_paused_while_it_runs_starts_no_more(bench: Bench) -> None:
    from scheduler import task

    ran = []

    @task(kind="Capped", max_concurrency=1)
    def capped(ctx: Any, number: int) -> None:
        ran.append(number)
        if number == 1:
            bench.jobs.pause(kind="Capped")

    bench.jobs.register(capped)
    for number in (1, 2, 3):
        bench.jobs.task(capped, number).schedule()
    bench.drain()
    assert ran == [1]
    bench.jobs.resume(kind="Capped")
    bench.drain()
    assert ran == [1, 2, 3]


def test_what_was_claimed_and_has_not_begun_goes_back_unused(bench: Bench) -> None:
    engine = engine_of(bench.jobs)
    engine.step()  # joins
    task = bench.step("x").schedule()
    engine.wake()
    engine.step()
    assert bench.state(task) == "claimed"
    bench.jobs.pause(all=True)
    engine.step()
    engine.step()
    assert bench.state(task) == "scheduled"
    assert bench.jobs.get_task(task).attempt == 0
    bench.jobs.resume(all=True)
    assert bench.drain() == ["x"]


def test_a_started_engine_stops_claiming_and_goes_on(bench: Bench) -> None:
    begun, go = threading.Event(), threading.Event()

    def runs(ctx: Any) -> None:
        begun.set()
        assert go.wait(30)

    bench.script.bodies["first"] = runs
    first = bench.step("first").schedule()
    bench.jobs.start()
    try:
        assert begun.wait(30)
        bench.jobs.pause(all=True)
        with bench.jobs.database.read() as tx:
            assert tx.connection.execute(sa.text("SELECT count(*) FROM schedd_pauses")).scalar_one() == 1
        second = bench.step("second").schedule()
        go.set()
        assert bench.jobs.wait(first, timeout=30)[first].state == "success"
        assert bench.state(second) == "scheduled"
        bench.jobs.resume(all=True)
        assert bench.jobs.wait(second, timeout=30)[second].state == "success"
    finally:
        go.set()
        bench.jobs.close()


def test_pausing_twice_and_resuming_what_is_not_paused(bench: Bench) -> None:
    jobs = bench.jobs
    assert jobs.pause(queue="mail", reason="first", by="alice")
    bench.clock.advance(10)
    assert not jobs.pause(queue="mail")
    assert not jobs.pause(queue="mail", reason="second", by="bob")
    (pause,) = jobs.pauses()
    assert (pause.by, pause.reason) == ("bob", "second")
    assert (bench.jobs.database.now() - round(pause.since.timestamp() * 1e6)) >= 10_000_000
    assert jobs.resume(queue="mail", by="carol")
    assert not jobs.resume(queue="mail")
    audited = [(e.action, e.subject, e.actor, e.reason) for e in reversed(jobs.audit())]
    assert audited == [
        ("pause", "queue mail", "alice", "first"),
        ("pause", "queue mail", "bob", "second"),
        ("resume", "queue mail", "carol", None),
    ]


def test_status_tells_what_waits_behind_a_pause(bench: Bench) -> None:
    bench.drain()
    bench.jobs.pause(queue="mail", reason="provider down")
    for name in "ab":
        bench.jobs.task(Step(name)).queue("mail").schedule()
    with bench.jobs.database.read() as tx:
        (found,) = status(tx).paused
    assert (found.pause.subject, found.pause.reason, found.due) == ("queue mail", "provider down", 2)


def test_many_lanes_and_one_of_them_paused(bench: Bench) -> None:
    """More lanes than one stretch of a scan: what was remembered of a lane does not outlive its pause."""
    names = [f"q{i}" for i in range(140)]
    for name in names:
        bench.jobs.task(Step(name)).queue(name).schedule()
        bench.jobs.task(Step(name)).queue(name).schedule()
    ran: list[str] = []

    def pauses(ctx: Any) -> None:
        if len(ran) == 0:
            ran.append(ctx.queue)
            for name in names:
                if name != ctx.queue:
                    bench.jobs.pause(queue=name)

    for name in names:
        bench.script.bodies[name] = pauses
    done = bench.drain()
    with bench.jobs.database.read() as tx:
        left = tx.connection.execute(
            sa.text("SELECT count(*) FROM schedd_tasks WHERE state BETWEEN 1 AND 3 AND queue <> :own"), {"own": ran[0]}
        ).scalar_one()
    assert left == 2 * 139 - (len(done) - done.count(ran[0]))
    before = len(done)
    assert bench.advance(5) == []
    for name in names:
        bench.jobs.resume(queue=name)
    assert before + len(bench.drain()) == 280


@pytest.mark.parametrize(
    "given", [{}, {"queue": "a", "kind": "B"}, {"queue": "a", "all": True}, {"queue": "no name"}, {"kind": ""}]
)
def test_bad_input(bench: Bench, given: dict[str, Any]) -> None:
    for verb in (bench.jobs.pause, bench.jobs.resume):
        with pytest.raises(ConfigError):
            verb(**given)


def test_pauses_as_they_are_stored() -> None:
    assert not Pauses.of(None)
    assert Pauses.of(None).describe() == "nothing"
    found = Pauses.of('[["queue", "mail"], ["kind", "Report"]]')
    assert found
    assert found.describe() == "queue mail, kind Report"
    assert found.hold("mail", "X")
    assert found.hold("x", "Report")
    assert not found.hold("x", "X")
    assert Pauses.of('[["all", ""]]').hold("x", "X")

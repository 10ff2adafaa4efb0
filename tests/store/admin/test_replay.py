"""Replaying a dead letter: lineage, audit, budget, payload, key; and copies of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler import DuplicateKeyError, PayloadError, RetryPolicy, UnregisteredKindError
from support.bench import Bench, Soft, Step
from support.fleet import Fleet, ends, rows


@pytest.mark.case(19)
def test_die_replay_die_replay(bench: Bench) -> None:
    bench.script.failing.add("mail")
    mail = bench.step("mail").with_retry(RetryPolicy(1, 1, max_attempts=2, jitter=0)).schedule()
    for by in ("alice", "bob"):
        bench.drain()
        assert bench.state(mail) == "dead"
        bench.clock.advance(60)
        assert bench.jobs.dead_letters.replay(mail, by=by) == mail
    record = bench.jobs.get_task(mail)
    assert (record.state, record.original_id, record.replay_count) == ("scheduled", mail, 2)
    assert (record.attempt, record.attempts_used, record.error, record.finished_at) == (2, 0, None, None)
    first, second = bench.jobs.dead_letters.audit(mail)
    assert [(a.actor, a.action, a.task_id) for a in (first, second)] == [
        ("alice", "replay", mail),
        ("bob", "replay", mail),
    ]
    assert second.at - first.at == timedelta(seconds=60)
    assert first.detail == {"attempt": 1, "error": "PermanentError: mail failed"}
    assert second.detail["attempt"] == 2
    bench.script.failing.clear()
    bench.drain()
    assert bench.state(mail) == "success"
    assert [a.number for a in bench.jobs.get_attempts(mail)] == [1, 2, 3]
    assert bench.jobs.get_task(mail).replay_count == 2


@pytest.mark.case(19)
def test_a_replay_has_its_whole_budget_anew(bench: Bench) -> None:
    def fails(_ctx: Any) -> None:
        raise ValueError("no")

    bench.script.bodies["mail"] = fails
    mail = bench.step("mail").with_retry(RetryPolicy(1, 1, max_attempts=3, jitter=0)).schedule()
    for _ in range(3):
        bench.drain()
        bench.clock.advance(1)
    assert ends(bench.jobs, mail) == ["retried", "retried", "dead"]
    bench.jobs.dead_letters.replay(mail)
    for _ in range(3):
        bench.drain()
        bench.clock.advance(1)
    assert ends(bench.jobs, mail) == ["retried", "retried", "dead"] * 2
    assert [a.number for a in bench.jobs.get_attempts(mail)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.case(19)
def test_the_idempotency_key_is_the_same_in_replays_and_copies(bench: Bench) -> None:
    seen: list[tuple[int, str]] = []

    def body(ctx: Any) -> None:
        seen.append((ctx.id, ctx.idempotency_key))
        raise ValueError("no")

    bench.script.bodies["mail"] = body
    mail = bench.step("mail").schedule()
    bench.drain()
    copy = bench.jobs.dead_letters.replay(mail, copy=True)
    bench.drain()
    again = bench.jobs.dead_letters.replay(copy, copy=True)
    bench.jobs.dead_letters.replay(mail)
    bench.drain()
    assert {key for _, key in seen} == {f"task-{mail}"}
    assert {i for i, _ in seen} == {mail, copy, again}
    assert bench.jobs.get_task(again).original_id == mail
    assert bench.jobs.get_task(again).replay_count == 2


@pytest.mark.both_databases
@pytest.mark.case(19)
def test_a_copy_is_a_new_task_and_the_dead_letter_stays(bench: Bench) -> None:
    big = "x" * 3000
    parent = bench.step("parent").schedule()
    bench.script.failing.add(big)
    dead = (
        bench.jobs.task(Step(big))
        .depend_on(parent)
        .key("k1")
        .queue("mail")
        .priority("low")
        .headers({"a": 1})
        .subject("order 7")
        .timeout(30)
        .with_retry(RetryPolicy(5, 60, max_attempts=4))
        .schedule()
    )
    child = bench.step("child", dead).schedule()
    bench.drain()
    bench.clock.advance(60)
    results: dict[int, Any] = {}
    bench.script.bodies[big] = lambda ctx: results.update(ctx.results())
    made = bench.jobs.dead_letters.replay(dead, by="alice", copy=True)
    assert (made != dead, made.created) == (True, True)
    old, new = bench.jobs.get_task(dead), bench.jobs.get_task(made)
    assert (old.state, old.replay_count, old.original_id) == ("dead", 0, None)
    assert (new.original_id, new.replay_count, new.attempt) == (dead, 1, 0)
    assert new.correlation == str(dead)
    for name in ("kind", "payload", "queue", "priority", "headers", "subject", "timeout", "retry", "max_attempts"):
        assert getattr(new, name) == getattr(old, name), name
    assert new.key == f"k1~copy-{made}"
    bench.drain()
    assert bench.states(dead, made, child) == ["dead", "success", "failed"]
    assert results == {parent: "parent"}
    assert [(a.action, a.actor, a.detail.get("copy")) for a in bench.jobs.dead_letters.audit(dead)] == [
        ("copy", "alice", made)
    ]
    assert [(a.action, a.detail) for a in bench.jobs.dead_letters.audit(made)] == [("copied", {"from": dead})]


@pytest.mark.case(19)
def test_replay_revives_what_ended_because_of_it(bench: Bench) -> None:
    (dead,) = bench.die("parent")
    child = bench.step("child", dead).schedule()
    bench.script.failing.clear()
    bench.jobs.dead_letters.replay(dead)
    assert bench.states(dead, child) == ["scheduled", "waiting"]
    assert bench.drain() == ["parent", "child"]


@pytest.mark.case(19)
def test_replay_with_another_payload(bench: Bench) -> None:
    (dead,) = bench.die("broken")
    bench.jobs.dead_letters.replay(dead, by="alice", payload={"name": "mended"})
    assert bench.drain() == ["mended"]
    assert bench.jobs.dead_letters.audit(dead)[0].detail["payload"] == "replaced"

    (dead,) = bench.die("broken")
    long, short = "m" * 5000, "short"
    bench.script.failing |= {long}
    bench.jobs.dead_letters.replay(dead, payload=Step(long))
    assert bench.drain() == [long]
    bench.jobs.dead_letters.replay(dead, payload=Step(short))
    assert bench.drain() == [short]
    assert (
        rows(bench.jobs, "SELECT name FROM schedd_task_values WHERE task_id = :id AND name = 'payload'", id=dead) == []
    )


@pytest.mark.case(19)
@pytest.mark.parametrize(
    "payload", [{"nam": "x"}, {"name": 5}, ["x"], Soft("x"), {"name": "x" * 200_000}, {"name": object()}, {}]
)
def test_a_payload_that_does_not_fit_changes_nothing(bench: Bench, payload: Any) -> None:
    (dead,) = bench.die("broken")
    before = bench.jobs.get_task(dead)
    with pytest.raises(PayloadError):
        bench.jobs.dead_letters.replay(dead, payload=payload)
    assert bench.jobs.get_task(dead) == before


@pytest.mark.case(19)
def test_a_payload_for_a_kind_that_is_not_registered_here(bench: Bench, fleet: Fleet) -> None:
    (dead,) = bench.die("broken")
    with pytest.raises(UnregisteredKindError):
        fleet.worker().dead_letters.replay(dead, payload={"name": "x"})
    assert bench.state(dead) == "dead"


# keys


@pytest.mark.case(19, 30)
@pytest.mark.parametrize("copy", [False, True])
def test_a_key_that_another_task_holds(bench: Bench, copy: bool) -> None:
    (dead,) = bench.die("mail", key="k1")
    holder = bench.step("other").key("k1").schedule()
    before = bench.jobs.get_task(dead)
    with pytest.raises(DuplicateKeyError) as caught:
        bench.jobs.dead_letters.replay(dead, by="alice", key="k1", copy=copy)
    assert caught.value.existing_id == holder
    with pytest.raises(DuplicateKeyError):
        bench.jobs.dead_letters.replay(dead, payload={"name": "x"}, key="k1" if copy else None, copy=copy)
    assert bench.jobs.get_task(dead) == before
    assert bench.jobs.dead_letters.audit() == []
    made = bench.jobs.dead_letters.replay(dead, key="k2", copy=copy)
    assert bench.jobs.get_task(made).key == "k2"
    assert bench.step("third").key("k2").schedule() == made


@pytest.mark.case(19, 30)
def test_the_key_is_held_again(bench: Bench) -> None:
    (dead,) = bench.die("mail", key="k1")
    bench.jobs.dead_letters.replay(dead)
    held = bench.step("mail").key("k1").schedule()
    assert (held, held.created) == (dead, False)

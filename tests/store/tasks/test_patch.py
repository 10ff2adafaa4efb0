"""``update_task``: time, priority, queue, payload, headers, retries and timeout of what no worker holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler import (
    ConfigError,
    Context,
    InvalidScheduleError,
    InvalidTransitionError,
    PayloadError,
    Priority,
    Retry,
    RetryPolicy,
    Task,
    UnknownTaskError,
)
from support.bench import Bench, Step, notify_and_step


class Keyed(Task, concurrency_key="{name}"):
    name: str
    size: int = 1

    def run(self, ctx: Context) -> Any:
        return ctx.state.play(f"{self.name} {self.size}", ctx)


def test_the_time_moves_both_ways(bench: Bench) -> None:
    task_id = int(bench.step("a").after(60).schedule())
    bench.jobs.update_task(task_id, after=timedelta(hours=1))
    assert bench.advance(60) == []
    bench.jobs.update_task(task_id, at=_now(bench))
    assert bench.drain() == ["a"]


def _now(bench: Bench) -> Any:
    from scheduler.model.times import to_datetime

    return to_datetime(bench.jobs.database.now())


def test_priority_decides_what_runs_first(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.step(name).schedule()
    last = int(bench.step("last").schedule())
    bench.jobs.update_task(last, priority="high")
    assert bench.jobs.get_task(last).priority is Priority.HIGH
    assert bench.drain()[0] == "last"


def test_another_queue_is_for_other_workers(bench: Bench) -> None:
    task_id = int(bench.worker(queues=["here"]).task(Step("a")).queue("here").schedule())
    bench.jobs.update_task(task_id, queue="there")
    assert bench.drain() == []
    bench.jobs.update_task(task_id, queue="here")
    assert bench.drain() == ["a"]


def test_a_payload_is_checked_and_its_lane_follows(bench: Bench) -> None:
    bench.jobs.register(Keyed)
    task_id = int(bench.jobs.task(Keyed("a")).schedule())
    with pytest.raises(PayloadError, match="does not fit"):
        bench.jobs.update_task(task_id, fields={"size": "big"})
    with pytest.raises(PayloadError, match="is of kind Keyed; Step is another one"):
        bench.jobs.update_task(task_id, payload=Step("a"))
    bench.jobs.update_task(task_id, fields={"size": 2})
    assert bench.jobs.get_task(task_id).payload == '{"name":"a","size":2}'
    bench.jobs.update_task(task_id, payload=Keyed("b", 3))
    assert bench.drain() == ["b 3"]
    with bench.jobs.database.read() as tx:
        lane = tx.connection.exec_driver_sql(f"SELECT lane FROM schedd_tasks WHERE id = {task_id}").scalar()
    assert lane == "Keyed\x1fb"


@pytest.mark.parametrize("size", [10, 5000])
def test_a_long_payload_becomes_another(bench: Bench, size: int) -> None:
    task_id = int(bench.step("x" * 3000).schedule())
    bench.jobs.update_task(task_id, payload={"name": "y" * size})
    assert bench.drain() == ["y" * size]


def test_headers_reach_the_handler(bench: Bench) -> None:
    seen: list[Any] = []
    bench.script.bodies["a"] = lambda ctx: seen.append(dict(ctx.headers))
    task_id = int(bench.step("a").schedule())
    bench.jobs.update_task(task_id, headers={"trace": "t1"})
    bench.drain()
    assert seen == [{"trace": "t1"}]


def test_retries_and_timeout(bench: Bench) -> None:
    task_id = int(bench.step("a").schedule())
    bench.jobs.update_task(task_id, retry=RetryPolicy(max_attempts=4), timeout=9)
    task = bench.jobs.get_task(task_id)
    assert (task.max_attempts, task.timeout) == (4, timedelta(seconds=9))
    bench.jobs.update_task(task_id, retry=None, timeout=None)
    task = bench.jobs.get_task(task_id)
    assert (task.max_attempts, task.timeout) == (1, None)


def test_one_that_waits_for_its_retry_can_be_changed(bench: Bench) -> None:
    def body(ctx: Any) -> None:
        raise Retry(after=3600)

    bench.script.bodies["a"] = body
    task_id = int(bench.step("a").with_retry(RetryPolicy()).schedule())
    bench.drain()
    bench.jobs.update_task(task_id, after=0, payload=Step("b"))
    assert bench.drain() == ["b"]
    assert [attempt.envelope.payload for attempt in bench.jobs.get_attempts(task_id)] == [
        '{"name":"a"}',
        '{"name":"b"}',
    ]


def test_recorded_steps_hold_payload_and_headers(bench: Bench) -> None:
    def body(ctx: Any) -> None:
        ctx.step("once", lambda: 1)
        raise Retry(after=3600)

    bench.script.bodies["a"] = body
    task_id = int(bench.step("a").with_retry(RetryPolicy()).schedule())
    bench.drain()
    with pytest.raises(InvalidTransitionError, match="has recorded steps"):
        bench.jobs.update_task(task_id, payload=Step("b"))
    bench.jobs.update_task(task_id, queue="elsewhere")


def test_what_is_under_way_or_has_ended_stays(bench: Bench) -> None:
    task_id = int(bench.step("a").schedule())
    notify_and_step(bench.jobs)
    with pytest.raises(InvalidTransitionError, match="is claimed; it is under way"):
        bench.jobs.update_task(task_id, priority="high")
    bench.drain()
    with pytest.raises(InvalidTransitionError, match="is success; it has ended"):
        bench.jobs.update_task(task_id, priority="high")
    with pytest.raises(UnknownTaskError):
        bench.jobs.update_task(task_id + 1, priority="high")


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({}, ConfigError, "say what to change"),
        ({"colour": 1}, ConfigError, "a task has no colour to change"),
        ({"at": _now, "after": 1}, ConfigError, "at and after exclude each other"),
        ({"payload": {}, "fields": {}}, ConfigError, "payload and fields exclude"),
        ({"fields": 3}, PayloadError, "fields must be a mapping"),
        ({"headers": 3}, PayloadError, "headers must be a mapping"),
        ({"priority": "urgent"}, ConfigError, "priority must be"),
        ({"queue": "a b"}, ConfigError, "queue"),
        ({"retry": 3}, ConfigError, "RetryPolicy or None"),
        ({"timeout": 0}, ConfigError, "timeout must be more than 0"),
        ({"at": 3}, InvalidScheduleError, "aware datetime"),
    ],
)
def test_wrong_changes_change_nothing(bench: Bench, changes: dict[str, Any], error: type[Exception], text: str) -> None:
    task_id = int(bench.step("a").schedule())
    before = bench.jobs.get_task(task_id)
    with pytest.raises(error, match=text):
        bench.jobs.update_task(task_id, **changes)
    assert bench.jobs.get_task(task_id) == before


def test_max_delay_counts_from_the_new_time(bench: Bench) -> None:
    task_id = int(bench.step("a").after(3600).max_delay(60).queue("unserved").schedule())
    bench.jobs.update_task(task_id, after=7200)
    bench.advance(3700)
    assert bench.state(task_id) == "scheduled"
    bench.jobs.update_task(task_id, after=0)
    bench.jobs.update_task(task_id, queue="default")
    assert bench.drain() == ["a"]

"""Numbers beyond all bounds get an error that names them, wherever they come in; no OverflowError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler import RetryPolicy, Scheduler, task
from scheduler.config.sources import UnfitSetting, convert
from scheduler.engine.execution.context import Context
from scheduler.errors import ConfigError, SchedulerError
from scheduler.executors.ports import ExecutorError
from scheduler.model.resources import Resources
from scheduler.model.texts import within
from scheduler.model.times import LONGEST, SECOND, span_us
from scheduler.tasks.actions.tokens import _instant
from scheduler.transports.ports import Refused, TransportError
from support.databases import Database, one_database

HUGE: tuple[Any, ...] = (1e308, -1e308, 10**400, -(10**400), float("inf"), float("nan"))


@task
def noop(ctx: Context) -> None: ...


def test_spans_are_compared_before_they_are_multiplied() -> None:
    for value in (*HUGE, 10**5000):
        with pytest.raises(ConfigError, match=r"^it "):
            span_us(value, "it")
    assert span_us(LONGEST / SECOND, "it") == LONGEST
    with pytest.raises(ConfigError, match="it is over a thousand years"):
        span_us(LONGEST / SECOND + 1, "it")


@one_database
def test_every_call_of_a_builder_and_of_a_scheduler_names_the_bound(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(noop)
    stored = jobs.task(noop).schedule()
    calls: dict[str, Callable[[Any], object]] = {
        "after": lambda v: jobs.task(noop).after(v),
        "timeout": lambda v: jobs.task(noop).timeout(v),
        "max_duration": lambda v: jobs.task(noop).max_duration(v),
        "max_delay": lambda v: jobs.task(noop).max_delay(v),
        "retention": lambda v: jobs.task(noop).key("k", retention=v),
        "sequence": lambda v: jobs.task(noop).sequence(v),
        "every": lambda v: jobs.task(noop).every(v),
        "jitter": lambda v: jobs.task(noop).cron("* * * * *").jitter(v),
        "min_wait": lambda v: RetryPolicy(min_wait=v),
        "max_wait": lambda v: RetryPolicy(max_wait=v),
        "jitter of retries": lambda v: RetryPolicy(jitter=v),
        "lease": lambda v: Scheduler(database.url, lease=v),
        "publish": lambda v: jobs.publish("shop", {}, delay=v),
        "update": lambda v: jobs.update_task(stored, after=v),
        "wait": lambda v: jobs.wait([stored], timeout=v),
        "cleanup": lambda v: jobs.cleanup_completed_tasks(older_than_hours=v),
        "limit": lambda v: jobs.list_tasks(limit=v),
        "cap": lambda v: jobs.live_settings.queue("default", max_concurrency=v),
        "cpu": lambda v: Resources(cpu=v),
    }
    for name, call in calls.items():
        for value in HUGE:
            try:
                call(value)
            except SchedulerError:
                continue
            pytest.fail(f"{name}({value!r:.20}) was taken")
    assert [one.state for one in jobs.list_tasks()] == ["scheduled"]
    jobs.close()


def test_settings_progress_and_claims_of_actions_have_bounds_too() -> None:
    for value in (10**400, float("inf"), float("nan")):
        with pytest.raises(UnfitSetting):
            convert(float, value, text=False)
        with pytest.raises(SchedulerError, match="exp is not a time"):
            _instant({"exp": value}, "exp")
    assert [Context._clamp(value) for value in HUGE] == [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]


def test_what_a_server_asks_to_wait_is_bounded() -> None:
    waits = [(1e308, 86_400.0), (float("inf"), 86_400.0), (float("nan"), None), (-5.0, 0.0), (7.0, 7.0), (None, None)]
    for asked, taken in waits:
        assert (TransportError("", asked).after, Refused("k", "", after=asked).after) == (taken, taken)
        assert ExecutorError("", asked).after == taken


def test_what_is_cut_stays_different() -> None:
    texts = ["x" * 255, "x" * 256, "x" * 300 + "a", "x" * 300 + "b"]
    cut = [within(text, 255) for text in texts]
    assert cut[0] == texts[0]
    assert len(set(cut)) == 4
    assert {len(one) for one in cut} == {255}

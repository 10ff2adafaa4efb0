"""Spans of time: seconds, a timedelta, or a text with its units."""

from __future__ import annotations

from datetime import timedelta

import pytest

import scheduler
from scheduler import RetryPolicy, Task
from scheduler.errors import ConfigError
from scheduler.model.times import SECOND, span_us


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5 h", 5400), ("2d", 172_800), ("250ms", 0.25)]
)
def test_a_text_with_units(text: str, seconds: float) -> None:
    assert span_us(text, "x") == span_us(seconds, "x") == span_us(timedelta(seconds=seconds), "x")


@pytest.mark.parametrize("text", ["", "10", "soon", "10 years", "-5m", "1e3s", "10m!", "٣m", "9" * 400 + "w"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x "):
        span_us(text, "x")


def test_where_a_task_takes_them() -> None:
    class Slow(Task, timeout="10m", retry=RetryPolicy(min_wait="1m", max_wait="1h")):
        def run(self, ctx: object) -> None: ...

    assert Slow.__task_options__.timeout == 600 * SECOND


def test_the_packages_names_are_its_own() -> None:
    shown = {name for name in dir(scheduler) if not name.startswith("__")}
    assert shown == set(scheduler.__all__)
    assert {"Batch", "TaskBuilder", "TaskPage"} <= shown

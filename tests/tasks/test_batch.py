"""BatchTask: goes on where it was, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import PermanentError, RetryPolicy, Scheduler, TaskTimeout
from scheduler.tasks import BatchTask
from scheduler.testing import FakeClock, drain
from support.databases import Database

from . import batched
from .batched import calls
from .fake import FakeContext

MODULE = batched.__name__
SETTINGS = {"batch": {"functions": [f"{MODULE}:{name}" for name in ("double", "fragile", "later", "odd")]}}


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    calls.clear()
    batched.broken.clear()


def run(**fields: Any) -> Any:
    function = fields.pop("function", f"{MODULE}:double")
    return BatchTask(function, **fields).run(FakeContext(SETTINGS))  # type: ignore[arg-type]


def test_every_item() -> None:
    assert run(items=[1, 2, 3], collect=True) == {"done": 3, "failed": [], "results": [2, 4, 6]}
    assert run(items=[]) == {"done": 0, "failed": []}
    assert run(items=list(range(10)), chunk=4, collect=True)["results"] == [2 * n for n in range(10)]


def test_going_on_with_the_others() -> None:
    batched.broken.update({1, 3})
    result = run(function=f"{MODULE}:fragile", items=list(range(5)), chunk=2, on_error="continue", collect=True)
    assert result["done"] == 3
    assert result["results"] == [0, None, 2, None, 4]
    assert result["failed"] == [{"item": n, "error": f"ValueError: {n} is broken"} for n in (1, 3)]


def test_an_error_whose_text_cannot_be_stored_is_one_of_its_item() -> None:
    """Such as that of a file with a name in another encoding."""
    result = run(function=f"{MODULE}:odd", items=[1], on_error="continue")
    assert result["failed"] == [{"item": 0, "error": "ValueError: caf? is broken"}]


def test_the_end_of_its_time_is_no_failure_of_an_item() -> None:
    with pytest.raises(TaskTimeout):
        run(function=f"{MODULE}:fragile", items=[1, None, 2], on_error="continue")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("os:remove", "may not be called"),
        (f"{MODULE}:secret", "may not be called"),
        (f"{MODULE}:later", "not a plain function"),
    ],
)
def test_functions_that_may_not_be_called(function: str, says: str) -> None:
    with pytest.raises(PermanentError, match=says):
        run(function=function, items=[1])
    with pytest.raises(ValueError):
        run(function="double", items=[1])


def test_the_next_attempt_goes_on_where_it_was(database: Database) -> None:
    clock = FakeClock()
    jobs = Scheduler.for_testing(url=database.url, clock=clock, settings=SETTINGS)
    jobs.register(BatchTask)
    batched.broken.add(57)
    task = BatchTask(f"{MODULE}:fragile", list(range(100)), collect=True)
    policy = RetryPolicy(min_wait=10, max_wait=10, jitter=0, max_attempts=3)
    task_id = jobs.task(task).with_retry(policy).schedule()
    drain(jobs)
    assert jobs.get_task_status(task_id) == "retry"
    assert calls == list(range(58))
    batched.broken.clear()
    calls.clear()
    clock.advance(10)
    drain(jobs)
    assert calls == list(range(57, 100)), "what was done is not done again"
    assert jobs.result(task_id, timeout=0) == {"done": 100, "failed": [], "results": list(range(100))}
    jobs.close()


@pytest.mark.case(20)
def test_a_replay_with_other_items_does_them(database: Database) -> None:
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock(), settings=SETTINGS)
    jobs.register(BatchTask)
    batched.broken.add(3)
    task = BatchTask(f"{MODULE}:fragile", [0, 1, 2, 3, 4], chunk=2, collect=True)
    task_id = jobs.task(task).with_retry(RetryPolicy.none()).schedule()
    drain(jobs)
    assert jobs.get_task_status(task_id) == "dead"
    calls.clear()
    # What is the same at the same place was done; the rest is new, though there was something in its place.
    jobs.dead_letters.replay(task_id, payload=BatchTask(f"{MODULE}:fragile", [0, 1, 5, 6], chunk=2, collect=True))
    drain(jobs)
    assert calls == [5, 6]
    jobs.close()

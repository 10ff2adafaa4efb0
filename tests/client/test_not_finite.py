"""NaN and infinity, which JSON would make null of, are refused wherever a value is stored."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from scheduler import AsyncContext, Context, PayloadError, RetryPolicy, Scheduler, Task, task
from scheduler.testing import drain
from support.fleet import Fleet, rows

TOLD = "it has nan at $.loss; put None or a text there"
BAD = {"loss": math.nan, "name": None}


@task
def fit(ctx: Context, given: Any = None) -> Any:
    return given


class Returns(Task, retry=RetryPolicy(max_attempts=5)):
    """Does something with a value that is no JSON."""

    how: str

    def run(self, ctx: Context) -> Any:
        return HOW[self.how](ctx)


class AsyncReturns(Task, retry=RetryPolicy(max_attempts=5)):
    how: str

    async def run(self, ctx: AsyncContext) -> Any:
        made = HOW[self.how](ctx)
        return await made if inspect.isawaitable(made) else made


def own_rows(ctx: Any) -> Any:
    async def in_a_coroutine() -> None:
        async with ctx.transaction() as tx:
            tx.result = dict(BAD)

    if isinstance(ctx, AsyncContext):
        return in_a_coroutine()
    with ctx.transaction() as tx:
        tx.result = dict(BAD)
    return None


HOW: dict[str, Callable[[Any], Any]] = {
    "the result": lambda ctx: dict(BAD),
    "its transaction's result": own_rows,
    "the result of step 'one'": lambda ctx: ctx.step("one", dict, BAD),
    "the payload of event 'fitted'": lambda ctx: ctx.emit_event("fitted", BAD),
    "payload of fit": lambda ctx: ctx.spawn(fit, BAD),
    "payload of fit, of a map": lambda ctx: ctx.map(fit, [[BAD]]),
}


@pytest.fixture
def jobs(fleet: Fleet) -> Scheduler:
    return fleet.worker(fit, Returns, AsyncReturns)


@pytest.mark.case(14, 52, 54)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", [Returns, pytest.param(AsyncReturns, marks=pytest.mark.one_is_enough)])
def test_a_handler_s_value_fails_for_good(jobs: Scheduler, kind: type[Task], how: str) -> None:
    """Another attempt would meet it again; and nothing of it is stored."""
    task_id = jobs.task(kind(how)).schedule()
    drain(jobs)
    (attempt,) = jobs.get_attempts(task_id)
    assert attempt.error is not None
    assert TOLD in attempt.error.replace("$.given", "$").replace("$[0]", "$")
    # A child's payload is an error as any other, which the handler's policy may have tried again.
    assert jobs.get_task_status(task_id) == ("retry" if "payload of fit" in how else "dead")
    assert [row.id for row in rows(jobs, "SELECT id FROM schedd_tasks")] == [task_id]
    for table in ("checkpoints", "events"):
        assert not rows(jobs, f"SELECT 1 FROM schedd_{table}")


@pytest.mark.case(62)
def test_a_caller_gets_the_error_at_once(jobs: Scheduler) -> None:
    with pytest.raises(PayloadError, match=r"payload of fit is not JSON: it has nan at \$\.given\.loss; put None"):
        jobs.task(fit, BAD).schedule()
    with pytest.raises(PayloadError, match="headers is not JSON: it has inf at"):
        jobs.task(fit).headers({"speed": math.inf})
    with pytest.raises(PayloadError, match=r"an event's payload is not JSON: it has -inf at \$;"):
        jobs.emit_event("fitted", -math.inf)
    with pytest.raises(PayloadError, match=r"nan at \$\.given"), jobs.batch() as batch:
        batch.task(fit, math.nan)
    with pytest.raises(PayloadError, match=r"nan at \$\.given"):
        jobs.task(fit, math.nan).hourly_at(5).schedule()
    assert not jobs.list_tasks()


@pytest.mark.case(19, 62)
def test_a_replay_with_such_a_payload_is_refused(jobs: Scheduler) -> None:
    dead = jobs.task(Returns("the result")).schedule()
    drain(jobs)
    with pytest.raises(PayloadError, match="nan at"):
        jobs.dead_letters.replay(dead, payload={"how": math.nan})
    assert jobs.get_task_status(dead) == "dead"

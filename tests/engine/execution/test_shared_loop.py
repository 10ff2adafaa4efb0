"""Handlers share an event loop, threads and a process: what one does to them is not to reach the others."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from scheduler import AsyncContext, Context, RetryPolicy, Scheduler, TaskFailedError, task
from support.databases import Database

pytestmark = pytest.mark.case(1)
PATIENCE = 30.0
mine: ContextVar[str] = ContextVar("mine", default="unset")
waits, go_on = threading.Event(), threading.Event()


@task
async def cancels_all(ctx: AsyncContext) -> int:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    return len(others)


@task
async def bystander(ctx: AsyncContext) -> str:
    return "ran"


@task
async def sets(ctx: AsyncContext, name: str) -> str:
    before = mine.get()
    mine.set(name)
    await asyncio.sleep(0)
    return before + mine.get()


@task
async def cancels_what_runs(ctx: AsyncContext) -> int:
    await asyncio.to_thread(waits.wait, PATIENCE)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    go_on.set()
    return len(others)


@task
async def runs(ctx: AsyncContext) -> str:
    waits.set()
    await asyncio.to_thread(go_on.wait, PATIENCE)
    await asyncio.sleep(0)
    return "ran"


@task
async def takes_the_executor(ctx: AsyncContext, how: str) -> None:
    loop = asyncio.get_running_loop()
    if how == "ends it":
        await loop.shutdown_default_executor()
    else:
        with ThreadPoolExecutor() as own:
            loop.set_default_executor(own)


@task
async def uses_the_executor(ctx: AsyncContext) -> int:
    return await asyncio.to_thread(int, "7")


class Odd(Exception):
    """Asks what it does not have: a usual mistake, and a worse one."""

    how = "KeyError"

    def __getattr__(self, name: str) -> Any:
        if Odd.how == "SystemExit":
            raise SystemExit("no")
        raise {"KeyError": KeyError, "RecursionError": RecursionError}[Odd.how](name)


@task(retry=RetryPolicy(min_wait=0, max_wait=0, max_attempts=2, jitter=0.0, strategy="fixed"))
def odd_in_thread(ctx: Context) -> None:
    raise Odd("what it says")


@task(retry=RetryPolicy(min_wait=0, max_wait=0, max_attempts=2, jitter=0.0, strategy="fixed"))
async def odd_in_coroutine(ctx: AsyncContext) -> None:
    raise Odd("what it says")


def fork(path: str) -> int:
    pid = os.fork()
    if pid == 0:
        Path(path).touch()
        return 0
    return os.waitpid(pid, 0)[1]


@task
def forks(ctx: Context, path: str) -> int:
    return fork(path)


@task
async def forks_in_coroutine(ctx: AsyncContext, path: str) -> int:
    return fork(path)


KINDS = (
    *(cancels_all, bystander, sets, cancels_what_runs, runs, takes_the_executor, uses_the_executor),
    *(odd_in_thread, odd_in_coroutine, forks, forks_in_coroutine),
)


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url, pools={"high": (0, 0), "medium": (1, 2), "low": (0, 0)})
    for kind in KINDS:
        made.register(kind)
    yield made
    made.close()


def test_who_cancels_all_of_them_reaches_none_that_has_not_begun(jobs: Scheduler) -> None:
    """It would end without having run: the engine did not see its end, and its slot stayed taken."""
    with jobs.batch() as batch:
        batch.task(cancels_all)
        for _ in range(5):
            batch.task(bystander)
    first, *others = batch.ids
    with jobs:
        assert jobs.result(first, timeout=PATIENCE) == 1
        assert [jobs.result(i, timeout=PATIENCE) for i in others] == ["ran"] * 5


def test_each_has_context_variables_of_its_own(jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        for n in range(40):
            batch.task(sets, f" {n}")
    with jobs:
        results = [jobs.result(i, timeout=PATIENCE) for i in batch.ids]
    assert results == [f"unset {n}" for n in range(40)]


def test_who_cancels_all_of_them_reaches_none_of_another_task(jobs: Scheduler) -> None:
    waits.clear()
    go_on.clear()
    with jobs:
        other = jobs.task(runs).schedule()
        assert waits.wait(PATIENCE)
        assert jobs.result(jobs.task(cancels_what_runs).schedule(), timeout=PATIENCE) >= 1
        assert jobs.result(other, timeout=PATIENCE) == "ran"


@pytest.mark.parametrize("how", ["ends it", "gives its own"])
def test_no_task_takes_the_threads_in_which_all_wait(jobs: Scheduler, how: str) -> None:
    with jobs:
        with pytest.raises(TaskFailedError, match="handlers share this event loop"):
            jobs.result(jobs.task(takes_the_executor, how).schedule(), timeout=PATIENCE)
        assert jobs.result(jobs.task(uses_the_executor).schedule(), timeout=PATIENCE) == 7


@pytest.mark.parametrize("how", ["KeyError", "RecursionError", "SystemExit"])
@pytest.mark.parametrize("kind", [odd_in_thread, odd_in_coroutine])
def test_an_error_that_cannot_be_asked_is_one_like_any_other(
    jobs: Scheduler, kind: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "how", how)
    with jobs:
        made = jobs.task(kind).schedule()
        with pytest.raises(TaskFailedError, match="Odd: what it says"):
            jobs.result(made, timeout=PATIENCE)
        assert jobs.get_task(made).attempt == 2
        assert jobs.result(jobs.task(bystander).schedule(), timeout=PATIENCE) == "ran"


@pytest.mark.parametrize("kind", [forks, forks_in_coroutine])
def test_a_handler_that_forks_leaves_no_copy_of_its_engine(jobs: Scheduler, kind: Any, tmp_path: Path) -> None:
    with jobs:
        made = jobs.task(kind, str(tmp_path / "forked")).schedule()
        assert jobs.result(made, timeout=PATIENCE) == 0, "it has ended"
    assert (tmp_path / "forked").exists()

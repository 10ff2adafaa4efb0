"""A program written as in the README passes mypy --strict and pyright's strict mode, and mistakes in it do not."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from scheduler import AsyncContext, Context, Scheduler, Task, TaskId, task
from scheduler.model.priority import Priority, PriorityName
from scheduler.model.state import (
    SIMPLE_NAMES,
    EndedName,
    LiveName,
    Otherwise,
    OtherwiseName,
    SimpleName,
    TaskState,
    When,
    WhenName,
)
from scheduler.testing import drain
from support import pyright, strict_mypy

PROGRAM = """
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_type

import msgspec

import schedd
from scheduler import (
    AsyncContext,
    Context,
    PermanentError,
    Priority,
    Retry,
    RetryPolicy,
    Scheduler,
    Snooze,
    Task,
    TaskId,
    TaskState,
    Weekday,
    task,
)


class EmailTask(Task):
    to: str
    subject: str
    body: str = ""

    def run(self, ctx: Context) -> dict[str, str]:
        ctx.state.mailer.send(self.to, self.subject, self.body)
        ctx.report_progress(50, "sent")
        if ctx.attempt > 3:
            raise PermanentError("gone", status=410)
        assert_type(schedd.RetryPolicy(), RetryPolicy)
        return {"sent_to": self.to}

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        ctx.log.info("failed", error=str(error))


class Fetch(Task, kind="fetch", queue="net", priority=Priority.LOW, retry=RetryPolicy(), timeout=timedelta(seconds=5)):
    url: str

    async def run(self, ctx: AsyncContext) -> str:
        await ctx.heartbeat()
        child = await ctx.spawn(EmailTask("a", "b"), name="tell")
        assert_type(await ctx.await_task(child), dict[str, str])
        if not await ctx.results():
            raise Retry(after=timedelta(seconds=3), reason="not yet", status=503)
        raise Snooze(5)


@dataclass
class App:
    prefix: str


class Greet(Task, priority="high", isolation="process", on_stall="report", frozen=True, kw_only=True):
    name: str
    tags: list[str] = msgspec.field(default_factory=list[str])

    def run(self, ctx: Context[App]) -> int:
        assert_type(ctx.state, App)
        made = ctx.spawn(resize, self.name)
        assert_type(ctx.await_task(made), str)
        return len(ctx.state.prefix + self.name)


@task(priority=Priority.HIGH, timeout=30)
def resize(ctx: Context, path: str, width: int = 800) -> str:
    return f"{path}@{width}"


@task
async def ping(ctx: AsyncContext) -> None:
    await ctx.check_cancelled()


def main(app: object, upload_id: int, resize_id: TaskId) -> None:
    jobs = Scheduler("sqlite:///jobs.db", state=app)
    jobs.register(EmailTask)
    jobs.register(resize)
    jobs.register(ping, kind="ping2")
    same: str = resize(None, "a.jpg", width=400)
    made: TaskId = jobs.task(resize, "a.jpg", width=400).schedule()
    created: bool = made.created
    task_id = (
        jobs.task(EmailTask("user@example.com", "Welcome"))
        .key("welcome-42", conflict="keep", retention=timedelta(hours=24))
        .depend_on([upload_id, resize_id], when="success", otherwise=None)
        .with_retry(RetryPolicy(min_wait=10, max_wait=timedelta(hours=1), retry_on=(OSError, "KeyError")))
        .priority(Priority.HIGH)
        .queue("mail")
        .after(timedelta(minutes=5))
        .at(datetime(2030, 1, 1, tzinfo=UTC))
        .headers({"a": 1})
        .schedule()
    )
    name: str = jobs.task(ping).weekly_on(Weekday.MONDAY, 9, 0, tz="Europe/Berlin").catchup("last").schedule()
    other: str = jobs.task(ping).every(60, mode="fixed_delay").run_on_startup().schedule()
    with jobs.batch(correlation="order-42") as batch:
        a = batch.task(Fetch("https://example.com"))
        b = batch.task(resize, "x.png").depend_on([a, 7])
        batch.task(ping).depend_on(a).depend_on([b], when="finished")
    ids: list[TaskId] = batch.ids
    with jobs:
        state: TaskState = jobs.get_task_status(task_id)
        print(jobs.result(task_id, timeout=5), state.simple, same, created, name, other, ids)
    jobs.wait([made, task_id], timeout=timedelta(seconds=1))
    greeted = jobs.task(Greet(name="x")).priority("low").schedule()
    assert_type(greeted, TaskId[int])
    assert_type(jobs.result(greeted), int)
    fetched = jobs.task(Fetch("https://example.com")).key("f").schedule()
    assert_type(jobs.result(fetched), str)
    assert_type(jobs.result(jobs.task(resize, "a.jpg").schedule()), str)
    jobs.add_dependency(greeted, fetched, when="failure", otherwise="skip")
    print(len(jobs.list_tasks(["failed", TaskState.DEAD])), len(jobs.list_tasks("Failed")))
    print(msgspec.structs.asdict(Greet(name="x")), msgspec.structs.replace(Fetch("a"), url="b").url)
    left: list[int] = jobs.stop(drain=5)
    print(left, jobs.get_task(task_id).finished_at)


async def later(jobs: Scheduler) -> TaskId:
    assert_type(await jobs.result_async(await jobs.task(resize, "a").schedule_async()), str)
    ended: list[int] = [*await jobs.wait_async([1, 2], timeout=5, first=True)]
    assert_type((await jobs.get_task_async(ended[0])).state, TaskState)
    await jobs.cancel_async(ended[0], cascade=True)
    await jobs.retry_async(ended[0])
    await jobs.emit_event_async("paid", {"id": len(await jobs.list_tasks_async("failed", limit=5))})
    return await jobs.task(ping).schedule_async()
"""

MISTAKES = """
from scheduler import AsyncContext, Context, Scheduler, Task, task


class EmailTask(Task):
    to: str

    def run(self, ctx: Context) -> None: ...


class Slow(Task):
    async def run(self, ctx: AsyncContext) -> None:
        ctx.heartbeat()  # not awaited


@task
def resize(ctx: Context, path: str, width: int = 800) -> str:
    return path


class Count(Task):
    def run(self, ctx: Context) -> int:
        return 1


class Other:
    def run(self, ctx: Context) -> int:
        return 1


class Coloured(Task, colour="red"):  ## no such option
    def run(self, ctx: Context) -> None: ...


class Slowly(Task, timeout="5m", isolation="fork"):  ## no number; no such isolation
    def run(self, ctx: Context) -> None: ...


def main(jobs: Scheduler) -> None:
    EmailTask(5)  # no text
    EmailTask("a", "b")  # one too many
    jobs.task(resize)  # path is missing
    jobs.task(resize, "a", width="wide")  # no number
    jobs.task(resize, "a", wide=1)  # no such parameter
    jobs.task(EmailTask)  # the class
    jobs.task(EmailTask("a")).key("k", conflict="first")  # no such policy
    jobs.task(EmailTask("a")).depend_on("a")  # no id
    jobs.task(EmailTask("a")).catchup("some")  # no such policy
    name: int = jobs.task(EmailTask("a")).every(60).schedule()  # its name is a str
    coroutine = jobs.cancel_async("5")  # no id
    jobs.task(EmailTask("a")).depend_on(1, when="done")  # no such end
    jobs.task(EmailTask("a")).priority("urgent")  # no such level
    jobs.list_tasks(5)  # neither a state nor a filter
    text: str = jobs.result(jobs.task(Count()).schedule())  # an int
    jobs.task(Other())  # no task


@task(colour="red")  # no such option
def painted(ctx: Context) -> None: ...
"""


@dataclass
class App:
    prefix: str


class Prefix(Task):
    text: str

    def run(self, ctx: Context[App]) -> str:
        return ctx.state.prefix + self.text


@task
def prefixed(ctx: Context[App], text: str) -> str:
    return ctx.state.prefix + text


@task
async def prefixed_later(ctx: AsyncContext[App], text: str) -> str:
    return ctx.state.prefix + text


def check(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    source = directory / "program.py"
    source.write_text(program, encoding="utf-8")
    return strict_mypy.check(directory, source, settings=directory)


@pytest.mark.timeout(420)
def test_a_program_passes_and_each_mistake_is_found(tmp_path: Path) -> None:
    done = check(PROGRAM, tmp_path)
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr
    done = check(MISTAKES, tmp_path)
    marked = {n for n, line in enumerate(MISTAKES.splitlines(), 1) if "  # " in line}  # "  ## ": by pyright only
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == marked, done.stdout


@pytest.mark.timeout(420)
def test_pyright_passes_it_strictly_and_finds_each_mistake() -> None:
    found = pyright.check({"program.py": PROGRAM, "mistakes.py": MISTAKES})
    assert [one for one in found if one["file"] == "program.py"] == []
    marked = {n for n, line in enumerate(MISTAKES.splitlines(), 1) if "  # " in line or "  ## " in line}
    # Strict mode says more of some of these lines: of names that are not used.
    wrong = {one["line"] for one in found if one["rule"] != "reportUnusedVariable"}
    assert wrong == marked, found


def test_the_literals_are_the_enums() -> None:
    assert get_args(WhenName) == tuple(When)
    assert get_args(OtherwiseName) == tuple(Otherwise)
    assert get_args(PriorityName) == tuple(level.label for level in Priority)
    assert get_args(LiveName) + get_args(EndedName) == tuple(TaskState)
    assert get_args(SimpleName) == SIMPLE_NAMES
    assert all(TaskState(name).terminal for name in get_args(EndedName))


def test_a_context_that_names_its_state_is_the_context() -> None:
    """What only a checker reads keeps no handler from being registered and run."""
    jobs = Scheduler.for_testing(state=App("to "))
    for kind in (Prefix, prefixed, prefixed_later):
        jobs.register(kind)
    made = [jobs.task(Prefix("a")), jobs.task(prefixed, "a"), jobs.task(prefixed_later, "a")]
    ids = [builder.schedule() for builder in made]
    drain(jobs)
    assert [jobs.result(i, 0) for i in ids] == ["to a"] * 3
    assert (TaskId[str](5), TaskId(5, created=False).created) == (5, False)

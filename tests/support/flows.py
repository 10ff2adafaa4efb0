"""Durable handlers told by a script: one handler, written with ``await``, runs in threads and as a coroutine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from scheduler import AsyncContext, Context, RetryPolicy, Scheduler, Task
from scheduler.testing import FakeClock, drain
from support.databases import Database

AGAIN = RetryPolicy(min_wait=1, max_wait=1, jitter=0, max_attempts=3)
Body = Callable[[Any], Awaitable[Any]]


@dataclass
class Play:
    """``ctx.state``: the handlers by name, and what was done, in order."""

    bodies: dict[str, Body] = field(default_factory=dict)
    done: list[Any] = field(default_factory=list)

    def do(self, what: Any) -> Any:
        """A side effect, for a step; returns what it was given."""
        self.done.append(what)
        return what


class Facade:
    """A synchronous context with the awaited names of an asynchronous one."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.ctx, name)
        if not callable(value) or name in ("state", "capture"):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            return value(*args, **kwargs)

        return call


def finished(coroutine: Any) -> Any:
    """What a coroutine returns that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


class Flow(Task, retry=AGAIN):
    name: str

    def run(self, ctx: Context) -> Any:
        return finished(ctx.state.bodies[self.name](Facade(ctx)))


class AsyncFlow(Task, retry=AGAIN):
    name: str

    async def run(self, ctx: AsyncContext) -> Any:
        return await ctx.state.bodies[self.name](ctx)


class Strict(Flow, determinism="strict"):
    """Fails if it does not fit what is recorded."""


class AsyncStrict(AsyncFlow, determinism="strict"):
    pass


BOTH: tuple[type[Flow] | type[AsyncFlow], ...] = (Flow, AsyncFlow)
KINDS: tuple[Any, ...] = (Flow, AsyncFlow, Strict, AsyncStrict)


class Stage:
    """Workers on one database that run flows, step by step under one clock."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        self.database = database
        self.clock = clock
        self.play = Play()
        self.made: list[Scheduler] = []
        self.jobs = self.worker()

    def worker(self, *types: Any, **options: Any) -> Scheduler:
        made = Scheduler.for_testing(url=self.database.url, clock=self.clock, state=self.play, **options)
        for kind in (*KINDS, *types):
            made.register(kind)
        self.made.append(made)
        return made

    def start(self, body: Body, kind: Any = Flow, **options: Any) -> int:
        """Schedule a task with this handler; ``options``: methods of the builder with their argument."""
        name = f"{body.__name__}-{len(self.play.bodies)}"
        self.play.bodies[name] = body
        builder = self.jobs.task(kind(name))
        for method, value in options.items():
            builder = getattr(builder, method)(value)
        return int(builder.schedule())

    def drain(self, seconds: float = 0) -> None:
        """Time goes by, and then all that is due runs."""
        self.clock.advance(seconds)
        drain(self.jobs)

    def state(self, task_id: int) -> str:
        return self.jobs.get_task_status(task_id).value

    def ends(self, task_id: int) -> list[str]:
        return [attempt.outcome.value for attempt in self.jobs.get_attempts(task_id)]

    def kill(self, jobs: Scheduler) -> None:
        """This worker is gone without a goodbye."""
        if jobs._engine is not None and jobs._engine.inline:
            jobs._engine._drop_connection()
            jobs._engine = None
        jobs.close()

    def close(self) -> None:
        for jobs in self.made:
            self.kill(jobs)


@pytest.fixture
def stage(database: Database, clock: FakeClock) -> Any:
    made = Stage(database, clock)
    yield made
    made.close()


@pytest.fixture(params=[Flow, pytest.param(AsyncFlow, marks=pytest.mark.one_is_enough)], ids=["thread", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    """A kind of flow: each test that takes it runs for both sorts of handlers."""
    return request.param

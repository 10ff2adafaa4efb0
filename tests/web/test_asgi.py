"""scheduler.asgi and scheduler.fastapi: the lifespan, the dependency, durable background tasks, streams."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scheduler import Context, PayloadError, Scheduler, console, task
from scheduler.asgi import lifespan, scheduler_of
from scheduler.errors import ConfigError
from scheduler.fastapi import Background, Jobs, ProgressResponse, get_jobs
from support.databases import Database

try:
    from starlette.testclient import TestClient
except RuntimeError:  # an older one asks for httpx, whose calls those of httpx2 are
    sys.modules["httpx"] = httpx2
    from starlette.testclient import TestClient


@task
def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


@task
def fails(ctx: Context) -> str:
    raise ValueError("a secret")


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(greet)
    made.register(fails)
    yield made
    made.close()


def app_of(jobs: Scheduler, **options: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan(jobs, **options))

    @app.post("/greet/{name}")
    async def store(name: str, jobs: Jobs) -> dict[str, Any]:
        stored = await jobs.task(greet, name).schedule_async()
        return {"id": stored, "runs": jobs.is_running()}

    @app.post("/later/{name}")
    def later(name: str, background: Background) -> int:
        return background.add_task(greet, name)

    @app.post("/later-async/{name}")
    async def later_async(name: str, background: Background) -> int:
        return await background.add_task_async(greet, name=name)

    @app.get("/watch/{task_id}")
    async def watch(task_id: int, jobs: Jobs) -> ProgressResponse:
        return ProgressResponse(jobs, task_id, every=0.01)

    return app


def test_the_lifespan_starts_and_stops_the_scheduler(jobs: Scheduler) -> None:
    seen = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, Any]]:
        seen.append(jobs.is_running())
        yield {"own": 1}
        seen.append(jobs.is_running())

    with TestClient(app_of(jobs, then=own)) as client:
        answer = client.post("/greet/you").json()
        assert answer["runs"]
        assert jobs.result(answer["id"], timeout=30) == "hello you"
    assert not jobs.is_running()
    assert seen == [True, True]


def test_it_may_only_store(jobs: Scheduler) -> None:
    with TestClient(app_of(jobs, work=False)) as client:
        answer = client.post("/greet/you").json()
        assert not answer["runs"]
    assert jobs.get_task(answer["id"]).state == "scheduled"


def test_background_tasks_are_stored(jobs: Scheduler) -> None:
    with TestClient(app_of(jobs)) as client:
        ids = [client.post(f"/{path}/you").json() for path in ("later", "later-async")]
        assert [jobs.result(one, timeout=30) for one in ids] == ["hello you"] * 2


def test_a_stream_says_nothing_of_errors(jobs: Scheduler) -> None:
    failing = jobs.task(fails).schedule()
    with TestClient(app_of(jobs)) as client:
        told = client.get(f"/watch/{failing}").text
        assert told.endswith('"status": "Failed", "attempt": 1, "progress": null, "message": null}\n\n')
        assert "event: end\n" in told
        assert "secret" not in told
        missing = client.get("/watch/99")
        assert (missing.status_code, missing.text) == (404, "there is no task 99\n")


def test_an_app_without_the_lifespan_says_so(jobs: Scheduler) -> None:
    client = TestClient(app_of(jobs))  # without `with`
    with pytest.raises(ConfigError, match=r"with TestClient\(app\) as client"):
        client.post("/greet/you")
    app = app_of(jobs)
    app.dependency_overrides[get_jobs] = lambda: jobs
    assert TestClient(app).post("/greet/you").json()["id"]


def test_starlette_by_itself_with_a_mounted_console(jobs: Scheduler) -> None:
    closed = []

    async def store(request: Request) -> Response:
        stored = await scheduler_of(request).task(greet, "you").schedule_async()
        return JSONResponse({"id": stored})

    pages = console.app(jobs, lambda scope: console.principal("me", "admin"))
    pages.snapshots.close, before = lambda: (closed.append(1), before()), pages.snapshots.close  # type: ignore[method-assign]
    app = Starlette(routes=[Route("/", store, methods=["POST"])], lifespan=lifespan(jobs, console=pages))
    app.mount("/jobs", pages)
    with TestClient(app) as client:
        stored = client.post("/").json()["id"]
        assert jobs.result(stored, timeout=30) == "hello you"
        assert client.get(f"/jobs/tasks/{stored}").status_code == 200
    assert closed == [1]


def test_what_is_no_task_is_refused(jobs: Scheduler) -> None:
    from scheduler.fastapi import BackgroundTasks

    with pytest.raises(PayloadError, match="not <built-in function print>"):
        BackgroundTasks(jobs).add_task(print, "x")

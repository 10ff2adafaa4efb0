"""The console in a program's own ASGI app, below a path, with the program's own authentication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from scheduler import Scheduler
from scheduler.console import app, principal
from scheduler.errors import ConfigError
from support.consoles import ORIGIN, ask
from support.databases import Database, one_database


@one_database
def test_in_a_program_with_its_own_users(database: Database) -> None:
    roles = {"ada": "operator", "eve": "viewer"}

    async def user(scope: Mapping[str, Any]) -> Any:
        name = dict(scope["headers"]).get(b"x-session", b"").decode()
        return principal(name, roles[name]) if name in roles else None

    jobs = Scheduler(database.url)
    site = Starlette(routes=[Mount("/jobs", app=app(jobs, user))])
    try:
        assert ask(site, "GET", "/jobs/").status == 401
        shown = ask(site, "GET", "/jobs/tasks", headers={"x-session": "ada"})
        assert shown.status == 200
        assert 'href="/jobs/static/console.css"' in shown.text
        assert ask(site, "GET", "/jobs/static/console.css").status == 200
        for name, status in (("ada", 404), ("eve", 403)):
            headers = {**ORIGIN, "x-session": name}
            answer = ask(site, "POST", "/jobs/tasks/9/retry", headers=headers, form={})
            assert answer.status == status
    finally:
        jobs.close()


@one_database
def test_a_mounted_console_wants_to_know_who_asks(database: Database) -> None:
    jobs = Scheduler(database.url)
    with pytest.raises(ConfigError, match="user="):
        app(jobs)
    with pytest.raises(ConfigError, match="no role 'king'"):
        principal("ada", "king")

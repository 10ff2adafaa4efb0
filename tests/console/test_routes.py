"""The one table of routes: every route declares its verb, and every role gets what it may, and no more."""

from __future__ import annotations

import re

import pytest

from scheduler.console import pages, routes
from scheduler.console.roles import BUILT_IN, Verb
from scheduler.console.routes import Route
from scheduler.errors import ConfigError
from support.consoles import ORIGIN, ask, console_on
from support.databases import Database, one_database

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
pages.load()


def example(path: str) -> str:
    """A path that fits: no task, no schedule has this name."""
    return re.sub(r"\{\w+(:\w+)?\}", lambda found: "999999" if found[1] == ":int" else "nothing", path)


def test_a_route_without_a_verb_does_not_register() -> None:
    with pytest.raises(ConfigError, match="declares no verb"):
        Route("/x", "GET", None, lambda visit: None, None, False)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="looking is no verb for it"):
        Route("/x", "POST", Verb.LOOK, lambda visit: None, None, False)
    with pytest.raises(ConfigError, match="looking is no verb for it"):
        Route("/x", "POST", Verb.PUBLIC, lambda visit: None, None, False)


def test_nothing_but_the_log_in_is_public() -> None:
    public = {(route.method, route.path) for route in routes.ROUTES if route.verb is Verb.PUBLIC}
    assert public == {("GET", "/static/{name}"), ("GET", "/login"), ("POST", "/login"), ("POST", "/login/link")}


@one_database
@pytest.mark.parametrize("role", [*BUILT_IN, None])
def test_every_route_with_every_role_and_method(database: Database, role: str | None) -> None:
    """Also of streams and JSON twins. Without a role everything but the log-in is 401, unknown paths too."""
    verbs = frozenset[Verb]() if role is None else BUILT_IN[role]
    with console_on(database, role if role is not None else lambda scope: None) as gate:
        wrong = []
        for path in sorted({route.path for route in routes.ROUTES}):
            for method in METHODS:
                route, _, _ = routes.find(method, example(path))
                for shown in (example(path), f"{example(path)}.json"):
                    status = ask(gate, method, shown, headers=ORIGIN, form={} if method == "POST" else None).status
                    if route is not None and route.verb is Verb.PUBLIC:
                        fits = status != 403
                    elif role is None:
                        fits = status == 401
                    elif route is None:
                        fits = status == 405
                    elif route.verb in verbs:
                        fits = status not in (401, 403, 405, 500)
                    else:
                        fits = status == 403
                    if not fits:
                        wrong.append(f"{method} {shown} as {role}: {status}")
        assert not wrong, "\n".join(wrong)
        assert ask(gate, "GET", "/nowhere").status == (404 if role else 401)


@one_database
def test_read_only_leaves_nothing_but_looking(database: Database) -> None:
    with console_on(database, "admin", read_only=True) as gate:
        for route in routes.ROUTES:
            if route.verb in (Verb.LOOK, Verb.PUBLIC):
                continue
            answer = ask(gate, route.method, example(route.path), headers=ORIGIN, form={})
            assert answer.status == 403, route.path
        assert "Retry" not in ask(gate, "GET", "/tasks").text


@one_database
def test_another_door_than_http_is_closed(database: Database) -> None:
    with console_on(database) as gate:
        assert ask(gate, "GET", "/", scope_type="websocket").status == 1008

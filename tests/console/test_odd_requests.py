"""Names that look like suffixes, the way back after a log-in, and requests that no browser sends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from scheduler import Scheduler, task
from scheduler.console import pages, routes
from scheduler.console.answers import own_path
from scheduler.console.auth import hash_token
from scheduler.console.routes import Route
from support.consoles import ORIGIN, ask, console_on, post, served
from support.databases import Database, one_database

pages.load()


@task
def Mail(ctx: Any, to: str) -> None: ...


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(Mail)
    yield made
    made.close()


NAMES = ("report", "report.json", "report.json.json", "a/b", "a/b.json")


def paused(jobs: Scheduler) -> set[str]:
    return {one.name for one in jobs.schedules.list() if one.paused}


@one_database
def test_a_verb_is_for_the_name_that_was_given(database: Database, jobs: Scheduler) -> None:
    for name in NAMES:
        jobs.task(Mail, "ada").key(name).cron("0 3 * * *").schedule()
    with console_on(database) as gate:
        for name in NAMES:
            assert post(gate, f"/schedules/pause/{name}").status == 303
            assert paused(jobs) == {name}
            assert post(gate, f"/schedules/trigger/{name}").status == 303
            (made,) = jobs.list_tasks(limit=1)
            assert made.schedule == name
            assert post(gate, f"/schedules/resume/{name}").status == 303
        shown = ask(
            gate, "POST", "/schedules/pause/report.json", form={}, headers={**ORIGIN, "accept": "application/json"}
        )
        assert shown.json["done"] == "Schedule report.json is paused."
        assert paused(jobs) == {"report.json"}
        assert post(gate, "/schedules/delete/report.json").status == 303
        assert post(gate, "/schedules/delete/report.json").status == 404, "there is none any more"
        assert {one.name for one in jobs.schedules.list()} == {*NAMES} - {"report.json"}
        assert ask(gate, "GET", "/schedules/report.json").json["name"] == "report"


@one_database
def test_a_page_is_of_the_name_that_was_given(database: Database, jobs: Scheduler) -> None:
    for name in ("plain", "both", "both.json", "alone.json"):
        jobs.task(Mail, "ada").key(name).cron("0 3 * * *").schedule()
        jobs.task(Mail, name).key(name).queue(name).correlation(name).subject(name).schedule()
    with console_on(database) as gate:
        assert ask(gate, "GET", "/schedules/plain.json").json["name"] == "plain"
        for name in ("both.json", "alone.json"):
            page = ask(gate, "GET", f"/schedules/{name}")
            assert page.headers["content-type"].startswith("text/html")
            assert f"<h1>Schedule {name}" in page.text or f"{name}</h1>" in page.text
            assert ask(gate, "GET", f"/schedules/{name}.json").json["name"] == name
            assert ask(gate, "GET", f"/queues/{name}").headers["content-type"].startswith("text/html")
            assert ask(gate, "GET", f"/queues/{name}.json").json["name"] == name
            for short, word in (("c", "correlation"), ("s", "subject")):
                to = ask(gate, "GET", f"/{short}/{name}").headers["location"]
                assert to.startswith("/tasks?")
                assert name in to
                twin = ask(gate, "GET", f"/{short}/{name}.json").headers["location"]
                assert twin.startswith("/tasks.json?")
                assert quote(f"{word}:{name}", safe="").lower() in twin.lower() or name in twin
        accepts = {"accept": "application/json"}
        assert ask(gate, "GET", "/schedules/both", headers=accepts).json["name"] == "both"
        assert ask(gate, "GET", "/queues/plain.json").json["name"] == "plain"
        by_name = {one.key: one.id for one in jobs.list_tasks(kind="Mail", limit=100) if one.schedule is None}
        for name in ("plain", "both.json", "alone.json"):
            assert ask(gate, "GET", f"/k/Mail/{name}").headers["location"] == f"/tasks/{by_name[name]}"
            assert ask(gate, "GET", f"/k/Mail/{name}.json").headers["location"] == f"/tasks/{by_name[name]}.json"


@one_database
def test_a_log_in_leads_to_the_page_that_was_asked_for(database: Database, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ada admin {hash_token('s3cret')}\n")
    with served(database, auth="token", users=str(users)) as server:

        def to(path: str) -> str:
            shown = ask(server.gate, "GET", path).text
            (given,) = re.findall(r'name="next" value="([^"]*)"', shown) or [""]
            wanted = given.replace("&amp;", "&").replace("&#39;", "'")
            form = {"token": "s3cret", **({"next": wanted} if wanted else {})}
            return ask(server.gate, "POST", "/login", headers=ORIGIN, form=form).headers["location"]

        for path in ("/tasks/7", "/dead?kind=Mail&fingerprint=5f", "/schedules/a%20b"):
            assert to(path) == path.replace("%20", "%2520"), path
        assert to("/") == "/"
        assert to("/login?next=/dead") == "/dead"
        for odd in ("https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "/a\\b", "/\n"):
            form = {"token": "s3cret", "next": odd}
            assert ask(server.gate, "POST", "/login", headers=ORIGIN, form=form).headers["location"] == "/", odd
            assert own_path(odd) == ""


LONG = "x" * 300
ODD = (LONG, "x" * 60_000, "\0", "a\0b", "%00", "\xed\xb3\xbf", "..", "…", "[", ".json", " ", "\x7f")
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"host": "["},
    {"host": "127.0.0.1:99999999"},
    {"host": "a b"},
    {"host": "127.0.0.1@evil"},
    {"cookie": "schedd_session=\xff; schedd_flash=a.b; schedd_console=\xff|\xff"},
    {"cookie": "schedd_flash=" + "A" * 5000 + ".x; =; ;;"},
    {"cookie": "schedd_flash=e30.\xe9; schedd_console=dark|../../etc/passwd"},
    {"if-none-match": "\xff" * 300, "last-event-id": "x"},
    {"authorization": "Bearer \xff"},
    {"authorization": "Basic ====", "content-type": "\xff", "accept": "\xff"},
)
QUERIES = (
    "&".join(f"a{n}=1" for n in range(1000)),
    "q=" + "x" * 40_000,
    "at=%00&q=%00",
    "cursor=%ff&limit=%ff",
    "q=%ff%fe",
    "t=%ff",
    "fragment=1&q=%00",
)
BODIES = (
    b"reason=%00&to=%00&name=" + LONG.encode(),
    b'{"reason": "\\ud800", "name": "\\u0000"}',
    b"[" * 5_000,
    b"\xff\xfe=\xff&&&===",
)


def odd_requests(route: Route, task_id: int) -> Iterator[tuple[str, dict[str, str], bytes | None]]:
    """Paths with their query, headers, bodies: each oddity by itself."""
    plain = re.sub(r"\{\w+:int\}", str(task_id), route.path)
    names = [re.sub(r"\{\w+(:path)?\}", lambda _: odd, plain) for odd in ODD]  # noqa: B023
    body = b"reason=x" if route.method == "POST" else None
    if plain != route.path:
        names += [re.sub(r"\{\w+:int\}", "9" * 5000, route.path)]
    for path in names if "{" in plain else [plain, *names[len(ODD) :]]:
        yield path, {}, body
    path = names[0]
    for headers in HEADERS:
        yield path, headers, body
    for query in QUERIES:
        yield f"{path}?{query}", {}, body
    for one in BODIES if route.method == "POST" else ():
        kind = "application/json" if one[:1] in b"[{" else "application/x-www-form-urlencoded"
        yield path, {"content-type": kind}, one


def test_no_request_is_an_error_of_the_console(database: Database, jobs: Scheduler) -> None:
    """Each route with odd names, and with each odd header, query and body."""
    made = int(jobs.task(Mail, "ada").schedule())
    form = {**ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    wrong = []
    with console_on(database) as gate:
        for route in routes.ROUTES:
            for path, headers, body in odd_requests(route, made):
                given = {**(form if route.method == "POST" else {}), **headers}
                status = ask(gate, route.method, path, headers=given, body=body).status
                if status >= 500:
                    wrong.append(f"{status} {route.method} {path[:70]!r} {headers} {(body or b'')[:30]!r}")
    assert not wrong, "\n".join(wrong[:40])


@one_database
def test_a_file_with_an_odd_name_is_not_there_for_nobody(database: Database) -> None:
    with console_on(database, lambda scope: None) as gate:
        for name in ("x" * 300, "x" * 5000, "a\0b", "..", "", "a/b", "console.css.json", "é"):
            assert ask(gate, "GET", f"/static/{name}").status in (400, 401, 404), name
        assert ask(gate, "GET", "/static/" + "x" * 300).status == 404
        assert ask(gate, "GET", "/static/console.css").status == 200

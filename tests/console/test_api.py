"""The API for machines: its table beside roles and its description, each verb on a real server, refusals, oddities."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from test_desk import OPERATIONS

from scheduler import Scheduler
from scheduler.config.model import ApiSection, Config, ConsoleSection, StoreSection
from scheduler.console import app, principal
from scheduler.console.api import arguments
from scheduler.console.api.table import DOCUMENT, LEFT_OUT, PREFIX, ROUTES, ApiRoute, document
from scheduler.console.auth import hash_password, hash_token
from scheduler.console.gate import Gate
from scheduler.console.roles import Verb
from scheduler.console.serve import ConsoleServer
from scheduler.errors import ConfigError
from support.consoles import Answer, ask, link, serving
from support.databases import Database, one_database
from support.filled import Filled, fill

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "http-api.md"
JSON = {"content-type": "application/json"}
ON = ApiSection(enabled=True)


@pytest.fixture
def full(database: Database) -> Filled:
    return fill(database.url)


def mounted(url: str, role: str = "admin", **settings: Any) -> Gate:
    """A mounted console with an API, in which the caller has a role."""
    console = ConsoleSection(**settings)
    return app(Scheduler(url), lambda scope: principal("ci", role), settings=console, config=Config(api=ON))


@pytest.fixture
def gate(full: Filled) -> Iterator[Gate]:
    made = mounted(full.url)
    yield made
    made.close()
    made.site.jobs.close()


def call(gate: Gate, path: str, given: Any = None, **headers: str) -> Answer:
    """GET a path, or POST arguments to it."""
    if given is None:
        return ask(gate, "GET", PREFIX + path, headers=headers)
    return ask(gate, "POST", PREFIX + path, headers={**JSON, **headers}, body=msgspec.json.encode(given))


def done(gate: Gate, path: str, given: Any = None) -> Any:
    found = call(gate, path, given)
    assert found.status == 200, (path, given, found.text)
    return found.json


# The table


def test_each_operation_of_a_role_is_a_route_or_left_out() -> None:
    reached = {name: route.verb for route in ROUTES for name in route.operations}
    assert not set(reached) & set(LEFT_OUT)
    assert set(reached) | set(LEFT_OUT) == {name for names in OPERATIONS.values() for name in names}
    assert all(name in OPERATIONS[verb] for name, verb in reached.items())
    for route in ROUTES:
        assert (route.method == "GET") is (route.verb is Verb.LOOK), route.path
        assert bool(route.operations) is (route.method == "POST" and not route.path.startswith("/bulks/")), route.path
        assert issubclass(route.args, arguments.Act) is (route.method == "POST"), "each change takes a reason"
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_the_description_is_of_the_table() -> None:
    from jsonschema import Draft202012Validator  # takes three seconds of whoever collects the tests

    found = document("/schedd")
    assert (found["openapi"], found["servers"]) == ("3.1.0", [{"url": "/schedd"}])
    described = {
        (method.upper(), path): made["x-role-verb"]
        for path, of in found["paths"].items()
        for method, made in of.items()
    }
    table = {(one.method, PREFIX + one.path.replace(":int", "")): one.verb.value for one in ROUTES}
    assert described == {**table, ("GET", PREFIX + DOCUMENT): "look"}
    answers = [
        made["responses"]["200"]["content"]["application/json"]["schema"]
        for of in found["paths"].values()
        for made in of.values()
    ]
    assert all("items" in one for one in answers if one.get("type") == "array"), "generators leave out such an answer"
    ids = [made["operationId"] for of in found["paths"].values() for made in of.values()]
    assert len(set(ids)) == len(ids)
    text = msgspec.json.encode(found).decode()
    for ref in set(re.findall(r'"\$ref":"#/components/([^"]+)"', text)):
        room, name = ref.split("/")
        assert name in found["components"][room]
    for schema in found["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    cancel = found["components"]["schemas"]["Cancel"]
    assert cancel["additionalProperties"] is False
    assert set(cancel["properties"]) == set(arguments.Cancel.__struct_fields__)
    assert all(made["summary"].endswith(".") for of in found["paths"].values() for made in of.values())
    for path, of in found["paths"].items():  # generators of clients leave a list out whose items are not described
        for made in of.values():
            answer = made["responses"]["200"]["content"]["application/json"]["schema"]
            assert answer.get("type") != "array" or answer["items"], path


def test_the_guide_has_the_table() -> None:
    told = GUIDE.read_text(encoding="utf-8")
    for route in ROUTES:
        path = re.sub(r"^/bulks/(plan|start|stop)/\w+$", r"/bulks/\1/VERB", route.path.replace(":int", ""))
        verb = "the verb's own" if path.endswith("VERB") else route.verb.value
        given = ", ".join(f"`{name}`" for name in route.args.__struct_fields__ if name != "reason")
        assert f"| `{route.method} {path}` | {verb} | {given or '–'} |" in told


# Looking


@pytest.mark.both_databases
def test_each_route_that_looks(full: Filled, gate: Gate) -> None:
    for route in ROUTES:
        if route.method == "GET":
            path = route.path.replace("{id:int}", str(full.dead)).replace("{name}", full.bulk)
            text = call(gate, path)
            assert text.status == 200, (path, text.text)
            assert text.headers["content-type"] == "application/json"
            for secret in ("hunter2", "secret-of-url", "a-token-of-ours", "Bearer abcdef"):
                assert secret not in text.text, f"{path} shows {secret}"
    assert done(gate, DOCUMENT)["openapi"] == "3.1.0"
    assert ask(gate, "HEAD", f"{PREFIX}/status").status == 200


@pytest.mark.both_databases
def test_tasks_are_paged_and_filtered(full: Filled, gate: Gate) -> None:
    seen, path = list[int](), "/tasks?limit=10&filter=queue:photos"
    while True:
        page = done(gate, path)
        seen += [one["id"] for one in page["tasks"]]
        if page["cursor"] is None:
            break
        path = f"/tasks?limit=10&filter=queue:photos&cursor={page['cursor']}"
    assert len(seen) == len(set(seen)) == 30
    assert [one["id"] for one in done(gate, "/tasks?filter=state:dead+kind:Mail")["tasks"]] == [full.dead]
    shown = done(gate, f"/tasks/{full.dead}")
    assert (shown["state"], shown["payload"]["password"]) == ("dead", "***")
    assert str(full.dead) in done(gate, f"/tasks/{full.waiting}/why")["why"]
    (group,) = done(gate, "/dead-letters")["groups"]
    assert (group["kind"], group["count"], group["id"]) == ("Mail", 1, full.dead)
    assert [one["id"] for one in done(gate, "/dead-letters?each=true")["tasks"]] == [full.dead]
    assert done(gate, "/audit?action=cancel")["entries"][0]["actor"] == "alice"
    assert done(gate, "/audit?by=nobody") == {"entries": [], "cursor": None}


# Changing


@pytest.mark.both_databases
def test_a_task_is_submitted_changed_cancelled_and_back(full: Filled, gate: Gate) -> None:
    given = {"kind": "Resize", "payload": {"path": "x"}, "key": "k", "after": "1h", "subject": "ada", "retry": 2}
    given |= {"retry_strategy": "fixed", "retry_wait": "5s", "max_duration": "2h"}
    made = done(gate, "/tasks", {**given, "depends_on": [{"id": full.running, "when": "finished"}], "reason": "asked"})
    assert made["created"]
    assert done(gate, "/tasks", given) == {**made, "created": False}
    assert call(gate, "/tasks", {**given, "conflict": "reject"}).status == 409
    task = done(gate, f"/tasks/{made['id']}")
    assert (task["state"], task["subject"], task["max_attempts"]) == ("waiting", "ada", 3)
    assert (task["retry"]["strategy"], task["retry"]["min_wait"]) == ("fixed", 5.0)
    assert "retry_wait belongs to retry" in call(gate, "/tasks", {**given, "retry": None, "key": None}).text
    entry = task["audit"][0]
    assert (entry["action"], entry["actor"], entry["via"], entry["reason"]) == ("submit", "ci", "api", "asked")
    values = {"queue": "slow", "priority": "high", "fields": {"path": "y"}, "retry": 0}
    changed = done(gate, "/tasks/change", {"ids": [made["id"]], **values})
    assert changed["changed"] == [made["id"]]
    task = done(gate, f"/tasks/{made['id']}")
    assert (task["queue"], task["priority"], task["payload"], task["retry"]) == ("slow", "high", {"path": "y"}, None)
    assert done(gate, "/tasks/change", {"ids": [made["id"]], "queue": "slow"})["refused"].keys() == {str(made["id"])}
    would = done(gate, "/tasks/cancel", {"ids": [made["id"]], "dry_run": True})
    assert (would["changed"], would["dry_run"]) == ([made["id"]], True)
    assert done(gate, "/tasks/cancel", {"ids": [made["id"]]})["changed"] == [made["id"]]
    assert done(gate, f"/tasks/{made['id']}")["state"] == "cancelled"
    assert done(gate, f"/tasks/{made['id']}/uncancel", {})["changed"] == [made["id"]]
    assert done(gate, f"/tasks/{made['id']}")["state"] == "waiting"
    assert call(gate, "/tasks/cancel", {"ids": [made["id"], 10**9]}).status == 404
    assert done(gate, f"/tasks/{made['id']}")["state"] == "waiting", "all or none"


@pytest.mark.both_databases
def test_a_filter_chooses_at_most_so_many(full: Filled, gate: Gate) -> None:
    plan = done(gate, "/tasks/rerun", {"filter": "queue:photos", "dry_run": True})
    assert (len(plan["changed"]), plan["kinds"]) == (30, {"Resize": {"success": 30}})
    again = {"filter": "queue:photos", "limit": 4, "up_to": plan["up_to"], "reason": "once more"}
    some = done(gate, "/tasks/rerun", again)
    assert (len(some["changed"]), some["more"], some["dry_run"]) == (4, True, False)
    entries = done(gate, f"/audit?bulk={some['bulk']}")["entries"]
    assert {(one["action"], one["actor"], one["via"], one["reason"]) for one in entries} == {
        ("rerun", "ci", "api", "once more")
    }
    waits = "queue:photos state:ready,scheduled"
    moved = done(gate, "/tasks/change", {"filter": "queue:photos", "queue": "later"})
    assert sorted(moved["changed"]) == sorted(some["changed"]), waits
    assert sorted(done(gate, "/tasks/cancel", {"filter": "queue:later"})["changed"]) == sorted(some["changed"])
    assert done(gate, "/tasks/retry", {"filter": "queue:later state:cancelled"})["changed"] != []


@pytest.mark.both_databases
def test_dead_letters_are_replayed_and_purged(full: Filled, gate: Gate) -> None:
    assert done(gate, "/dead-letters/replay", {"filter": "kind:Mail", "dry_run": True})["changed"] == [full.dead]
    (copy,) = done(gate, "/dead-letters/replay", {"ids": [full.dead], "copy": True})["changed"]
    assert copy != full.dead
    refused = call(gate, "/dead-letters/purge", {"filter": "kind:Mail"})
    assert (refused.status, "ended:>7d" in refused.json["error"]) == (422, True)
    assert done(gate, "/dead-letters/purge", {"filter": "kind:Mail ended:>1m", "dry_run": True})["bulk"] is None
    assert done(gate, "/dead-letters/purge", {"filter": "kind:Mail ended:>1m"})["changed"] == [full.dead]
    assert call(gate, f"/tasks/{full.dead}").status == 404
    assert call(gate, "/dead-letters/replay", {"ids": [full.dead]}).status == 404


@pytest.mark.both_databases
def test_the_fleet_is_steered(full: Filled, gate: Gate) -> None:
    name = {"name": "nightly"}
    assert done(gate, "/schedules/pause", name)["paused"]
    assert done(gate, "/schedules")[0]["paused"]
    assert not done(gate, "/schedules/resume", name)["paused"]
    made = done(gate, "/schedules/run", name)["id"]
    assert done(gate, f"/tasks/{made}")["schedule"] == "nightly"
    assert done(gate, "/schedules/delete", name) == {"deleted": "nightly"}
    assert call(gate, "/schedules/pause", name).status == 404
    assert done(gate, "/pauses/pause", {"queues": ["etl"], "reason": "full"})["changed"] == ["queue etl"]
    assert {(one["name"], one["by"]) for one in done(gate, "/pauses")} == {("slow", "alice"), ("etl", "ci")}
    assert [one["name"] for one in done(gate, "/pauses/resume", {"queues": ["etl"]})["pauses"]] == ["slow"]
    limit = done(gate, "/limits/set", {"kind": "Mail", "max_concurrency": 3, "rate_limit": "100/min"})
    assert limit["value"] == {"max_concurrency": 3, "rate_limit": "100/min"}
    assert ("kind Mail max_concurrency", 3) in [(one["setting"], one["value"]) for one in done(gate, "/limits")]
    assert done(gate, "/limits/set", {"kind": "Mail", "rate_limit": None})["value"]["rate_limit"] is None
    assert done(gate, "/limits/reset", {"kind": "Mail"})["value"] == {}
    assert call(gate, "/limits/set", {"queue": "etl", "max_per_worker": 1}).status == 422
    assert call(gate, "/limits/set", {"kind": "Mail", "slots": 1}).status == 422
    assert done(gate, "/events", {"name": "paid:7", "payload": {"token": "t0p"}})["first"]
    assert not done(gate, "/events", {"name": "paid:7", "payload": 2})["first"]
    assert "t0p" not in call(gate, "/events").text
    assert call(gate, "/workers/drain", {"id": 10**6}).status == 404
    assert {one["queue"] for one in done(gate, "/queues")} >= {"default", "slow"}


@pytest.mark.both_databases
def test_a_bulk_is_planned_started_and_undone(full: Filled, gate: Gate) -> None:
    plan = done(gate, "/bulks/plan/cancel", {"filter": f"id:{full.scheduled}"})
    assert (plan["state"], plan["total"], plan["plan"]["will"]) == ("planned", 1, 1)
    assert call(gate, "/bulks/start/purge", {"name": plan["name"]}).status == 404, "the route has the bulk's verb"
    assert done(gate, "/bulks/start/cancel", {"name": plan["name"], "rate": 100})["state"] in ("running", "done")
    _until(gate, plan["name"])
    assert done(gate, f"/tasks/{full.scheduled}")["state"] == "cancelled"
    assert done(gate, f"/bulks/{plan['name']}")["items"][0]["result"] == "done"
    undo = done(gate, "/bulks/undo/cancel", {"name": plan["name"]})
    _until(gate, undo["name"])
    assert done(gate, f"/tasks/{full.scheduled}")["state"] == "scheduled"
    assert [one["name"] for one in done(gate, "/bulks?limit=2")] == [undo["name"], plan["name"]]
    waits = done(gate, "/bulks/plan/replay", {"ids": [full.dead], "fields": {"to": "a@example.com"}})
    assert call(gate, "/bulks/stop/replay", {"name": waits["name"]}).status in (200, 409)


def _until(gate: Gate, name: str) -> None:
    from support.fleet import until

    until(lambda: done(gate, f"/bulks/{name}")["state"] == "done")


# Refusals


TWICE = [{"id": 1}, {"id": 1, "when": "failure"}]
REFUSED: tuple[tuple[str, Any, int, str | None], ...] = (
    ("/tasks?limit=x", None, 422, "limit"),
    ("/tasks?limit=501", None, 422, "limit"),
    ("/tasks?limit=1&limit=2", None, 422, "limit"),
    ("/tasks?order=kind", None, 422, "query"),
    ("/tasks?filter=no:such", None, 422, None),
    ("/tasks?filter=password=x", None, 403, None),
    ("/tasks/99999999999", None, 404, None),
    ("/tasks/99999999999999999999999", None, 404, None),
    ("/nothing", None, 404, None),
    ("/tasks/cancel", None, 405, None),
    ("/openapi.json", {}, 405, None),
    ("/tasks/cancel", {"ids": ["7"]}, 422, "ids[0]"),
    ("/tasks/cancel", {"ids": []}, 422, "ids"),
    ("/tasks/cancel", {"ids": [True]}, 422, "ids[0]"),
    ("/tasks/cancel", {"ids": [1], "filter": "kind:Mail"}, 422, None),
    ("/tasks/cancel", {}, 422, None),
    ("/tasks/cancel", {"filter": ""}, 422, None),
    ("/tasks/cancel", {"filter": "kind:Mail", "id": 1}, 422, "body"),
    ("/tasks/cancel", [], 422, "body"),
    ("/tasks/cancel", {"filter": "password:=1"}, 403, None),
    ("/tasks/retry", {"ids": [1], "dry_run": True}, 422, None),
    ("/tasks/retry", {"filter": "kind:Mail", "rerun": True}, 422, None),
    ("/tasks/change", {"ids": [1]}, 422, None),
    ("/tasks/change", {"filter": "kind:Mail", "fields": {"to": "***"}}, 422, None),
    ("/tasks/change", {"ids": [1], "at": "2026-01-01T00:00:00"}, 422, "at"),
    ("/tasks", {"kind": "Nothing"}, 422, None),
    ("/tasks", {"payload": {}}, 422, "body"),
    ("/tasks", {"kind": "Resize", "payload": {"path": 1}}, 422, None),
    ("/tasks", {"kind": "Resize", "payload": {"path": "a\0b"}}, 400, None),
    ("/tasks", {"kind": "Resize", "payload": {"path": "x"}, "after": "soon"}, 422, None),
    ("/tasks", {"kind": "Resize", "payload": {"path": "x"}, "depends_on": [{"id": "1"}]}, 422, "depends_on[0].id"),
    ("/tasks", {"kind": "Resize", "payload": {"path": "x"}, "depends_on": TWICE}, 422, None),
    ("/pauses/pause", {}, 422, None),
    ("/bulks/start/cancel", {"name": "none"}, 404, None),
    ("/bulks/plan/replay", {"filter": "kind:Mail", "fields": {"password": "x"}}, 422, None),
)  # fmt: skip


@one_database
def test_what_is_wrong_is_named(gate: Gate) -> None:
    wrong = []
    for path, given, status, where in REFUSED:
        found = call(gate, path, given)
        told = found.json
        if (found.status, told.get("where"), told.get("status")) != (status, where, status) or len(told["error"]) < 10:
            wrong.append(f"{path} {given}: {found.status} {told}")
    assert not wrong, "\n".join(wrong)
    assert (
        "there are high, low, medium." in call(gate, "/tasks", {"kind": "Resize", "priority": "urgent"}).json["error"]
    )
    assert "there are " in call(gate, "/tasks", {"kind": "Resize", "conflict": "error"}).json["error"]
    assert "such as 2026-" in call(gate, "/tasks", {"kind": "Resize", "at": "tomorrow"}).json["error"]
    depends = {"kind": "Resize", "payload": {"path": "x"}, "depends_on": [999]}
    assert (
        'each is an object such as {"id": …}, which may have when, otherwise, name, too'
        in call(gate, "/tasks", depends).json["error"]
    )
    found = call(gate, "/tasks/cancel", {"idz": [1]}).json
    assert "idz" in found["error"]
    assert "POST /api/v1/tasks/cancel takes" in found["error"]
    assert "filter" in found["error"]


@one_database
def test_a_body_is_json_and_bounded(gate: Gate) -> None:
    def to(body: bytes, **headers: str) -> Answer:
        return ask(gate, "POST", f"{PREFIX}/tasks/cancel", body=body, headers={**JSON, **headers})

    assert (to(b"{").status, "truncated" in to(b"{").json["error"]) == (400, True)
    for half in (rb"\ud800", rb"\ud83d and more", rb"\udc00"):
        assert "surrogate pair" in to(b'{"filter": "' + half + b'"}').json["error"]
    assert to(b"\xff").status == 400
    assert to(b"").status == 400
    assert to(b"[" * 100_000).status == 422
    assert to(b'{"filter": "' + b"x" * 2_000_000 + b'"}').status == 413
    form = ask(gate, "POST", f"{PREFIX}/tasks/cancel", form={"filter": "kind:Mail"})
    assert (form.status, "application/json" in form.json["error"]) == (415, True)
    assert ask(gate, "POST", f"{PREFIX}/tasks/cancel").status == 415
    assert ask(gate, "DELETE", f"{PREFIX}/tasks").headers["allow"] == "GET, POST"


@one_database
def test_a_browser_of_another_site_changes_nothing(full: Filled, gate: Gate) -> None:
    given = {"ids": [full.scheduled]}
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert call(gate, "/tasks/cancel", given, **headers).status == 403
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    preflight = ask(gate, "OPTIONS", f"{PREFIX}/tasks/cancel", headers=asked)
    assert preflight.status == 405
    assert not any(name.startswith("access-control") for name in preflight.headers)
    assert call(gate, "/tasks/cancel", given, origin="http://127.0.0.1").status == 200


@one_database
def test_a_role_has_its_verbs_only(full: Filled) -> None:
    for role, verbs in (("viewer", {Verb.LOOK}), ("operator", None)):
        gate = mounted(full.url, role)
        for route in ROUTES:
            path = route.path.replace("{id:int}", "999999").replace("{name}", "none")
            allowed = principal("x", role).may(route.verb)
            found = call(gate, path, None if route.method == "GET" else {"none": 1})
            assert (found.status == 403) is not allowed, (role, path, found.text)
            assert verbs is None or allowed is (route.verb in verbs)
        gate.close()
        gate.site.jobs.close()
    gate = mounted(full.url, read_only=True)
    assert call(gate, "/tasks/cancel", {"ids": [full.scheduled]}).status == 403
    gate.close()
    gate.site.jobs.close()


@one_database
def test_tasks_that_run_commands_want_a_setting(database: Database) -> None:
    from scheduler.tasks.command.task import CommandTask

    with Scheduler.for_testing(url=database.url) as jobs:
        jobs.register(CommandTask)
        made = int(jobs.task(CommandTask(argv=["true"])).after(3600).schedule())
    for allowed in (False, True):
        gate = mounted(database.url, commands=allowed)
        new = {"kind": "CommandTask", "payload": {"argv": ["id"]}}
        assert (call(gate, "/tasks", new).status == 403) is not allowed
        own = {"fields": {"argv": ["id"]}}
        assert (call(gate, "/tasks/change", {"ids": [made], **own}).status == 403) is not allowed
        found = call(gate, "/tasks/change", {"filter": "kind:CommandTask", "fields": {"argv": ["ls"]}})
        assert (found.json["changed"] == []) is not allowed
        assert call(gate, "/tasks/change", {"ids": [made], "queue": "slow"}).status == 200
        gate.close()
        gate.site.jobs.close()


# Callers


def config(database: Database, **console: Any) -> Config:
    return Config(store=StoreSection(url=database.url), console=ConsoleSection(**console), api=ON)


@pytest.mark.both_databases
def test_a_program_asks_a_real_server(full: Filled, database: Database, tmp_path: Path) -> None:
    """Over a connection that stays open, by a token; a browser's cookie is none."""
    users = tmp_path / "users"
    users.write_text(f"ci operator {hash_token('s3cret')}\n")
    with serving(config(database, auth="token", users=str(users))) as server:
        connection = HTTPConnection(urlsplit(server.url).netloc, timeout=30)

        def over(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
            given = {"authorization": "Bearer s3cret", **headers}
            if body is not None:
                given |= JSON
            text = None if body is None else msgspec.json.encode(body)
            connection.request(method, PREFIX + path, text, {k: v for k, v in given.items() if v})
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read())

        assert over("GET", "/tasks?filter=" + quote("state:dead"))[1]["tasks"][0]["id"] == full.dead
        assert over("POST", "/tasks/cancel", {"ids": [full.scheduled], "reason": "wrong"})[0] == 200
        (entry,) = over("GET", "/audit?action=cancel&by=token:ci")[1]["entries"]
        assert (entry["task_id"], entry["via"], entry["reason"]) == (full.scheduled, "api", "wrong")
        assert over("GET", "/status", authorization="")[0] == 401
        assert over("GET", "/status", authorization="Bearer wrong")[0] == 401
        assert over("POST", "/tasks", {"kind": "Resize"})[0] == 403, "an operator submits nothing"
        form = {"token": "s3cret"}
        opened = ask(server.gate, "POST", "/login", headers={"origin": "http://127.0.0.1"}, form=form)
        cookie = opened.cookies[0].partition(";")[0]
        assert ask(server.gate, "GET", "/tasks.json", headers={"cookie": cookie}).status == 200
        assert over("GET", "/tasks", authorization="", cookie=cookie)[0] == 401
        assert over("GET", "/status", host="evil.example")[0] == 421
        connection.close()


@one_database
def test_a_password_and_a_proxy_open_it(full: Filled, database: Database, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ada viewer {hash_password('s3cret')}\n")
    basic = {"authorization": "Basic " + base64.b64encode(b"ada:s3cret").decode()}
    with serving(config(database, auth="basic", users=str(users))) as server:
        assert call(server.gate, "/status", **basic).status == 200
        assert call(server.gate, "/status").headers["www-authenticate"].startswith("Basic")
    behind = config(database, auth="proxy", trusted_proxies=("127.0.0.1",), groups=("* = operator",))
    with serving(behind) as server:
        assert (
            call(server.gate, "/tasks/cancel", {"ids": [full.scheduled]}, **{"x-forwarded-user": "eve"}).status == 200
        )
        assert done_by(database) == "eve (proxy)"
        assert call(server.gate, "/status").status == 401


def done_by(database: Database) -> str | None:
    with Scheduler(database.url) as jobs:
        return jobs.audit(action="cancel")[0].actor


@one_database
def test_it_is_off_and_a_link_does_not_open_it(database: Database) -> None:
    with serving(Config(store=StoreSection(url=database.url))) as server:
        opened = ask(server.gate, "GET", "/" + link(server).rpartition("/")[2])
        cookie = opened.cookies[0].partition(";")[0]
        assert ask(server.gate, "GET", f"{PREFIX}/status").status == 401
        off = ask(server.gate, "GET", f"{PREFIX}/status", headers={"cookie": cookie})
        assert (off.status, off.json["status"]) == (404, 404)
    with pytest.raises(ConfigError, match=r"\[console\] auth"):
        ConsoleServer(config(database), "127.0.0.1:0", tell=lambda url: None)


@one_database
def test_a_crowd_of_calls_is_told_to_come_again(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.console.api.requests.MAX_CALLS", 0)
    found = call(gate, "/status")
    assert (found.status, found.headers["retry-after"], found.json["status"]) == (503, "1", 503)


# Oddities


ODD: tuple[Any, ...] = (
    *("", "x" * 300, "x" * 5000, "a\0b", "[", "-1", "NaN", "***", "2026-01-01", "9999-12-31T23:59:59Z", "kind:*"),
    *(None, True, -1, 0, 2**63 - 1, 10**30, 1.5, 1e308, [1], {"a": {"b": [None]}}),
)
RIGHT: dict[str, Any] = {"filter": "kind:Mail", "name": "nightly", "id": 1, "kind": "Resize"}
UNLIKE = {route.summary: route for route in ROUTES}  # bulks have a route for each of their verbs


def odd_calls(route: ApiRoute, path: str) -> Iterator[tuple[str, Any]]:
    """Paths with arguments: each oddity by itself, beside arguments that are right."""
    fields = route.args.__struct_fields__
    if "{" in route.path:
        for odd in ODD:
            yield re.sub(r"\{\w+(:int)?\}", quote(str(odd)[:300]), route.path), None if route.method == "GET" else {}
    if route.method == "GET":
        yield from ((f"{path}?{name}={quote(str(odd))}", None) for name in fields for odd in ODD)
        yield f"{path}?a=%00", None
        yield f"{path}?{fields[0] if fields else 'a'}=%ff", None
        yield f"{path}?{'&'.join(f'a{n}=1' for n in range(999))}", None
        return
    usual = {name: value for name, value in RIGHT.items() if name in fields}
    by_id = {"ids": [1]} if "ids" in fields and "filter" in fields else None
    for odd in ODD:
        yield path, odd if odd is not None else {}
        for name in fields:
            yield path, {**usual, name: odd}
            if by_id is not None and name in ("at", "after", "timeout", "payload", "fields", "headers", "retry"):
                yield path, {**by_id, name: odd}


@one_database
def test_no_call_is_an_error_of_the_server(full: Filled, gate: Gate) -> None:
    wrong = []
    for route in UNLIKE.values():
        path = route.path.replace("{id:int}", str(full.dead)).replace("{name}", full.bulk)
        for where, given in odd_calls(route, path):
            found = call(gate, where, given)
            if found.status >= 500 or (found.status >= 400 and not 10 <= len(found.json["error"]) < 4000):
                wrong.append(f"{found.status} {route.method} {where[:90]!r} {given!r:.90}: {found.text[:90]}")
    assert not wrong, "\n".join(wrong[:40])


HEADERS: tuple[dict[str, str], ...] = (
    {"host": "["},
    {"cookie": "schedd_session=\xff; schedd_console=\xff|\xff"},
    {"authorization": "Bearer \xff"},
    {"authorization": "Basic ===="},
    {"content-type": "\xff"},
    {"content-type": "application/json; charset=\xff"},
    {"accept": "\xff", "origin": "\xff"},
)


@one_database
def test_no_header_is_an_error_of_the_server(gate: Gate) -> None:
    for headers in HEADERS:
        assert call(gate, "/tasks/cancel", {"ids": [1]}, **headers).status < 500, headers
    for path in ("/api", "/api/", PREFIX, f"{PREFIX}/", "/api/v2/tasks", f"{PREFIX}//tasks", f"{PREFIX}/tasks/"):
        assert ask(gate, "GET", path).json["status"] in (400, 404), path

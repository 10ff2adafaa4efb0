"""What attacked other consoles, each refused here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import PermanentError, Scheduler, task
from scheduler.config.model import Config, ConsoleSection, StoreSection
from scheduler.console.gate import Gate
from scheduler.console.inputs import MAX_BODY
from scheduler.console.security import Peers
from scheduler.console.serve import ConsoleServer
from scheduler.errors import ConfigError
from scheduler.testing import drain
from support.consoles import ORIGIN, ask, console_on, link, post, served
from support.databases import Database, one_database

pytestmark = one_database
FORM = "application/x-www-form-urlencoded"


@task
def Mail(ctx: Any, to: str, password: str = "") -> None: ...


@pytest.fixture
def gate(database: Database) -> Iterator[Gate]:
    with console_on(database) as made:
        yield made


@pytest.fixture
def task_id(database: Database) -> int:
    jobs = Scheduler(database.url)
    jobs.register(Mail)
    made = int(jobs.task(Mail, "ada@example.com", password="hunter2").schedule())
    jobs.close()
    return made


def state(database: Database, task_id: int) -> str:
    jobs = Scheduler(database.url)
    try:
        return str(jobs.get_task_status(task_id))
    finally:
        jobs.close()


# Cross-site requests


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {},
    ],
    ids=lambda headers: " ".join(headers.values()) or "no header",
)
def test_a_form_of_another_site_changes_nothing(
    database: Database, gate: Gate, task_id: int, headers: dict[str, str]
) -> None:
    answer = ask(gate, "POST", f"/tasks/{task_id}/cancel", form={}, headers=headers)
    assert answer.status == 403
    assert state(database, task_id) == "scheduled"


def test_what_no_form_can_be_is_refused(database: Database, gate: Gate, task_id: int) -> None:
    """A page of another site may send text/plain without asking first."""
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/xml", ""):
        answer = ask(
            gate, "POST", f"/tasks/{task_id}/cancel", body=b'{"a": "="}', headers={**ORIGIN, "content-type": kind}
        )
        assert answer.status == 415, kind
    assert state(database, task_id) == "scheduled"


def test_no_get_changes_anything(database: Database, gate: Gate, task_id: int) -> None:
    assert ask(gate, "GET", f"/tasks/{task_id}/retry").status == 405
    assert ask(gate, "GET", f"/tasks/{task_id}/cancel?cascade=1").status == 200  # the plan
    assert state(database, task_id) == "scheduled"


def test_no_answer_opens_itself_to_other_sites(gate: Gate, task_id: int) -> None:
    for method, path in (("GET", "/"), ("GET", "/tasks.json"), ("OPTIONS", "/tasks"), ("GET", "/static/console.css")):
        headers = ask(gate, method, path, headers={"origin": "http://evil.example"}).headers
        assert not [name for name in headers if name.startswith("access-control")]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    assert ask(gate, "GET", "/").headers["cache-control"] == "no-store"


# Names and addresses


def test_a_name_that_leads_here_by_dns_is_refused(database: Database) -> None:
    with served(database) as server:
        gate = server.gate
        for host in ("evil.example", "evil.example:8321", "127.0.0.1.evil.example", ""):
            assert ask(gate, "GET", "/", headers={"host": host}).status == 421, host
        for host in ("127.0.0.1:8321", "localhost", "[::1]:8321", "10.1.2.3"):
            assert ask(gate, "GET", "/", headers={"host": host}).status == 401, host


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:8321", "[::]:8321", "jobs.example.com:80"])
def test_an_address_that_others_reach_wants_an_auth(database: Database, listen: str) -> None:
    config = Config(store=StoreSection(url=database.url))
    with pytest.raises(ConfigError, match=r"\[console\] auth"):
        ConsoleServer(config, listen, tell=print)


# Who asks


def test_a_link_is_good_for_one_use(database: Database) -> None:
    with served(database) as server:
        gate = server.gate
        token = link(server).partition("?t=")[2]
        first = ask(gate, "GET", f"/?t={token}")
        assert first.status == 303
        (cookie,) = first.cookies
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ask(gate, "GET", f"/?t={token}").status == 401
        assert ask(gate, "GET", "/", headers={"cookie": cookie.partition(";")[0]}).status == 200
        forged = cookie.partition(";")[0][:-1] + ("0" if cookie.partition(";")[0][-1] != "0" else "1")
        assert ask(gate, "GET", "/", headers={"cookie": forged}).status == 401


def test_a_loopback_address_is_no_reason_for_trust(database: Database) -> None:
    """Other users of the machine reach it, and so does a proxy on it."""
    with served(database) as server:
        for path in ("/", "/tasks.json", "/tasks/1/log/follow", "/tasks?fragment=1"):
            assert ask(server.gate, "GET", path).status == 401
            assert ask(server.gate, "GET", path, headers={"x-forwarded-user": "root"}).status == 401


def test_failures_are_counted_and_keep_out_nobody_who_is_right(database: Database) -> None:
    with served(database) as server:
        for _ in range(5):
            assert ask(server.gate, "GET", "/?t=guess").status == 401
        assert ask(server.gate, "GET", "/?t=guess").status == 429
        assert ask(server.gate, "GET", "/?t=guess", client=("192.0.2.9", 5)).status == 401
        good = link(server).partition("?t=")[2]
        assert ask(server.gate, "GET", f"/?t={good}").status == 303


# Secrets


def test_a_masked_value_is_neither_shown_searched_nor_stored(database: Database, gate: Gate, task_id: int) -> None:
    for path in (f"/tasks/{task_id}", f"/tasks/{task_id}.json", "/tasks.json", "/tasks", f"/tasks/{task_id}/log"):
        assert "hunter2" not in ask(gate, "GET", path).text, path
    oracle = ask(gate, "GET", "/tasks?q=payload.password:hunter2")
    assert oracle.status == 403
    assert "is masked" in oracle.text
    stored = post(gate, f"/tasks/{task_id}/patch.json", field="password", value="***")
    assert stored.status == 422
    jobs = Scheduler(database.url)
    assert "hunter2" in (jobs.get_task(task_id).payload or "")
    jobs.close()


def test_a_secret_is_revealed_once_and_recorded(database: Database, gate: Gate, task_id: int) -> None:
    assert "hunter2" in post(gate, f"/tasks/{task_id}/reveal").text
    jobs = Scheduler(database.url)
    entry = jobs.audit(task_id)[0]
    assert (entry.action, entry.actor, entry.via) == ("reveal", "ada", "page")
    jobs.close()
    with console_on(database, "operator") as other:
        assert post(other, f"/tasks/{task_id}/reveal").status == 403


# Input


def test_a_body_too_long_is_refused(gate: Gate, task_id: int) -> None:
    headers = {**ORIGIN, "content-type": FORM}
    answer = ask(gate, "POST", f"/tasks/{task_id}/cancel", body=b"a=" + b"b" * MAX_BODY, headers=headers)
    assert answer.status == 413


def test_a_form_of_too_many_fields_is_refused(gate: Gate, task_id: int) -> None:
    headers = {**ORIGIN, "content-type": FORM}
    assert ask(gate, "POST", f"/tasks/{task_id}/cancel", body=b"a=1&" * 20_000, headers=headers).status == 415


@pytest.mark.parametrize(
    "path",
    [
        "/static/../gate.py",
        "/static/..%2fgate.py",
        "/static/.hidden",
        "/tasks/../../etc/passwd",
        "/tasks/1e9",
        "/tasks/-1",
        "/tasks/99999999999999999999999999",
        "/tasks?cursor=-1",
        "/tasks?limit=100000000",
        "/tasks?q=state:<script>alert(1)</script>",
        "/tasks?q=" + "kind:a%20" * 200,
        "/?at=yesterday",
    ],
)
def test_odd_paths_and_queries_are_refused_without_an_echo_of_code(gate: Gate, path: str) -> None:
    answer = ask(gate, "GET", path)
    assert 400 <= answer.status < 500
    assert "<script>alert" not in answer.text
    assert "Traceback" not in answer.text


def test_a_filter_is_escaped_where_it_is_shown(gate: Gate) -> None:
    assert "<img" not in ask(gate, "GET", "/tasks?q=kind:%22><img%20src=x>").text


def test_a_way_back_leads_to_no_other_site(gate: Gate, task_id: int) -> None:
    for to in ("https://evil.example/", "//evil.example/", "/\\evil.example"):
        answer = post(gate, f"/tasks/{task_id}/retry", next=to)
        assert answer.headers["location"] == "/", to
        assert post(gate, "/preferences", zone="UTC", next=to).headers["location"] == "/"


def test_commands_are_not_made_from_the_pages(database: Database) -> None:
    from scheduler.tasks.command.task import CommandTask

    jobs = Scheduler(database.url)
    jobs.register(CommandTask)
    made = int(jobs.task(CommandTask(argv=["true"])).schedule())
    jobs.close()
    with console_on(database, "admin") as gate:
        assert post(gate, f"/tasks/{made}/copy.json").status == 403
        assert post(gate, f"/tasks/{made}/patch.json", field="argv", value='["id"]', **{"as": "json"}).status == 403


def test_a_bulk_sets_no_field_of_tasks_that_run_commands(database: Database) -> None:
    @task(kind="CommandTask")
    def Run(ctx: Any, argv: list[str]) -> None:
        raise PermanentError("no such program")

    jobs = Scheduler.for_testing(url=database.url)
    jobs.register(Run)
    jobs.task(Run, ["true"]).schedule()
    drain(jobs)
    jobs.close()
    form = {"matching": "1", "q": "state:dead", "kind": "CommandTask", "field": "argv", "value": '["id"]'}
    for allowed in (False, True):
        with console_on(database, "operator", commands=allowed) as gate:
            assert post(gate, "/bulks/plan/replay.json", **form).json["data"]["total"] == allowed


def test_an_error_of_the_program_shows_nothing_of_it(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.console.pages.tasks.search", lambda *given, **more: 1 / 0)
    answer = ask(gate, "GET", "/tasks")
    assert answer.status == 500
    assert "ZeroDivisionError" not in answer.text


def test_more_requests_at_once_than_there_is_room_for(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.console.gate.MAX_REQUESTS", 0)
    with console_on(database) as gate:
        assert ask(gate, "GET", "/").status == 503


# Sockets and proxies


def test_a_unix_socket_says_who_is_at_its_other_end(database: Database, tmp_path: Path) -> None:
    import getpass

    path = tmp_path / "c.sock"
    with served(database, listen=f"unix:{path}"):
        assert path.stat().st_mode & 0o777 == 0o660

        def get(extra: str = "") -> str:
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(str(path))
                end.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{extra}Connection: close\r\n\r\n".encode())
                return b"".join(iter(lambda: end.recv(65536), b"")).decode()

        assert f"os:{getpass.getuser()}" in get()
        assert " 401 " in get("X-Forwarded-For: 10.0.0.9\r\n").splitlines()[0]
    assert not path.exists()


def proxy(database: Database, **more: Any) -> Any:
    settings = {
        "auth": "proxy",
        "trusted_proxies": ("10.0.0.7",),
        "groups": ("ops = operator", "* = viewer"),
        "hosts": ("jobs.example.com",),
        **more,
    }
    return served(database, **settings)


def test_a_header_counts_from_a_trusted_proxy_only(database: Database, task_id: int) -> None:
    asked = {"host": "jobs.example.com", "x-forwarded-user": "ada"}
    with proxy(database) as server:
        gate = server.gate
        assert ask(gate, "GET", "/", headers=asked).status == 401
        assert ask(gate, "GET", "/", headers=asked, client=("10.0.0.70", 1)).status == 401
        shown = ask(gate, "GET", "/", headers=asked, client=("10.0.0.7", 1))
        assert shown.status == 200
        assert "ada (proxy)" in shown.text
        sent = {**asked, "sec-fetch-site": "same-origin"}
        retry = f"/tasks/{task_id}/retry"
        assert ask(gate, "POST", retry, headers=sent, form={}, client=("10.0.0.7", 1)).status == 403
        ops = {**sent, "x-forwarded-groups": "users,ops"}
        assert ask(gate, "POST", retry, headers=ops, form={}, client=("10.0.0.7", 1)).status == 303
        like = {**sent, "x-forwarded-groups": "ops-of-another-team, xops"}
        assert ask(gate, "POST", retry, headers=like, form={}, client=("10.0.0.7", 1)).status == 403


def test_a_proxy_may_have_to_know_a_secret(database: Database) -> None:
    asked = {"host": "jobs.example.com", "x-forwarded-user": "ada"}
    with proxy(database, proxy_secret="long and random") as server:
        peer = ("10.0.0.7", 1)
        assert ask(server.gate, "GET", "/", headers=asked, client=peer).status == 401
        wrong = {**asked, "x-schedd-proxy-secret": "long"}
        assert ask(server.gate, "GET", "/", headers=wrong, client=peer).status == 401
        right = {**asked, "x-schedd-proxy-secret": "long and random"}
        assert ask(server.gate, "GET", "/", headers=right, client=peer).status == 200


def test_a_prefix_counts_from_a_trusted_proxy_only(database: Database) -> None:
    asked = {"host": "jobs.example.com", "x-forwarded-user": "ada", "x-forwarded-prefix": "/schedd"}
    with proxy(database) as server:
        shown = ask(server.gate, "GET", "/", headers=asked, client=("10.0.0.7", 1)).text
        assert 'href="/schedd/static/console.css"' in shown
        odd = {**asked, "x-forwarded-prefix": "//evil.example"}
        assert "evil.example" not in ask(server.gate, "GET", "/", headers=odd, client=("10.0.0.7", 1)).text
    with console_on(database) as gate:
        shown = ask(gate, "GET", "/", headers={"x-forwarded-prefix": "/schedd"}).text
        assert 'href="/static/console.css"' in shown
        assert 'href="/jobs/static/console.css"' in ask(gate, "GET", "/", root_path="/jobs").text


def test_settings_that_do_not_fit(database: Database) -> None:
    for settings, message in (
        ({"auth": "proxy"}, "trusted_proxies"),
        ({"auth": "proxy", "trusted_proxies": ("unix",)}, "groups"),
        ({"auth": "proxy", "trusted_proxies": ("unix",), "groups": ("ops: admin",)}, "group = role"),
        ({"auth": "token"}, "users"),
        ({"auth": "local"}, "Unix socket"),
        ({"roles": ("oncall = fly",)}, "no verb fly"),
    ):
        config = Config(store=StoreSection(url=database.url), console=ConsoleSection(**settings))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            ConsoleServer(config, "127.0.0.1:0", tell=print)
    with pytest.raises(ConfigError, match="no network"):
        Peers(["example.com"])

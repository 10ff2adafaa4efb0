"""Sessions of the console: shared, kept over a restart, and over for good after a log-out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.console import sessions
from scheduler.console.auth import hash_token
from scheduler.operations import console
from scheduler.ports import SECOND
from scheduler.store import views as stored
from scheduler.store.db.database import Database as Store
from scheduler.testing import FakeClock
from support.consoles import ORIGIN, ask, link, served
from support.databases import Database


@pytest.fixture
def users(tmp_path: Path) -> str:
    path = tmp_path / "users"
    path.write_text(f"ci operator {hash_token('s3cret')}\n")
    return str(path)


def logged_in(gate: Any) -> dict[str, str]:
    opened = ask(gate, "POST", "/login", headers=ORIGIN, form={"token": "s3cret"})
    assert opened.status == 303, opened.text
    return {"cookie": opened.cookies[0].partition(";")[0]}


def status(gate: Any, cookie: dict[str, str]) -> int:
    return ask(gate, "GET", "/", headers=cookie).status


def log_out(gate: Any, cookie: dict[str, str]) -> None:
    assert ask(gate, "POST", "/logout", headers={**ORIGIN, **cookie}).status == 303


def test_a_restart_and_another_console_know_it(database: Database, users: str) -> None:
    with served(database, auth="token", users=users) as first, served(database, auth="token", users=users) as second:
        cookie = logged_in(first.gate)
        assert status(second.gate, cookie) == 200
    with served(database, auth="token", users=users) as restarted:
        assert status(restarted.gate, cookie) == 200
        assert status(restarted.gate, {"cookie": f"{sessions.COOKIE}=made-up"}) == 401


def test_a_made_up_cookie_costs_no_read_of_the_store(
    database: Database, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(console, "user_of", lambda _desk, session: read.append(session))
    monkeypatch.setattr(console, "end", lambda _desk, session: read.append(session))
    with served(database, auth="token", users=users) as server:
        value = logged_in(server.gate)["cookie"].partition("=")[2]
        head, _, mark = value.partition(".")
        for forged in (
            "made-up",
            f"{'A' * 43}.{mark}",
            f"{head}.{'0' * 64}",
            f"{head}.",
            head,
            f"{value}0",
            "\xe9.\xe9",
        ):
            cookie = {"cookie": f"{sessions.COOKIE}={forged}"}
            assert status(server.gate, cookie) == 401, forged
            ask(server.gate, "POST", "/logout", headers={**ORIGIN, **cookie})
        assert not read
        assert status(server.gate, {"cookie": f"{sessions.COOKIE}={value}"}) == 401
        assert len(read) == 1, "what was signed here is asked for"


def test_after_a_log_out_a_copy_of_its_cookie_is_worth_nothing(
    database: Database, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOOKED_UP_SECONDS", 0.0)
    with served(database, auth="token", users=users) as first, served(database, auth="token", users=users) as second:
        cookie, other = logged_in(first.gate), logged_in(first.gate)
        assert status(second.gate, cookie) == 200
        log_out(first.gate, cookie)
        assert [status(server.gate, cookie) for server in (first, second)] == [401, 401]
        assert status(second.gate, other) == 200, "the same user's session elsewhere goes on"


def test_a_link_opens_a_session_of_this_process_which_a_log_out_ends(database: Database) -> None:
    with served(database) as server:
        opened = ask(server.gate, "GET", f"/?{link(server).partition('?')[2]}")
        cookie = {"cookie": opened.cookies[0].partition(";")[0]}
        assert status(server.gate, cookie) == 200
        log_out(server.gate, cookie)
        assert status(server.gate, cookie) == 401


def test_sessions_that_are_over_are_removed(database: Database) -> None:
    clock = FakeClock()
    store = Store(database.url, clock)
    store.change(lambda tx: stored.begin(tx, "a", "ada", 60 * SECOND))
    with store.read() as tx:
        assert stored.user_of(tx, "a") == "ada"
    clock.advance(60)
    with store.read() as tx:
        assert stored.user_of(tx, "a") is None
    store.change(lambda tx: stored.begin(tx, "b", "eve", 60 * SECOND))
    with store.read() as tx:
        assert [row.id for row in tx.run("SELECT id FROM schedd_console_sessions")] == ["b"]
    store.dispose()


def test_what_is_stored_opens_nothing(database: Database, users: str) -> None:
    """Who reads the database has hashes, and no cookie."""
    with served(database, auth="token", users=users) as server:
        value = logged_in(server.gate)["cookie"].partition("=")[2]
        with server.jobs.database.read() as tx:
            (kept,) = tx.run("SELECT id FROM schedd_console_sessions").fetchall()
        assert value not in kept.id
        assert status(server.gate, {"cookie": f"{sessions.COOKIE}={kept.id}"}) == 401

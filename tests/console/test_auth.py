"""Tokens, passwords and roles of the users file."""

from __future__ import annotations

import base64
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from starlette.requests import Request

from scheduler.console import auth
from scheduler.console.auth import SLOW_SECONDS, hash_password, hash_token
from scheduler.console.roles import read_roles
from scheduler.console.security import Peer
from scheduler.errors import ConfigError
from support.consoles import ORIGIN, ask, served
from support.databases import Database, one_database

pytestmark = one_database


def users(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "users"
    path.write_text("# who may\n" + "\n".join(lines) + "\n")
    return str(path)


def test_a_token_opens_by_header_and_by_the_log_in(database: Database, tmp_path: Path) -> None:
    path = users(tmp_path, f"ci operator {hash_token('s3cret')}", f"eve viewer {hash_token('other')}")
    with served(database, auth="token", users=path) as server:
        gate = server.gate
        refused = ask(gate, "GET", "/")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert 'name="token"' in refused.text
        bearer = {"authorization": "Bearer s3cret"}
        assert "token:ci" in ask(gate, "GET", "/", headers=bearer).text
        assert ask(gate, "POST", "/tasks/1/retry.json", headers=bearer, form={}).status == 404  # no origin is needed
        assert ask(gate, "GET", "/", headers={"authorization": "Bearer wrong"}).status == 401
        opened = ask(gate, "POST", "/login", headers=ORIGIN, form={"token": "s3cret"})
        cookie = {"cookie": opened.cookies[0].partition(";")[0]}
        assert "token:ci" in ask(gate, "GET", "/", headers=cookie).text
        assert ask(gate, "POST", "/tasks/1/retry", headers=cookie, form={}).status == 403  # a cookie needs an origin
        assert (
            ask(gate, "POST", "/login", headers={"origin": "http://evil.example"}, form={"token": "s3cret"}).status
            == 403
        )
        users(tmp_path, f"eve viewer {hash_token('other')}")
        assert ask(gate, "GET", "/", headers=cookie).status == 401, "who was taken from the file is out at once"


def test_a_program_without_a_token_is_told_what_to_send(database: Database, tmp_path: Path) -> None:
    path = users(tmp_path, f"ci operator {hash_token('s3cret')}")
    with served(database, auth="token", users=path) as server:
        assert "Authorization: Bearer TOKEN" in ask(server.gate, "GET", "/tasks.json").json["error"]


def test_prometheus_scrapes_with_a_bearer_token(database: Database, tmp_path: Path) -> None:
    """Over a real connection, as ``authorization: {credentials: s3cret}`` has Prometheus do it."""
    path = users(tmp_path, f"prometheus viewer {hash_token('s3cret')}")
    with served(database, auth="token", users=path) as server:

        def scrape(**headers: str) -> tuple[int, str]:
            with closing(HTTPConnection(urlsplit(server.url).netloc, timeout=30)) as connection:
                connection.request("GET", "/metrics", headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

        status, figures = scrape(authorization="Bearer s3cret", accept="application/openmetrics-text")
        assert status == 200
        assert 'schedd_tasks{state="dead"} 0.0' in figures
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic czNjcmV0"}):
            status, figures = scrape(**wrong)
            assert (status, "schedd_tasks" in figures) == (401, False)


def test_a_password(database: Database, tmp_path: Path) -> None:
    path = users(tmp_path, f"ada admin {hash_password('pass word:ü')}")
    with served(database, auth="basic", users=path) as server:

        def given(text: str) -> dict[str, str]:
            return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}

        gate = server.gate
        assert ask(gate, "GET", "/").headers["www-authenticate"].startswith("Basic")
        for _ in range(2):  # the second one is remembered
            assert "ada (basic)" in ask(gate, "GET", "/", headers=given("ada:pass word:ü")).text
        for wrong in ("ada:pass word", "eve:pass word:ü", "ada", "ada:"):
            assert ask(gate, "GET", "/", headers=given(wrong)).status == 401
        assert ask(gate, "GET", "/", headers={"authorization": "Basic %%%"}).status == 401
        assert ask(gate, "GET", "/", headers=given("ada:pass word:ü")).status == 200, "who is right is never kept out"


def test_a_password_that_was_guessed_at_is_still_taken(database: Database, tmp_path: Path) -> None:
    """Also if it is right for the first time; guesses are one at a time then, and slow."""
    path = users(tmp_path, f"ada admin {hash_password('pass word')}")
    with served(database, auth="basic", users=path) as server:
        began = time.monotonic()
        statuses = []
        for n in range(8):
            wrong = base64.b64encode(f"ada:{n}".encode()).decode()
            statuses.append(ask(server.gate, "GET", "/", headers={"authorization": f"Basic {wrong}"}).status)
        assert statuses == [401] * 5 + [429] * 3
        assert time.monotonic() - began >= 3 * SLOW_SECONDS
        right = base64.b64encode(b"ada:pass word").decode()
        assert ask(server.gate, "GET", "/", headers={"authorization": f"Basic {right}"}).status == 200


def basic(text: str, client: str) -> tuple[Request, Peer]:
    header = f"Basic {base64.b64encode(text.encode()).decode()}".encode()
    return Request({"type": "http", "headers": [(b"authorization", header)]}), Peer(client, None, False, client)


@pytest.mark.parametrize("before", [0, 25], ids=["a burst", "after many failures"])
def test_guesses_from_elsewhere_delay_no_first_log_in(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The user has failed often enough to be slow, and is right now. Only hashes that have begun come first."""
    looked: list[str] = []
    hash_it = auth.hash_password

    def counted(password: str, salt: bytes | None = None) -> str:
        looked.append(password)
        return hash_it(password, salt)

    path = Path(users(tmp_path, f"ada admin {hash_password('pass word')}"))
    checks = auth.BasicAuth(auth.Users(path, read_roles(()), "scrypt"))
    monkeypatch.setattr(auth, "SLOW_SECONDS", 0.01)

    async def guess(text: str, client: str) -> bool:
        try:
            return await checks.identify(*basic(text, client)) is not None
        except (auth.WrongCredentialsError, auth.TooManyAttemptsError):
            return False

    async def run() -> None:
        for n in range(before):
            assert not await guess(f"ada:no {n}", "10.0.0.9")
        for n in range(6):
            assert not await guess(f"ada:typo {n}", "10.0.0.1")
        monkeypatch.setattr(auth, "hash_password", counted)
        monkeypatch.setattr(auth, "SLOW_SECONDS", 60.0)
        async with anyio.create_task_group() as tasks:
            for n in range(200):
                tasks.start_soon(guess, f"ada:guess {n}", "10.0.0.9")
            await anyio.wait_all_tasks_blocked()
            assert await guess("ada:pass word", "10.0.0.1")
            assert looked.index("pass word") <= auth.HASHES  # others may have begun since
            tasks.cancel_scope.cancel()

    anyio.run(run)


def test_a_role_of_ones_own(database: Database, tmp_path: Path) -> None:
    path = users(tmp_path, f"ci oncall {hash_token('s3cret')}")
    with served(database, auth="token", users=path, roles=("oncall = cancel",)) as server:
        bearer = {"authorization": "Bearer s3cret"}
        assert ask(server.gate, "POST", "/tasks/1/cancel.json", headers=bearer, form={}).status == 404
        assert ask(server.gate, "POST", "/tasks/1/retry.json", headers=bearer, form={}).status == 403


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ci operator", "name role hash"),
        ("ci king sha256:00", "no role 'king'"),
        ("ci admin scrypt:00:00", "begin with sha256:"),
    ],
)
def test_a_users_file_with_a_mistake(database: Database, tmp_path: Path, line: str, message: str) -> None:
    with (
        pytest.raises(ConfigError, match=message),
        served(database, auth="token", users=users(tmp_path, line)),
    ):
        pass

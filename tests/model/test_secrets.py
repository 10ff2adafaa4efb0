"""Secret fields: what a type publishes of them, and how payloads and texts are shown without them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from scheduler import ConfigError, Debounce, Secret, Task, Unique, task
from scheduler.model.registry import Kind
from scheduler.model.registry import make_kind as make
from scheduler.model.secrets import Mask, hide_in, is_secret_name


def make_kind(source: Any) -> Kind:
    return make(source, None, None)


class Login(msgspec.Struct):
    user: str
    password: Annotated[str, Secret]


class Import(Task):
    source: str
    token: Annotated[str, Secret]
    pin: Annotated[int, Secret] = 0
    spare: Annotated[str, msgspec.Meta(min_length=3), Secret] | None = None
    login: Login | None = None
    logins: list[Login] = msgspec.field(default_factory=list)
    headers: Annotated[dict[str, str], Secret] = msgspec.field(default_factory=dict)
    cookies: dict[str, Annotated[str, Secret]] = msgspec.field(default_factory=dict)
    pair: tuple[str, Annotated[str, Secret]] | None = None

    def run(self, ctx: Any) -> None: ...


PAYLOAD = {
    "source": "s3",
    "token": "tok-1234",
    "pin": 98765,
    "spare": None,
    "login": {"user": "ada", "password": "pass-1"},
    "logins": [{"user": "bob", "password": "pass-2"}],
    "headers": {"Authorization": "Bearer abc"},
    "cookies": {"a": "cookie-1"},
    "pair": ["left", "right-1"],
}


def test_each_place_of_a_secret_is_hidden() -> None:
    mask = Mask(make_kind(Import).schema())
    assert mask.payload(PAYLOAD) == {
        "source": "s3",
        "token": "***",
        "pin": "***",
        "spare": None,
        "login": {"user": "ada", "password": "***"},
        "logins": [{"user": "bob", "password": "***"}],
        "headers": "***",
        "cookies": {"a": "***"},
        "pair": ["left", "***"],
    }
    text = msgspec.json.encode(PAYLOAD).decode()
    assert mask.secrets(text) == {
        *("tok-1234", "98765", "pass-1", "pass-2", "Bearer abc", "cookie-1", "right-1"),
    }
    assert "tok-1234" not in str(mask.text(text))
    assert mask.text("no json") == '"***"'
    assert mask.text(None) is None


def test_what_does_not_fit_the_schema_is_hidden_as_far_as_it_does() -> None:
    mask = Mask(make_kind(Import).schema())
    assert mask.payload({"token": ["a", "b"], "login": "x"}) == {"token": "***", "login": "x"}
    assert mask.payload(["token"]) == ["token"]


def test_a_function_publishes_its_secrets() -> None:
    @task
    def fetch(ctx: Any, url: str, key: Annotated[str, Secret]) -> None: ...

    schema = make_kind(fetch).schema()
    assert schema["$defs"]["fetch"]["properties"]["key"]["x-secret"] is True
    assert Mask(schema).payload({"url": "u", "key": "k-1"}) == {"url": "u", "key": "***"}


def test_secrets_are_hidden_in_texts_too_but_not_every_short_one() -> None:
    secrets = Mask(make_kind(Import).schema()).secrets('{"token":"tok-1234","pin":12}')
    shown = hide_in({"error": "no tok-1234", "n": 12, "list": ["a tok-1234 b", None]}, secrets)
    assert shown == {"error": "no ***", "n": 12, "list": ["a *** b", None]}


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    assert hide_in("abcdef", {"abcd", "abcdef"}) == "***"


def test_what_could_not_be_hidden_is_refused() -> None:
    class Whole(Task):
        login: Annotated[Login, Secret]

        def run(self, ctx: Any) -> None: ...

    class Own(Task):
        token: Annotated[str, Secret]

        def serialize(self) -> str:
            return self.token

        def run(self, ctx: Any) -> None: ...

    with pytest.raises(ConfigError, match="login is a struct: mark the fields in it"):
        make_kind(Whole)
    with pytest.raises(ConfigError, match="no field can be a Secret"):
        make_kind(Own)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency_key": "{user}-{token}"},
        {"unique": Unique(by=("token",))},
        {"unique": Unique()},
        {"debounce": Debounce(1, 2)},
    ],
)
def test_no_key_shows_a_secret(options: dict[str, Any]) -> None:
    class Keyed(Task, **options):  # type: ignore[call-arg]
        user: str
        token: Annotated[str, Secret]

        def run(self, ctx: Any) -> None: ...

    with pytest.raises(ConfigError, match="token is a Secret"):
        make_kind(Keyed)


@pytest.mark.parametrize(
    ("name", "secret"),
    [("pass", True), ("db_pass", True), ("Password", True), ("passphrase", True), ("passed", False)],
)
def test_counts_of_passed_tasks_are_no_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret

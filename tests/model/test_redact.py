"""URLs and texts as they may be shown: no secret is left in them."""

from __future__ import annotations

import pytest

from scheduler.model.redact import has_raw_at, redact, shown_url

SECRET = "canary-7f3a"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:pa:s@s/w@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://user@host/db?password=x&sslmode=require", "postgresql://user@host/db?password=***&sslmode=require"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("sqlite:////srv/a:b@c/schedd.db", "sqlite:////srv/a:b@c/schedd.db"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
        ("postgresql://h/d?user=u@corp&sslkey=/k.pem", "postgresql://***"),
        ("postgresql://h/d?sslkey=/etc/k.pem&sslcert=/c", "postgresql://h/d?sslkey=/etc/k.pem&sslcert=/c"),
        ("postgresql://h/d?host=a:1&host=b:2", "postgresql://h/d?host=a:1&host=b:2"),
        ("https://api.example/in?api_key=abc&n=1", "https://api.example/in?api_key=***&n=1"),
    ],
)  # fmt: skip
def test_what_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_where_a_password_has_an_at() -> None:
    raw = ("postgresql://u:p@ss@h/d", "postgresql://u:p/w@x@h/d", "postgresql://u:p?x@y@h/d", "postgresql://:@@h/d")
    fine = ("postgresql://u:p%40ss@h/d", "postgresql://u@server:p@h/d", "postgresql://u@h/d@x", "sqlite:////a@b/c@d.db")
    assert [has_raw_at(url) for url in (*raw, *fine)] == [True] * 4 + [False] * 4


@pytest.mark.case(83, pure=True)
@pytest.mark.parametrize(
    "form",
    [
        "postgresql+psycopg://u:{}@h/d",
        "postgresql+psycopg://u:a?{}@h/d",
        "postgresql+psycopg://u:a@{}@h:5432/d?sslmode=require",
        "postgresql+psycopg://:{}@h/d",
        "postgresql+psycopg://h/d?user=u&password={}",
        "postgresql+psycopg://h/d?user=u&PASSWORD={}",
        "postgresql+psycopg://h/d?user=u&pass%77ord={}",
        "postgresql+psycopg://h:5432/d?user=u&password=a@{}",
        "postgresql+psycopg://h/d?user=u&password=a {}&sslmode=require",
        "postgresql+psycopg://u@h/d?sslpassword={}",
        "postgresql+psycopg://h/d?passfile=/run/{}",
        "postgresql+psycopg:u:{}@h/d",
        "u:{}@h/d",
        "host=h password={} user=u",
        "host=h password='{}' user=u",
        "https://h/inbox?access_token={}",
    ],
)
def test_no_form_of_a_url_shows_its_secret(form: str) -> None:
    url = form.format(SECRET)
    assert SECRET not in shown_url(url)


def test_a_secret_that_is_known_is_found_anywhere() -> None:
    assert redact("FATAL: what is abcd1234?", ["abcd1234"]) == "FATAL: what is ***?"
    assert redact("all of a sudden", ["a"]) == "all of a sudden", "so short a one would be in every word"

"""Durations as text, and passwords masked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from scheduler.settings import format_duration, mask, parse_duration


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://user:pa:s@s/w@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://user@host/db?password=x&sslmode=require", "postgresql://user@host/db?password=***&sslmode=require"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("sqlite:////srv/a:b@c/schedd.db", "sqlite:////srv/a:b@c/schedd.db"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
    ],
)  # fmt: skip
def test_masking(url: str, masked: str) -> None:
    assert mask(url) == masked


@given(st.integers(0, 400 * 86400_000).map(lambda ms: ms / 1000))
def test_durations_read_back_as_they_were_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "1x", "h", "-3s", "1e3", "10 10", None, [], True, float("nan"), "9999999w"])
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(value)

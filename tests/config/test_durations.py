"""Durations as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.config.load import describe, load
from scheduler.config.sources import format_duration, parse_duration
from scheduler.errors import ConfigError


@given(st.integers(0, 400 * 86400_000).map(lambda ms: ms / 1000))
def test_durations_read_back_as_they_were_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "1x", "h", "-3s", "1e3", "10 10", None, [], True, float("nan"), "9999999w"])
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(value)


@pytest.mark.parametrize("text", ['"24"', "24", '"24s"', '"0.4m"'])
def test_a_number_without_a_unit_is_seconds_in_quotes_too(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[retention]\nsuccess = {text}\n")
    shown = {setting.name: setting.text for setting in describe(load(str(file)))}
    assert shown["retention.success"] == '"24s"'

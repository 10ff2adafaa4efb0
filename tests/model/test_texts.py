"""Spans of time as people read them."""

from __future__ import annotations

import pytest

from scheduler.model.texts import span_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "200 ms"), (0.9999, "999 ms"), (1, "1 s"), (85, "1 min 25 s"), (3600, "1 h"), (7300, "2 h 1 min")],
)
def test_a_span_under_a_second_is_not_rounded_to_one(seconds: float, text: str) -> None:
    assert span_text(round(seconds * 1_000_000)) == text

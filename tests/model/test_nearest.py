"""What was probably meant."""

from __future__ import annotations

import pytest

from scheduler.model.names import nearest


@pytest.mark.parametrize(
    ("name", "known", "best"),
    [
        ("stauts", ["stats", "start", "status"], ["status", "stats"]),
        ("lsit", ["set", "list", "lint"], ["list", "lint"]),
        ("mial", ["mail", "main", "trial"], ["mail", "trial"]),
        ("pasue", ["pause", "passes"], ["pause", "passes"]),
        ("nothing like it", ["status"], []),
    ],
)
def test_the_best_match_is_the_first(name: str, known: list[str], best: list[str]) -> None:
    assert nearest(name, known, 2) == best

"""What a store asks its driver itself, past SQLAlchemy and its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler.store.db import statements

Told = Callable[[str, list[Any]], object]  # the text, and its values without their names


def listen(monkeypatch: pytest.MonkeyPatch, *, before: Told | None = None, after: Told | None = None) -> None:
    """Tell of each such statement until the test ends."""
    raw = statements._raw

    def told(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
        values = list(bound.values() if isinstance(bound, dict) else bound)
        if before is not None:
            before(text, values)
        rows = raw(connection, text, bound)
        if after is not None:
            after(text, values)
        return rows

    monkeypatch.setattr(statements, "_raw", told)

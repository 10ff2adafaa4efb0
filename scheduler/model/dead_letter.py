"""DeadLetter, the argument of ``on_dead_letter``: a task that has just failed for good. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that has just become a dead letter; the names are those of its stored record."""

    id: int
    kind: str
    queue: str
    key: str | None
    correlation: str
    attempt: int
    error: str | None
    error_class: str | None
    fingerprint: str | None
    status_code: int | None
    finished_at: datetime

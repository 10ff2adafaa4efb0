"""The envelope of a task's message: type, version, correlation and other fields beside its payload."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

CREATED_AT = "created_at"
"""The header with the time at which a message was created, where its sender said it."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope of an attempt's message.

    ``payload`` is the JSON text; None where it is longer than 1 KiB and the task has another payload since.
    ``payload_ref``: where the data really is, if it was passed by reference.
    """

    schema_version: int
    message_type: str
    correlation_id: str
    causation_id: str | None
    idempotency_key: str
    subject: str | None
    sequence: int | None
    created_at: datetime
    payload: str | None
    payload_ref: str | None


def created_at(headers: Mapping[str, Any], stored: datetime) -> datetime:
    """When a task's message was created: as its sender said, else when the task was stored."""
    text = headers.get(CREATED_AT)
    try:
        said = msgspec.convert(text, datetime) if isinstance(text, str) else None
        return stored if said is None or said.tzinfo is None else said.astimezone(UTC)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return stored


def idempotency_key(key: str | None, original_id: int | None, task_id: int, epoch: int = 1) -> str:
    """The key, else ``task-<original id>``: the same over retries and replay.

    ``epoch``: of the store when the task was stored. Above 1, after a failover that lost commits, it is part of the
    key: ``task-e2-<original id>``.
    """
    if key is not None:
        return key
    return f"task-{original_id or task_id}" if epoch == 1 else f"task-e{epoch}-{original_id or task_id}"

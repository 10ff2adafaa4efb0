"""The envelope of a task's message: type, version, correlation and other fields beside its payload."""

from __future__ import annotations

from datetime import datetime

import msgspec


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


def idempotency_key(key: str | None, original_id: int | None, task_id: int, epoch: int = 1) -> str:
    """The key, else ``task-<original id>``: the same over retries and replay.

    ``epoch``: of the store when the task was stored. Above 1, after a failover that lost commits, it is part of the
    key: ``task-e2-<original id>``.
    """
    if key is not None:
        return key
    return f"task-{original_id or task_id}" if epoch == 1 else f"task-e{epoch}-{original_id or task_id}"

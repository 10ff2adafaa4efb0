"""Messages in and out: sources and sinks, what they hold; let go what is held."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.operations.desk import Desk
from scheduler.store import audit, inbox, outbox
from scheduler.store.db.tx import Tx
from scheduler.store.inbox import InboxRecord as InboxRecord
from scheduler.store.inbox import inbox_records
from scheduler.store.inbox_held import release as _release
from scheduler.store.outbox import OutboxRecord, outbox_records
from scheduler.store.read.message_ends import SinkStatus as SinkStatus
from scheduler.store.read.message_ends import SourceStatus as SourceStatus
from scheduler.store.read.message_ends import sink_statuses as sink_statuses
from scheduler.store.read.message_ends import source_statuses as source_statuses

__all__ = [
    "InboxRecord",
    "OutboxRecord",
    "SinkStatus",
    "SourceStatus",
    "inbox_records",
    "note_redrive",
    "outbox_records",
    "release",
    "sink_names",
    "sink_statuses",
    "source_names",
    "source_statuses",
]


def source_names(tx: Tx, configured: Iterable[str]) -> list[str]:
    """The sources of a configuration, then those that have messages here."""
    return list(dict.fromkeys([*configured, *inbox.source_names(tx)]))


def sink_names(tx: Tx, configured: Iterable[str]) -> list[str]:
    """The sinks of a configuration, then those that have messages here."""
    return list(dict.fromkeys([*configured, *outbox.sink_names(tx)]))


def release(desk: Desk, source: str, subject: str | None = None) -> list[int]:
    """Run messages of a source that are held since others of their subject are missing; the tasks' ids.

    They run in their order; a missing message that comes later does not run. Raises StoreUnavailableError.
    """
    made: list[int] = []
    while more := desk.write(lambda tx: _release(tx, source, subject)):
        made += more
    return made


def note_redrive(desk: Desk, source: str, moved: int) -> None:
    """Have the audit say that messages of a source's dead-letter queue were sent to its queue again."""
    desk.write(lambda tx: audit.record(tx, "redrive", subject=f"source {source}", messages=moved))

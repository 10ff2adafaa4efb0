"""The audit: who changed what, when, through which door, and why."""

from __future__ import annotations

from scheduler.operations.masks import masked, masked_text
from scheduler.store.db.tx import Tx
from scheduler.store.read.audit import AuditFilter as AuditFilter
from scheduler.store.read.audit import AuditRecord as AuditRecord
from scheduler.store.read.audit import entries as entries


def shown(tx: Tx, wanted: AuditFilter, limit: int, cursor: int | None) -> tuple[list[AuditRecord], int | None]:
    """Changes for people, without secrets, the newest first; and the cursor of the next ones, None at the end."""
    found, more = entries(tx, wanted, limit, cursor)
    return [_hidden(entry) for entry in found], more


def _hidden(entry: AuditRecord) -> AuditRecord:
    return entry._replace(
        reason=masked_text(entry.reason),
        detail=masked(entry.detail),
        filter=masked(entry.filter),
        before=masked(entry.before),
        after=masked(entry.after),
    )

"""The audit: who changed what, when, through which door, and why."""

from __future__ import annotations

from scheduler.store.read.audit import AuditFilter as AuditFilter
from scheduler.store.read.audit import AuditRecord as AuditRecord
from scheduler.store.read.audit import entries as entries

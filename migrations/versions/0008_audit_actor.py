"""What one actor has changed is found without walking the audit."""

from __future__ import annotations

from scheduler.migrations.online import create_index

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    create_index("ix_schedd_audit_actor", "schedd_audit", ["actor", "id"])

"""Messages that could become no task are found without reading all that have come."""

from __future__ import annotations

from scheduler.migrations.online import create_index

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    create_index("ix_schedd_inbox_dead", "schedd_inbox", ["last_at"], where="verdict = 2")

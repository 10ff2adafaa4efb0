"""Attempts that failed are found by their time."""

from __future__ import annotations

from scheduler.migrations.online import create_index

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    create_index("ix_schedd_attempts_failed", "schedd_attempts", ["finished_at"], where="outcome >= 1 AND outcome <= 3")

"""A failed task may have a time of its own until it is removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.migrations.online import create_index

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    connection = op.get_bind()
    if op.get_context().as_sql or "failed_ttl" not in {
        str(column["name"]) for column in sa.inspect(connection).get_columns("schedd_tasks")
    }:
        op.add_column("schedd_tasks", sa.Column("failed_ttl", sa.BigInteger))
    until = "finished_at + failed_ttl" if connection.dialect.name == "sqlite" else "(finished_at + failed_ttl)"
    create_index(
        "ix_schedd_tasks_failed_ttl",
        "schedd_tasks",
        [sa.text(until)],
        where="failed_ttl IS NOT NULL AND state >= 7",
    )

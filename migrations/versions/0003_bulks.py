"""Bulks with a frozen scope, and saved views."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, SmallInteger, Text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "schedd_bulks",
        Column("name", Text, primary_key=True),
        Column("verb", Text, nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("finished_at", BigInteger),
        Column("actor", Text),
        Column("via", Text, nullable=False),
        Column("reason", Text),
        Column("options", Text, nullable=False),
        Column("chosen", Text, nullable=False),
        Column("plan", Text, nullable=False),
        Column("total", Integer, nullable=False),
        Column("position", Integer, nullable=False),
        Column("done", Integer, nullable=False),
        Column("passed", Integer, nullable=False),
        Column("failed", Integer, nullable=False),
        Column("dependants", Integer, nullable=False),
        Column("runner", Text),
        Column("runner_until", BigInteger),
        Column("undoes", Text),
    )
    op.create_index("ix_schedd_bulks_created_at", "schedd_bulks", ["created_at"])
    op.create_table(
        "schedd_bulk_items",
        Column("bulk", Text, nullable=False),
        Column("position", Integer, nullable=False),
        Column("task_id", BigInteger, nullable=False),
        Column("before", SmallInteger),
        Column("result", SmallInteger),
        Column("note", Text),
        PrimaryKeyConstraint("bulk", "position"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "schedd_views",
        Column("owner", Text, nullable=False),
        Column("page", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("query", Text, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("owner", "page", "name"),
    )

"""A page of the tasks of a correlation, a key or a subject is read by their index, in the order of ids."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for column in ("correlation", "key", "subject"):
        op.execute(f"DROP INDEX ix_schedd_tasks_{column}")
        op.execute(f"CREATE INDEX ix_schedd_tasks_{column} ON schedd_tasks ({column}, id) WHERE {column} IS NOT NULL")

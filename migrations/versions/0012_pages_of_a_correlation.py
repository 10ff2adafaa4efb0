"""A page of the tasks of a correlation, a key or a subject is read by their index, in the order of ids; retries and
suspended tasks are counted apart from those that are scheduled."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for name, column in (("correlation", "correlation"), ("key", '"key"'), ("subject", "subject")):
        op.execute(f"DROP INDEX IF EXISTS ix_schedd_tasks_{name}")
        op.execute(f"CREATE INDEX ix_schedd_tasks_{name} ON schedd_tasks ({column}, id) WHERE {name} IS NOT NULL")
    op.execute(
        "CREATE INDEX IF NOT EXISTS ix_schedd_tasks_not_due ON schedd_tasks (state) WHERE state >= 2 AND state <= 3"
    )

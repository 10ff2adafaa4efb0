"""A page of the tasks of a correlation, a key or a subject is read by their index, in the order of ids; retries and
suspended tasks are counted apart from those that are scheduled."""

from __future__ import annotations

from scheduler.migrations.online import create_index

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for column in ("correlation", "key", "subject"):
        create_index(
            f"ix_schedd_tasks_{column}",
            "schedd_tasks",
            [column, "id"],
            where=f"{column} IS NOT NULL",
            replaces=True,
        )
    create_index("ix_schedd_tasks_not_due", "schedd_tasks", ["state"], where="state >= 2 AND state <= 3")

"""Changes to large tables that others work on meanwhile. For migrations; see docs/guides/upgrading.md."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from scheduler.store.db.migrate import LOCK_TIMEOUT


def create_index(
    name: str, table: str, columns: Sequence[str], *, unique: bool = False, where: str | None = None
) -> None:
    """Make an index, on PostgreSQL without blocking writers.

    It commits what the migration did before, and may have to be made again after it was interrupted: so do this in a
    migration of its own, or at its end.
    """
    clause = None if where is None else sa.text(where)
    if op.get_context().dialect.name != "postgresql":
        op.create_index(name, table, list(columns), unique=unique, sqlite_where=clause)
        return
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # no other session waits behind this one
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # what an interrupted attempt left is invalid
        op.create_index(
            name, table, list(columns), unique=unique, postgresql_where=clause, postgresql_concurrently=True
        )
        op.execute(f"SET lock_timeout = {round(LOCK_TIMEOUT * 1000)}")  # the migration after this one locks tables, too

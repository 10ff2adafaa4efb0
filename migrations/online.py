"""Changes to large tables that others work on meanwhile. For migrations; see docs/guides/upgrading.md."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

# Where an interrupted upgrade has left the old one under its other name, it is the new one that may not be whole.
_SET_ASIDE = """
DO $$ BEGIN
  IF to_regclass('{name}_old') IS NOT NULL THEN
    IF (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{name}')) THEN
      DROP INDEX {name}_old;
    ELSE
      DROP INDEX IF EXISTS {name};
    END IF;
  END IF;
  IF to_regclass('{name}_old') IS NULL AND to_regclass('{name}') IS NOT NULL THEN
    ALTER INDEX {name} RENAME TO {name}_old;
  END IF;
END $$"""


def create_index(
    name: str,
    table: str,
    columns: Sequence[str | sa.TextClause],
    *,
    unique: bool = False,
    where: str | None = None,
    replaces: bool = False,
) -> None:
    """Make an index, on PostgreSQL without blocking writers: once the transaction of the upgrade is committed.

    Until then the programs go on without it, so a migration after this one cannot rely on it. An upgrade that is
    interrupted leaves it missing or invalid, and the next one makes it. ``replaces``: one of this name is there, of
    another form; the programs use it until the new one is made.
    """
    later: list[str] | None = op.get_context().opts.get("later")
    if op.get_context().dialect.name != "postgresql" or later is None:
        if replaces:
            op.execute(f"DROP INDEX IF EXISTS {name}")
        clause = None if where is None else sa.text(where)
        op.create_index(
            name,
            table,
            list(columns),
            unique=unique,
            if_not_exists=True,
            sqlite_where=clause,
            postgresql_where=clause,
        )
        return
    if replaces:
        op.execute(_SET_ASIDE.format(name=name))
    kind, condition = "UNIQUE INDEX" if unique else "INDEX", "" if where is None else f" WHERE {where}"
    later += [
        f"DROP INDEX CONCURRENTLY IF EXISTS {name}",  # what an interrupted attempt left is invalid
        f"CREATE {kind} CONCURRENTLY {name} ON {table} ({', '.join(map(str, columns))}){condition}",
    ]
    if replaces:
        later.append(f"DROP INDEX CONCURRENTLY IF EXISTS {name}_old")

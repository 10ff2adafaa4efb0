"""A task's priority was called ``pool``, and a checkpoint's type ``sort``. Older workers cannot go on."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"

# PostgreSQL 18 gives a column's NOT NULL a name, which does not follow that of the column.
_RENAME_CONSTRAINT = """DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_constraint WHERE conrelid = '{table}'::regclass AND conname = '{table}_{old}_not_null')
  THEN ALTER TABLE {table} RENAME CONSTRAINT {table}_{old}_not_null TO {table}_{new}_not_null; END IF; END $$"""


def upgrade() -> None:
    for table, old, new in (("schedd_tasks", "pool", "priority"), ("schedd_checkpoints", "sort", "type")):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
        if op.get_context().dialect.name == "postgresql":
            op.execute(_RENAME_CONSTRAINT.format(table=table, old=old, new=new))
    for table, column in (("schedd_kinds", "options"), ("schedd_schedules", "options"), ("schedd_schedules", "graph")):
        op.execute(f"""UPDATE {table} SET {column} = replace({column}, '"pool":', '"priority":')""")

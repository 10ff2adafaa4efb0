"""The next version of this program, as far as its database goes: one migration more than there is."""

from __future__ import annotations

import shutil
from pathlib import Path

from scheduler.store.db import migrate

NEXT = f"{int(migrate.HEAD) + 1:04}"
_MIGRATION = '''"""What a migration may do: a column with a default, a table, an index on a full table."""

import sqlalchemy as sa
from alembic import op

from scheduler.migrations.online import create_index

revision, down_revision = "{next}", "{head}"


def upgrade() -> None:
    op.add_column("schedd_tasks", sa.Column("colour", sa.Text, server_default="grey"))
    op.create_table("schedd_colours", sa.Column("name", sa.Text, primary_key=True))
    {fail}
    create_index("ix_schedd_tasks_colour", "schedd_tasks", ["colour"], where="colour IS NOT NULL")
'''


def write_scripts(directory: Path, fail: str = "pass") -> str:
    """This program's migrations and the next one; ``fail``: a statement in the middle of it."""
    target = directory / "migrations"
    shutil.copytree(migrate.scripts(), target, ignore=shutil.ignore_patterns("__pycache__"))
    text = _MIGRATION.format(next=NEXT, head=migrate.HEAD, fail=fail)
    (target / "versions" / f"{NEXT}_next.py").write_text(text)
    return str(target)


def become(scripts: str) -> None:
    """Let this process be the next version."""
    migrate.HEAD = NEXT
    migrate.scripts = lambda: scripts  # type: ignore[assignment]

"""Sessions of the console."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "schedd_console_sessions",
        Column("id", Text, primary_key=True),
        Column("user", Text, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("until", BigInteger, nullable=False),
    )

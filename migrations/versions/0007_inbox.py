"""The inbox: messages that have come from sources, and how far those of a subject have come."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.schema import CreateIndex, CreateTable

metadata = MetaData()

inbox = Table(  # messages that have come from sources, by their keys, for longer than they may come again
    "schedd_inbox",
    metadata,
    Column("source", Text, nullable=False),
    Column("message_key", Text, nullable=False),
    Column("message_id", Text, nullable=False),  # the transport's, of the last delivery
    Column("task_id", BigInteger),
    Column("deliveries", Integer, nullable=False, server_default=text("1")),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("verdict", SmallInteger, nullable=False),  # model.inbox.InboxState
    Column("error", Text),
    Column("receipt", Text),  # settles the last delivery; NULL: it is settled, or the message comes again
    Column("holder", Text),  # the receiver that got the receipt
    Column("subject", Text),
    Column("sequence", BigInteger),
    Column("held", Text),  # the task to be, as JSON, while messages before this one are missing
    Column("expires_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("source", "message_key"),
    sqlite_with_rowid=False,
)
Index("ix_schedd_inbox_expires_at", inbox.c.expires_at)
Index(
    "ix_schedd_inbox_task_id",
    inbox.c.task_id,
    sqlite_where=text("task_id IS NOT NULL"),
    postgresql_where=text("task_id IS NOT NULL"),
)
Index(
    "ix_schedd_inbox_open",
    inbox.c.source,
    inbox.c.holder,
    sqlite_where=text("receipt IS NOT NULL"),
    postgresql_where=text("receipt IS NOT NULL"),
)
Index(
    "ix_schedd_inbox_held",
    inbox.c.source,
    inbox.c.subject,
    inbox.c.sequence,
    sqlite_where=text("held IS NOT NULL"),
    postgresql_where=text("held IS NOT NULL"),
)

Table(  # how far the messages of a subject have come, of sources that keep their order
    "schedd_inbox_subjects",
    metadata,
    Column("source", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),  # the last that became a task
    Column("task_id", BigInteger),
    Column("at", BigInteger, nullable=False),
    PrimaryKeyConstraint("source", "subject"),
    sqlite_with_rowid=False,
)

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda i: str(i.name)):
            op.execute(CreateIndex(index))

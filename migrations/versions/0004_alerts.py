"""Alerts: their states, silences, messages, and the lease of the evaluator."""

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
_Id = BigInteger().with_variant(Integer, "sqlite")

Table(
    "schedd_alerts",
    metadata,
    Column("rule", Text, nullable=False),
    Column("kind", Text, nullable=False),  # or the queue, or the schedule; '' for none
    Column("fingerprint", Text, nullable=False),  # '' for none
    Column("phase", SmallInteger, nullable=False),  # model.alerts.Phase
    Column("since", BigInteger, nullable=False),
    Column("looks", Integer, nullable=False),
    Column("began", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
    Column("detail", Text, nullable=False),  # JSON
    Column("fired_at", BigInteger),
    Column("notified_at", BigInteger),
    Column("step", BigInteger, nullable=False),
    PrimaryKeyConstraint("rule", "kind", "fingerprint"),
    sqlite_with_rowid=False,
)

Table(
    "schedd_alert_silences",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("rule", Text, nullable=False),  # * for all
    Column("kind", Text),
    Column("fingerprint", Text),
    Column("until", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text),
    Column("reason", Text),
    sqlite_autoincrement=True,
)

messages = Table(  # an outbox: written with the state that they are about
    "schedd_alert_messages",
    metadata,
    Column("number", _Id, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("sink", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),  # JSON
    Column("next_at", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("done", SmallInteger, nullable=False, server_default=text("0")),  # 1 delivered, 2 given up
    Column("delivered_at", BigInteger),
    Column("error", Text),
    sqlite_autoincrement=True,
)
Index(
    "ix_schedd_alert_messages_due",
    messages.c.sink,
    messages.c.next_at,
    sqlite_where=text("done = 0"),
    postgresql_where=text("done = 0"),
)

Table(
    "schedd_alert_lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("memory", Text, nullable=False),  # JSON
)


revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda i: str(i.name)):
            op.execute(CreateIndex(index))

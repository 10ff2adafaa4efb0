"""Tasks that executors place: what a task asks for, the executors, and their jobs."""

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

Table(  # which execute tasks elsewhere, and the lease of the one daemon that places for each
    "schedd_executors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("worker", BigInteger, nullable=False),  # its row of schedd_workers, which holds what no job has taken up
    Column("holder", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("trouble", Text),  # why the last look at the engine failed
)

placements = Table(  # jobs of executors, each for one claim of a task
    "schedd_placements",
    metadata,
    Column("task_id", BigInteger, nullable=False),
    Column("claim", BigInteger, nullable=False),
    Column("executor", Text, nullable=False),
    Column("name", Text, nullable=False),  # of the job in the engine
    Column("state", SmallInteger, nullable=False),  # model.placement.PlacementState.code
    Column("handle", Text),  # the engine's own id of the job
    Column("reserved_at", BigInteger, nullable=False),
    Column("submitted_at", BigInteger),  # the last time
    Column("attached_at", BigInteger),  # when the job took the claim over
    Column("seen_at", BigInteger),  # when the engine last listed it with something new
    Column("phase", SmallInteger),  # model.placement.Phase.code
    Column("reason", Text),
    Column("node", Text),
    Column("tries", Integer, nullable=False, server_default=text("0")),  # submissions
    Column("next_at", BigInteger, nullable=False, server_default=text("0")),  # of the next one, not before
    Column("cancelled_at", BigInteger),  # when the engine was last asked to end it
    Column("lost", SmallInteger, nullable=False, server_default=text("0")),  # 1: it ended before it took the claim over
    PrimaryKeyConstraint("task_id", "claim"),
    sqlite_with_rowid=False,
)
Index(
    "ix_schedd_placements_open",
    placements.c.executor,
    placements.c.task_id,
    sqlite_where=text("state < 3"),
    postgresql_where=text("state < 3"),
)

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    for name in ("executor", "resources", "executor_options"):
        op.add_column("schedd_tasks", Column(name, Text))
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda i: str(i.name)):
            op.execute(CreateIndex(index))

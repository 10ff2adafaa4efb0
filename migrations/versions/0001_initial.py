"""The first schema."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
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

_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite's rowid alias must be spelled INTEGER

tasks = Table(
    "schedd_tasks",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    # what claiming reads
    Column("state", SmallInteger, nullable=False),
    Column("queue", Text, nullable=False),
    Column("lane", Text, nullable=False),  # the kind, or kind + concurrency key
    Column("pool", SmallInteger, nullable=False),
    Column("run_at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("unmet", Integer, nullable=False, server_default=text("0")),
    # the fence
    Column("worker", BigInteger),
    Column("claim", BigInteger, nullable=False, server_default=text("0")),
    # the budget
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("attempt_base", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer),  # NULL: unlimited
    Column("retry", Text),  # RetryPolicy as JSON; NULL: one attempt
    Column("timeout", BigInteger),
    Column("dead_letter", SmallInteger, nullable=False, server_default=text("1")),
    # times
    Column("created_at", BigInteger, nullable=False),
    Column("claimed_at", BigInteger),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    # what is asked of the handler
    Column("payload", Text),  # NULL: in task_values
    Column("extras", SmallInteger, nullable=False, server_default=text("0")),  # 1: one of RARE in claim.py is set
    Column("payload_ref", Text),
    Column("schema_version", Integer, nullable=False, server_default=text("1")),
    Column("message_type", Text),
    Column("correlation", Text),  # NULL: the task's own id
    Column("causation", Text),
    Column("subject", Text),
    Column("sequence", BigInteger),
    Column("headers", Text),
    # the key
    Column("key", Text),
    Column("held_key", Text),
    Column("key_retention", BigInteger),
    Column("key_until", BigInteger),
    # recurrence
    Column("schedule", Text),
    Column("slot", BigInteger),
    Column("slot_tz", Text),  # the zone of its schedule; NULL: UTC
    Column("missed", Integer),
    Column("missed_since", BigInteger),
    # while it runs
    Column("cancel_requested", BigInteger),
    Column("cancel_cascade", SmallInteger, nullable=False, server_default=text("0")),  # what waits for its success, too
    Column("rerun", SmallInteger, nullable=False, server_default=text("0")),
    Column("progress", Float),
    Column("progress_message", Text),
    Column("last_heartbeat_at", BigInteger),
    Column("suspect", SmallInteger, nullable=False, server_default=text("0")),
    Column("deaths", SmallInteger, nullable=False, server_default=text("0")),
    # how it ended
    Column("result", Text),
    Column("result_ttl", BigInteger),
    Column("result_until", BigInteger),
    Column("kept_until", BigInteger),  # when retention looks at a success again; NULL: it has not yet
    Column("error", Text),
    Column("error_class", Text),
    Column("fingerprint", Text),
    Column("status_code", Integer),
    Column("ended_by", BigInteger),  # the parent whose end ended this task
    # lineage
    Column("original_id", BigInteger),
    Column("replay_count", Integer, nullable=False, server_default=text("0")),
    Column("spawned_by", BigInteger),  # the task whose handler spawned this one
    # limits on the whole life
    Column("max_duration", BigInteger),
    Column("max_delay", BigInteger),
    Column("expires_at", BigInteger),  # by max_duration
    Column("check_at", BigInteger),  # when these are looked at next; NULL: neither is set, or it is over
    sqlite_autoincrement=True,
)

_CLAIMABLE = "state >= 1 AND state <= 3"
_HELD = "state >= 4 AND state <= 5"


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    clause = text(where)
    return Index(name, *(tasks.c[c] for c in columns), unique=unique, sqlite_where=clause, postgresql_where=clause)


_partial("ix_schedd_tasks_ready", "queue", "pool", "lane", "run_at", "id", "state", where=_CLAIMABLE)
_partial("ix_schedd_tasks_held", "worker", "lane", where=_HELD)
_partial("ix_schedd_tasks_waiting", "id", where="state = 0")
_partial("ix_schedd_tasks_succeeded", "kept_until", "finished_at", where="state = 6")
_partial("ix_schedd_tasks_done", "state", "finished_at", where="state >= 7")
_partial("ux_schedd_tasks_held_key", "kind", "held_key", where="held_key IS NOT NULL", unique=True)
_partial("ux_schedd_tasks_slot", "schedule", "slot", "key", where="schedule IS NOT NULL", unique=True)
_partial("ix_schedd_tasks_check", "check_at", where="check_at IS NOT NULL")
_partial("ix_schedd_tasks_key", "key", where="key IS NOT NULL")
_partial("ix_schedd_tasks_key_ended", "kind", "key", where="key IS NOT NULL AND state >= 7")
_partial("ix_schedd_tasks_correlation", "correlation", where="correlation IS NOT NULL")
_partial("ix_schedd_tasks_subject", "subject", where="subject IS NOT NULL")
_partial("ix_schedd_tasks_spawned_by", "spawned_by", where="spawned_by IS NOT NULL")

edges = Table(
    "schedd_edges",
    metadata,
    Column("parent", BigInteger, nullable=False),
    Column("child", BigInteger, nullable=False),
    Column("on_end", SmallInteger, nullable=False),  # index into model.state.When
    Column("otherwise", SmallInteger, nullable=False),  # index into model.state.Otherwise
    Column("ok", SmallInteger, nullable=False),  # model.state.satisfied_mask
    PrimaryKeyConstraint("parent", "child"),
    sqlite_with_rowid=False,
)
Index("ix_schedd_edges_child", edges.c.child)
Index(  # edges that a parent's success breaks: rare, so that the usual release need not look for them
    "ix_schedd_edges_broken_by_success",
    edges.c.parent,
    sqlite_where=text("ok IN (0, 2, 4, 6, 8, 10, 12, 14)"),
    postgresql_where=text("ok IN (0, 2, 4, 6, 8, 10, 12, 14)"),
)

task_values = Table(
    "schedd_task_values",
    metadata,
    Column("task_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),  # payload, result, log:<claim>
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("task_id", "name"),
)

attempts = Table(
    "schedd_attempts",
    metadata,
    Column("task_id", BigInteger, nullable=False),
    Column("claim", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),
    Column("worker", BigInteger, nullable=False),
    Column("claimed_at", BigInteger),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger, nullable=False),
    Column("outcome", SmallInteger, nullable=False),  # index into model.outcome.AttemptEnd
    Column("error", Text),
    Column("error_class", Text),
    Column("fingerprint", Text),
    Column("status_code", Integer),
    Column("envelope", Text),
    PrimaryKeyConstraint("task_id", "claim"),
    sqlite_with_rowid=False,
)

outcomes = Table(  # what is remembered of a task that retention removed
    "schedd_outcomes",
    metadata,
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("state", SmallInteger, nullable=False),
    Column("removed_at", BigInteger, nullable=False),
    Column("schedule", Text),
    Column("slot", BigInteger),
)
Index("ix_schedd_outcomes_removed_at", outcomes.c.removed_at)
Index(  # fire times that have run, so that a backfill leaves them out
    "ix_schedd_outcomes_slot",
    outcomes.c.schedule,
    outcomes.c.slot,
    sqlite_where=text("schedule IS NOT NULL"),
    postgresql_where=text("schedule IS NOT NULL"),
)

audit = Table(  # who changed what, and why; kept for a time of its own
    "schedd_audit",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("action", Text, nullable=False),
    Column("actor", Text),
    Column("via", Text, nullable=False),  # python, cli, page, http
    Column("reason", Text),
    Column("task_id", BigInteger),
    Column("subject", Text),  # what it is about, if no task: "queue mail"
    Column("bulk", Text),  # the same for all rows of one change of many tasks
    Column("detail", Text),  # JSON: filter, before, after, and more
    sqlite_autoincrement=True,
)
Index("ix_schedd_audit_at", audit.c.at)
Index(
    "ix_schedd_audit_task_id",
    audit.c.task_id,
    sqlite_where=text("task_id IS NOT NULL"),
    postgresql_where=text("task_id IS NOT NULL"),
)

pauses = Table(  # no worker claims a task of these
    "schedd_pauses",
    metadata,
    Column("scope", Text, nullable=False),  # all, queue, kind
    Column("name", Text, nullable=False),  # of the queue or kind; '' for all
    Column("at", BigInteger, nullable=False),
    Column("actor", Text),
    Column("reason", Text),
    PrimaryKeyConstraint("scope", "name"),
)

settings = Table(  # what operators have changed while daemons run: see model/live_settings.py
    "schedd_settings",
    metadata,
    Column("scope", Text, nullable=False),  # pool, kind, key
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),  # JSON
    Column("at", BigInteger, nullable=False),
    Column("actor", Text),
    Column("reason", Text),
    PrimaryKeyConstraint("scope", "name"),
)

checkpoints = Table(  # what attempts recorded on their way, so that later ones need not do it again
    "schedd_checkpoints",
    metadata,
    Column("task_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("sort", SmallInteger, nullable=False),  # model.checkpoint.Sort
    Column("seq", Integer, nullable=False),  # its place among what the attempt met
    Column("claim", BigInteger, nullable=False),
    Column("value", Text),  # JSON; NULL: None
    Column("failure", Text),  # JSON of the error that it raises instead
    Column("started_at", BigInteger),
    Column("at", BigInteger, nullable=False),
    Column("note", Text),
    PrimaryKeyConstraint("task_id", "name"),
)

waits = Table(  # what attempts wait for: an event, or the ends of tasks, all of those with one name
    "schedd_waits",
    metadata,
    Column("task_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),  # that of the checkpoint to come
    Column("item", BigInteger, nullable=False),  # an awaited task; 0: the head, which says for what and how long
    Column("event", Text),
    Column("until", BigInteger, nullable=False),  # of the head; FOREVER: without an end
    Column("claim", BigInteger, nullable=False),  # of the head: the last one that waited
    Column("at", BigInteger, nullable=False),
    Column("met", SmallInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("task_id", "item", "name"),
)
Index(
    "ix_schedd_waits_event",
    waits.c.event,
    sqlite_where=text("event IS NOT NULL"),
    postgresql_where=text("event IS NOT NULL"),
)
Index("ix_schedd_waits_item", waits.c.item, sqlite_where=text("item > 0"), postgresql_where=text("item > 0"))
Index(
    "ix_schedd_waits_met",
    waits.c.met,
    sqlite_where=text("item = 0 AND met > 0"),
    postgresql_where=text("item = 0 AND met > 0"),
)
Index(
    "ix_schedd_waits_open",
    waits.c.task_id,
    waits.c.name,
    sqlite_where=text("met = 0"),
    postgresql_where=text("met = 0"),
)

events = Table(  # first emit wins
    "schedd_events",
    metadata,
    Column("name", Text, primary_key=True),
    Column("payload", Text),  # JSON; NULL: None
    Column("emitted_at", BigInteger, nullable=False),
    Column("emitted_by", BigInteger),  # a task
)
Index("ix_schedd_events_emitted_at", events.c.emitted_at)

schedules = Table(
    "schedd_schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("options", Text, nullable=False),  # the task's other columns, JSON
    Column("graph", Text),  # the tasks of each run, JSON; NULL: the one of payload and options
    Column("recurrence", Text, nullable=False),
    Column("catchup", Text, nullable=False),
    Column("overlap", Text, nullable=False),
    Column("jitter", BigInteger, nullable=False, server_default=text("0")),
    Column("owner", Text),  # the set of jobs.schedules.sync() that it belongs to
    Column("anchor", BigInteger, nullable=False),
    Column("next_at", BigInteger, nullable=False),  # FOREVER while a fixed-delay run is under way
    Column("paused", SmallInteger, nullable=False, server_default=text("0")),
    Column("last_slot", BigInteger),
    Column("last_task", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),  # last registered; tells the orphans
)
Index("ix_schedd_schedules_next_at", schedules.c.next_at)

workers = Table(
    "schedd_workers",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("incarnation", Text, nullable=False, unique=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("state", SmallInteger, nullable=False),  # 0 live, 1 draining, 2 stopped, 3 dead
    Column("queues", Text, nullable=False),
    Column("pools", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("drain_requested", BigInteger),
    Column("restart_requested", BigInteger),
    Column("skew", BigInteger, nullable=False, server_default=text("0")),  # its clock behind the server's
    sqlite_autoincrement=True,
)

kinds = Table(
    "schedd_kinds",
    metadata,
    Column("name", Text, primary_key=True),
    Column("schema", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

starts = Table(  # attempt starts of kinds with a rate, by the end of the sub-window that they are counted in
    "schedd_starts",
    metadata,
    Column("kind", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("starts", Integer, nullable=False),
    PrimaryKeyConstraint("kind", "until"),
    sqlite_with_rowid=False,
)

rollups = Table(  # how attempts ended, ran and waited, by minute, hour and day: see store/rollups.py
    "schedd_rollups",
    metadata,
    Column("span", Integer, nullable=False),  # seconds
    Column("at", BigInteger, nullable=False),  # its start
    Column("kind", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("outcome", SmallInteger, nullable=False),  # AttemptEnd.code
    Column("measure", SmallInteger, nullable=False),
    Column("bucket", SmallInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),  # microseconds
    PrimaryKeyConstraint("span", "at", "kind", "queue", "outcome", "measure", "bucket"),
    sqlite_with_rowid=False,
)

worker_kinds = Table(
    "schedd_worker_kinds",
    metadata,
    Column("worker", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    PrimaryKeyConstraint("worker", "kind"),
)

store = Table(  # the store's identity, and its epochs: see store/db/identity.py
    "schedd_store",
    metadata,
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("store", Text, nullable=False),  # random, the same in all epochs
    Column("since", BigInteger, nullable=False),
    Column("server", Text),  # PostgreSQL's system identifier
    Column("timeline", Text),  # and its timeline
    Column("first_id", BigInteger, nullable=False),  # of the tasks stored in it
)


revision = "0001"
down_revision = None


def upgrade() -> None:
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda i: str(i.name)):
            op.execute(CreateIndex(index))
    sqlite = op.get_context().dialect.name == "sqlite"
    if not sqlite:
        op.execute("ALTER TABLE schedd_tasks SET (fillfactor = 70)")
    random = "lower(hex(randomblob(16)))" if sqlite else "replace(CAST(gen_random_uuid() AS text), '-', '')"
    op.execute(f"INSERT INTO schedd_store (epoch, store, since, first_id) VALUES (1, {random}, 0, 1)")
    if sqlite:
        # A batch reserves ids by raising this number, so the row must be there before the first insert.
        op.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('schedd_tasks', 0)")

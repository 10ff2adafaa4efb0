"""The tables, as SQLAlchemy Core. Migrations never import this; a test compares a migrated database with it.

Every table carries the prefix ``schedd_``, since they live beside the caller's own tables (``connection=``).
Times are integers: microseconds since the epoch, UTC. States are the codes of ``model/state.py``.
Values over 1 KiB live in ``task_values``, written once, so that claim and finish do not rewrite them.
"""

from __future__ import annotations

from sqlalchemy import (
    DDL,
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
    event,
    text,
)

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
    Column("priority", SmallInteger, nullable=False),
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
    Column("extras", SmallInteger, nullable=False, server_default=text("0")),  # bits, see HAS_RARE in claim.py
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
    Column("rerun", SmallInteger, nullable=False, server_default=text("0")),  # see tasks/replace.py
    Column("progress", Float),
    Column("progress_message", Text),
    Column("last_heartbeat_at", BigInteger),
    Column("suspect", SmallInteger, nullable=False, server_default=text("0")),
    Column("deaths", SmallInteger, nullable=False, server_default=text("0")),
    # how it ended
    Column("result", Text),
    Column("result_ttl", BigInteger),
    Column("result_until", BigInteger),
    Column("kept_until", BigInteger),  # when retention checks a success again; NULL: it has not yet
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
    # where it runs
    Column("executor", Text),  # that places it; NULL: workers claim it
    Column("resources", Text),  # model.resources.Resources as JSON
    Column("executor_options", Text),  # JSON
    Column("failed_ttl", BigInteger),  # how long it stays once it has failed or is dead; NULL: as retention says
    sqlite_autoincrement=True,
)
# SQLAlchemy 2.0 has no option of Table for storage parameters.
_FILLFACTOR = DDL("ALTER TABLE schedd_tasks SET (fillfactor = 70)")  # type: ignore[no-untyped-call]
event.listen(tasks, "after_create", _FILLFACTOR.execute_if(dialect="postgresql"))

_CLAIMABLE = "state >= 1 AND state <= 3"
_HELD = "state >= 4 AND state <= 5"


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    clause = text(where)
    return Index(name, *(tasks.c[c] for c in columns), unique=unique, sqlite_where=clause, postgresql_where=clause)


_partial("ix_schedd_tasks_ready", "queue", "priority", "lane", "run_at", "id", "state", where=_CLAIMABLE)
_partial("ix_schedd_tasks_not_due", "state", where="state >= 2 AND state <= 3")
_partial("ix_schedd_tasks_held", "worker", "lane", where=_HELD)
_partial("ix_schedd_tasks_waiting", "id", where="state = 0")
_partial("ix_schedd_tasks_succeeded", "kept_until", "finished_at", where="state = 6")
_partial("ix_schedd_tasks_done", "state", "finished_at", where="state >= 7")
_partial("ux_schedd_tasks_held_key", "kind", "held_key", where="held_key IS NOT NULL", unique=True)
_partial("ux_schedd_tasks_slot", "schedule", "slot", "key", where="schedule IS NOT NULL", unique=True)
_partial("ix_schedd_tasks_check", "check_at", where="check_at IS NOT NULL")
_partial("ix_schedd_tasks_key", "key", "id", where="key IS NOT NULL")
_partial("ix_schedd_tasks_key_ended", "kind", "key", where="key IS NOT NULL AND state >= 7")
_partial("ix_schedd_tasks_correlation", "correlation", "id", where="correlation IS NOT NULL")
_partial("ix_schedd_tasks_subject", "subject", "id", where="subject IS NOT NULL")
Index(
    "ix_schedd_tasks_failed_ttl",
    tasks.c.finished_at + tasks.c.failed_ttl,
    sqlite_where=text("failed_ttl IS NOT NULL AND state >= 7"),
    postgresql_where=text("failed_ttl IS NOT NULL AND state >= 7"),
)
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
    Column("envelope", Text),  # model.envelope.Envelope as JSON; NULL: as the task's own now
    Column("trace", Text),  # its span's context, as a traceparent; NULL: not traced
    PrimaryKeyConstraint("task_id", "claim"),
    sqlite_with_rowid=False,
)

Index(  # failed, retried and dead, by time: successes are far more, and an index of them would cost each of them
    "ix_schedd_attempts_failed",
    attempts.c.finished_at,
    sqlite_where=text("outcome >= 1 AND outcome <= 3"),
    postgresql_where=text("outcome >= 1 AND outcome <= 3"),
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
    Column("via", Text, nullable=False),  # python, cli, page, api, mcp, http
    Column("reason", Text),
    Column("task_id", BigInteger),
    Column("subject", Text),  # what it is about, if no task: "queue mail"
    Column("bulk", Text),  # the same for all rows of one change of many tasks
    Column("detail", Text),  # JSON: filter, before, after, and more
    sqlite_autoincrement=True,
)
Index("ix_schedd_audit_at", audit.c.at)
Index("ix_schedd_audit_actor", audit.c.actor, audit.c.id)
Index(
    "ix_schedd_audit_task_id",
    audit.c.task_id,
    sqlite_where=text("task_id IS NOT NULL"),
    postgresql_where=text("task_id IS NOT NULL"),
)

bulks = Table(  # changes of many tasks whose scope is frozen: see store/bulks.py
    "schedd_bulks",
    metadata,
    Column("name", Text, primary_key=True),  # also in the audit's rows of each change
    Column("verb", Text, nullable=False),
    Column("state", SmallInteger, nullable=False),  # model.bulk.BulkState.code
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("actor", Text),
    Column("via", Text, nullable=False),
    Column("reason", Text),
    Column("options", Text, nullable=False),  # JSON: of the verb
    Column("chosen", Text, nullable=False),  # JSON: the filter that chose the tasks
    Column("plan", Text, nullable=False),  # JSON: what it would do, when it was made
    Column("total", Integer, nullable=False),
    Column("position", Integer, nullable=False),  # of the next item
    Column("done", Integer, nullable=False),
    Column("passed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("dependants", Integer, nullable=False),
    Column("runner", Text),  # the process that runs it now, until its time is over
    Column("runner_until", BigInteger),
    Column("undoes", Text),  # the bulk whose changes it takes back
)
Index("ix_schedd_bulks_created_at", bulks.c.created_at)

bulk_items = Table(  # the frozen scope of a bulk, in the order in which it is done
    "schedd_bulk_items",
    metadata,
    Column("bulk", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("task_id", BigInteger, nullable=False),
    Column("before", SmallInteger),  # the state before it was changed
    Column("result", SmallInteger),  # model.bulk.ItemResult.code; NULL: not yet
    Column("note", Text),  # why it was passed over or failed
    PrimaryKeyConstraint("bulk", "position"),
    sqlite_with_rowid=False,
)

views = Table(  # filters of pages that a person has named
    "schedd_views",
    metadata,
    Column("owner", Text, nullable=False),  # '' for a view that everybody sees
    Column("page", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("query", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("owner", "page", "name"),
)

console_sessions = Table(  # of visitors who logged in with a token
    "schedd_console_sessions",
    metadata,
    Column("id", Text, primary_key=True),  # SHA-256 of what the cookie says
    Column("user", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
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
    Column("scope", Text, nullable=False),  # pool, kind, key, queue
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
    Column("type", SmallInteger, nullable=False),  # model.checkpoint.CheckpointType
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
    Column("seen_at", BigInteger, nullable=False),  # last registered; finds the orphans
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
    Column("measure", SmallInteger, nullable=False),  # model.rollup.Measure
    Column("bucket", SmallInteger, nullable=False),  # of model.rollup.BOUNDS
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

alerts = Table(  # those that are not ok
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

alert_silences = Table(
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

alert_messages = Table(  # an outbox: written with the state that they are about
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
    alert_messages.c.sink,
    alert_messages.c.next_at,
    sqlite_where=text("done = 0"),
    postgresql_where=text("done = 0"),
)

alert_lease = Table(  # of the one daemon that evaluates
    "schedd_alert_lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("memory", Text, nullable=False),  # JSON
)

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
Index(  # the verdict is InboxState.DEAD
    "ix_schedd_inbox_dead",
    inbox.c.last_at,
    sqlite_where=text("verdict = 2"),
    postgresql_where=text("verdict = 2"),
)
Index(
    "ix_schedd_inbox_held",
    inbox.c.source,
    inbox.c.subject,
    inbox.c.sequence,
    sqlite_where=text("held IS NOT NULL"),
    postgresql_where=text("held IS NOT NULL"),
)

inbox_subjects = Table(  # how far the messages of a subject have come, of sources that keep their order
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

executors = Table(  # which execute tasks elsewhere, and the lease of the one daemon that places for each
    "schedd_executors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("worker", BigInteger, nullable=False),  # its row of schedd_workers, which holds what no job has taken up
    Column("holder", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("trouble", Text),  # why the last look at the engine failed
)

placements = Table(  # jobs of executors, each for one claim of a task, or a worker: see worker_jobs.py
    "schedd_placements",
    metadata,
    Column("task_id", BigInteger, nullable=False),  # of a worker: minus the executor's row in schedd_workers
    Column("claim", BigInteger, nullable=False),  # of a worker: its number
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

"""The columns of each command, and records as the dicts that ``-o json`` prints: other programs use their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.client.json_views import TASK_VIEW
from scheduler.client.json_views import audit_view as audit_view
from scheduler.client.json_views import task_view as task_view
from scheduler.client.json_views import worker_view as worker_view

if TYPE_CHECKING:
    from scheduler.operations.workers import WorkerRecord


TASK_FIELDS = tuple(TASK_VIEW)
SHOW_FIELDS = (
    *TASK_FIELDS,
    *(
        "worker",
        "why",
        "runs",
        "standing",
        "depends_on",
        "dependents",
        "attempts",
        "children",
        "placements",
        "recorded",
        "waits",
        "audit",
        "stack",
        "log",
    ),
)
LIST_FIELDS = (*TASK_FIELDS, "age")
LIST_COLUMNS = ("id", "kind", "state", "priority", "attempt", "created_at", "run_at", "key", "error")
# On a terminal, where what matters first has to come first.
SCREEN_COLUMNS = ("id", "kind", "key", "state", "age", "attempt", "priority", "run_at", "created_at", "error")


EDGE_COLUMNS = ("id", "kind", "state", "when", "otherwise", "satisfied")


ENVELOPE_FIELDS = (
    *("correlation", "causation", "idempotency_key", "subject", "message_type", "schema_version", "sequence"),
    *("created_at", "payload", "payload_ref"),
)
ATTEMPT_COLUMNS = ("attempt", "outcome", "worker", "started_at", "finished_at", "seconds", "error")


PLACEMENT_COLUMNS = ("claim", "executor", "handle", "state", "phase", "node", "attached_at", "reason")


AUDIT_COLUMNS = ("at", "actor", "action", "reason", "via", "detail")
AUDIT_FIELDS = (
    *("id", "at", "actor", "action", "task_id", "subject", "reason", "via"),
    *("bulk", "filter", "before", "after", "detail"),
)


WORKER_FIELDS = (
    "id",
    "incarnation",
    "host",
    "pid",
    "version",
    "state",
    "queues",
    "pools",
    "processes",
    "max_concurrent_tasks",
    "kinds",
    "holds",
    "orphans",
    "hung",
    "running",
    "started_at",
    "heartbeat_at",
    "heartbeat_age",
    "lease_left",
    "skew",
)
_NAMED = 5  # running tasks that a table names
WORKER_COLUMNS = (
    "id",
    "host",
    "pid",
    "version",
    "state",
    "holds",
    "heartbeat_at",
    "lease_left",
    "queues",
    "kinds",
)


def worker_row(worker: WorkerRecord, now: int) -> dict[str, Any]:
    """The same for a table: lists as text, spans to the second."""
    row = worker_view(worker, now)
    left = row["lease_left"]
    found = worker.capacity
    room = {name: f"{threads}+{tasks}" for name, (threads, tasks) in found.pools.items() if threads or tasks}
    room |= {"processes": str(found.processes)} if found.processes else {}
    room |= {"at most": str(found.most)} if found.most else {}
    return row | {
        "queues": ",".join(worker.queues),
        "lease_left": None if left is None else round(left),
        "holds": f"{worker.holds} (+{worker.orphans} lost)" if worker.orphans else worker.holds,
        "pools": " ".join(f"{name}:{size}" for name, size in room.items()),
        "running": ", ".join(f"{one.id} {one.kind}" for one in worker.running[:_NAMED])
        + (f" and {len(worker.running) - _NAMED} more" if len(worker.running) > _NAMED else ""),
    }


CHECKPOINT_COLUMNS = ("name", "type", "recorded_at", "seconds", "size", "value", "error", "note")
WAIT_COLUMNS = ("name", "event", "task", "items", "open", "since", "until")

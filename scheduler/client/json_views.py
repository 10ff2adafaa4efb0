"""Stored records as the dicts that ``schedctl -o json`` and the console print: other programs rely on their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.model.task_columns import INSTANTS, SPANS, TaskColumns
from scheduler.model.texts import rfc3339
from scheduler.model.trace import parse_traceparent
from scheduler.ports import FOREVER

if TYPE_CHECKING:
    from scheduler.model.alerts import Alert
    from scheduler.model.problem import Problem
    from scheduler.operations.dead_letters import CauseGroup
    from scheduler.operations.masks import ViewMasks
    from scheduler.operations.schedules import ScheduleRecord, SchedulesNow
    from scheduler.operations.status import HealthStatus
    from scheduler.store.db.tx import Tx
    from scheduler.store.durable.checkpoints import CheckpointRecord
    from scheduler.store.durable.events import EventRecord
    from scheduler.store.durable.waits import WaitRecord
    from scheduler.store.graph.spawned import ChildRecord
    from scheduler.store.placements import PlacementRecord
    from scheduler.store.read.audit import AuditRecord
    from scheduler.store.read.graph import EdgeRecord
    from scheduler.store.read.history import AttemptRecord
    from scheduler.store.read.queues import QueueRecord
    from scheduler.store.read.status import Status
    from scheduler.store.read.tasks import TaskRecord
    from scheduler.store.read.workers import WorkerRecord

QUEUE_COUNTS = ("ready", "later", "held", "running", "retry", "suspended", "waiting")


def time(us: int | None) -> str | None:
    """A stored instant as RFC 3339, exact; None for none and for never."""
    return None if us is None or us >= FOREVER else rfc3339(us)


def seconds(us: int | None) -> float | None:
    """A stored span in seconds."""
    return None if us is None else us / 1_000_000


def decoded(text: str | None) -> Any:
    """Decode JSON; a text that is no JSON stays a text."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text


_INSTANTS = frozenset(("at", "since", "until", "began"))


def fields(record: object, *names: str) -> dict[str, Any]:
    """These fields of a record as JSON has them: enums by their values, tuples as lists, instants as RFC 3339.

    Instants are the integers called ``at``, ``since``, ``until``, ``began`` or ``…_at``.
    """
    return {name: _plain(name, getattr(record, name)) for name in names}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return time(value) if name in _INSTANTS or name.endswith("_at") else value


def _text_of(name: str) -> Callable[[TaskRecord], Any]:
    """How a column is shown: times as RFC 3339, spans in seconds, others as they are."""
    get = attrgetter(name)
    if name in INSTANTS:
        return lambda task: time(get(task))
    return (lambda task: seconds(get(task))) if name in SPANS else get


# Columns that are shown in another way than their type says.
_OWN_WAY: dict[str, Callable[[TaskRecord], Any]] = {
    "state": lambda task: task.state.value,
    "priority": lambda task: task.priority.label,
    "payload": lambda task: decoded(task.payload),
    "resources": lambda task: None if task.resources is None else msgspec.to_builtins(task.resources),
    "retry": lambda task: None if task.retry is None else msgspec.to_builtins(task.retry),
}
# What is shown beside the columns, by the column that it follows.
_AFTER: dict[str, tuple[str, Callable[[TaskRecord], Any]]] = {
    "state": ("simple", lambda task: task.state.simple),
    "unmet": ("result", lambda task: decoded(task.result_text)),
    "retry": ("attempts_used", attrgetter("attempts_used")),
    "spawned_by": ("claim", attrgetter("claim")),
}
_NAMES = {"worker": "worker_id"}


def _task_fields() -> Iterator[tuple[str, Callable[[TaskRecord], Any]]]:
    for name in TaskColumns.__struct_fields__:
        yield _NAMES.get(name, name), _OWN_WAY.get(name) or _text_of(name)
        if name in _AFTER:
            yield _AFTER[name]


TASK_VIEW = dict(_task_fields())
"""What is shown of a task, by name."""


def task_view(task: TaskRecord) -> dict[str, Any]:
    return {name: get(task) for name, get in TASK_VIEW.items()}


def edge_view(edge: EdgeRecord, other: int) -> dict[str, Any]:
    """An edge as seen from one of its ends; ``other``: the id of the task at the other end."""
    return {"id": other, **fields(edge, "kind", "state", "when", "otherwise", "satisfied")}


def children_view(shown: Iterable[ChildRecord], count: int) -> dict[str, Any]:
    """Some of the tasks that a task spawned, and how many there are."""
    return {"count": count, "tasks": [fields(c, "id", "kind", "state") for c in shown]}


def placement_view(placement: PlacementRecord) -> dict[str, Any]:
    """One job of an executor, and the claim that it is for."""
    return {
        **fields(placement, "claim", "executor", "name", "handle", "state", "phase", "reason", "node"),
        "submissions": placement.tries,
        **fields(placement, "reserved_at", "submitted_at", "attached_at", "seen_at", "lost"),
    }


def attempt_view(attempt: AttemptRecord) -> dict[str, Any]:
    """One attempt that has ended."""
    ran = None if attempt.started_at is None else attempt.finished_at - attempt.started_at
    envelope = attempt.envelope
    return {
        "attempt": attempt.number,
        **fields(attempt, "claim", "outcome", "worker", "claimed_at", "started_at", "finished_at"),
        "seconds": seconds(ran),
        **fields(attempt, "error", "error_class", "fingerprint", "status_code"),
        "correlation": envelope.correlation_id,
        "causation": envelope.causation_id,
        **fields(envelope, "idempotency_key", "subject", "message_type", "schema_version", "sequence"),
        "created_at": envelope.created_at.isoformat().replace("+00:00", "Z"),
        "payload": decoded(envelope.payload),
        "payload_ref": envelope.payload_ref,
        **trace_view(attempt.trace),
    }


def trace_view(traceparent: str | None) -> dict[str, Any]:
    """The ids of an attempt's span, None for an attempt that was not traced."""
    context = None if traceparent is None else parse_traceparent(traceparent)
    if context is None:
        return {"trace_id": None, "span_id": None}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def audit_view(entry: AuditRecord) -> dict[str, Any]:
    """One entry of the audit."""
    return fields(entry, *entry._fields)


def worker_view(worker: WorkerRecord, now: int) -> dict[str, Any]:
    """One worker; ``heartbeat_age`` and ``lease_left`` are seconds at ``now``, ``skew`` its clock behind the server."""
    return {
        **fields(worker, "id", "incarnation", "host", "pid", "version", "state", "queues"),
        "pools": {name: {"slots": s, "async_slots": a} for name, (s, a) in worker.capacity.pools.items()},
        "processes": worker.capacity.processes,
        "max_concurrent_tasks": worker.capacity.most,
        **fields(worker, "kinds", "holds"),
        "orphans": {"count": worker.orphans, "tasks": list(worker.orphaned_tasks)},
        "hung": [
            {"id": one.task, "kind": one.kind, "since": time(one.since), "blocks_loop": one.blocks}
            for one in worker.hung
        ],
        "running": [fields(one, "id", "kind", "since") for one in worker.running],
        **fields(worker, "started_at", "heartbeat_at"),
        "heartbeat_age": seconds(max(0, now - worker.heartbeat_at)),
        "lease_left": seconds(max(0, worker.lease_until - now)) if worker.alive else None,
        "skew": seconds(worker.skew),
    }


def queue_view(queue: QueueRecord, now: int) -> dict[str, Any]:
    """How a queue does."""
    pause = queue.pause
    return {
        "queue": queue.name,
        **{name: queue.counts[name] for name in QUEUE_COUNTS},
        "at_least": sorted(queue.at_least),
        "oldest_ready": time(queue.oldest),
        "oldest_age": None if queue.oldest is None else seconds(max(0, now - queue.oldest)),
        "in": round(queue.arriving, 3),
        "out": round(queue.leaving, 3),
        **fields(queue, "workers", "unserved"),
        "last_served": queue.last,
        "remedy": queue.remedy,
        "paused": None
        if pause is None
        else {"scope": pause.scope, "since": time(pause.at), "by": pause.actor, "reason": pause.reason},
        **fields(queue, "max_concurrency", "rate_limit"),
    }


def status_view(found: Status, now: int) -> dict[str, Any]:
    """How things stand at ``now``."""
    oldest = found.oldest
    return {
        "at": time(now),
        "states": found.states,
        "at_least": sorted(found.capped),
        "pools": {name: count._asdict() for name, count in found.pools.items()},
        "oldest_ready": None
        if oldest is None
        else {
            **fields(oldest, "id", "kind", "queue", "since"),
            "age": seconds(max(0, now - oldest.since)),
            "cause": None if oldest.cause is None else oldest.cause.name,
        },
        "backlogs": [
            {
                "queue": one.queue,
                "ready": one.number,
                "since": time(one.since),
                "in": round(one.arriving, 3),
                "out": round(one.leaving, 3),
                "drained_in": seconds(one.drained_in),
                "at_least": one.capped,
                "text": one.describe(),
            }
            for one in found.flows
        ],
        "dead_letters": {
            "count": found.states.get("dead", 0),
            "oldest": time(found.oldest_dead),
            "oldest_age": None if found.oldest_dead is None else seconds(max(0, now - found.oldest_dead)),
        },
        "workers": [worker_view(worker, now) for worker in found.workers],
        "stuck": [problem_view(one) for one in found.stuck],
        "idle": None if found.idle is None else problem_view(found.idle),
        "causes": {
            "total": len(found.causes.causes),
            "whole": found.causes.whole,
            "largest": [
                {
                    **fields(one, "number", "kinds", "error_class", "error"),
                    "since": time(one.oldest),
                    "task": one.id,
                }
                for one in found.causes.causes[:SHOWN_CAUSES]
            ],
        },
        "by_hand": [
            {**fields(one, "sort", "text", "since"), "by": one.actor, **fields(one, "reason", "undo")}
            for one in found.by_hand
        ],
        "paused": [
            {
                "scope": p.scope,
                "name": p.name or None,
                "since": time(p.at),
                "by": p.actor,
                "reason": p.reason,
                "due": due,
            }
            for p, due in found.paused
        ],
        "held_messages": [
            {"source": h.source, "messages": h.number, "subjects": h.subjects, "since": time(h.since)}
            for h in found.held
        ],
        "dead_messages": [
            {"source": d.source, "messages": d.number, "last_at": time(d.last_at), "last_error": d.error}
            for d in found.dead_messages
        ],
    }


SHOWN_CAUSES = 5  # of dead letters


def problem_view(problem: Problem) -> dict[str, Any]:
    """One thing that is wrong."""
    return {"problem": problem.name, **fields(problem, "text", "number", "tasks", "since", "remedy")}


def health_view(found: HealthStatus) -> dict[str, Any]:
    """A verdict, with its causes."""
    causes = [fields(one, "problem", "bad", "text", "tasks", "since", "remedy", "next") for one in found.causes]
    return {**fields(found, "verdict", "at"), "causes": causes}


def checkpoint_view(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """One checkpoint; it has its ``value`` if that is short. The value of a sleep is its end."""
    from scheduler.model.checkpoint import CheckpointType

    took = None if checkpoint.started_at is None else checkpoint.at - checkpoint.started_at
    value, failure = decoded(checkpoint.value), decoded(checkpoint.failure)
    return {
        "name": checkpoint.name,
        "type": checkpoint.type.label,
        **fields(checkpoint, "claim", "started_at"),
        "recorded_at": time(checkpoint.at),
        "seconds": seconds(took),
        "size": checkpoint.size,
        "value": time(value) if checkpoint.type is CheckpointType.SLEEP else value,
        "error": None if failure is None else f"{failure['type']}: {', '.join(map(str, failure['args']))}",
        "note": checkpoint.note,
    }


def alert_view(alert: Alert) -> dict[str, Any]:
    return {
        "rule": alert.key.rule,
        "about": alert.key.kind or None,
        "fingerprint": alert.key.fingerprint or None,
        "state": alert.phase.name.lower(),
        **fields(alert, "since", "began", "number", "text", "notified_at"),
        "detail": dict(alert.detail),
    }


def wait_view(wait: WaitRecord) -> dict[str, Any]:
    """One wait of a task: for an event, a task, or ``items`` tasks, ``open`` of them not ended."""
    return {
        **fields(wait, "name", "event", "task", "items", "open"),
        "since": time(wait.at),
        "until": time(wait.until),
    }


def event_view(event: EventRecord) -> dict[str, Any]:
    return {
        **fields(event, "name", "emitted_at", "emitted_by", "waiting", "size"),
        "payload": None if event.payload is None else msgspec.json.decode(event.payload),
    }


def dead_group_view(group: CauseGroup, total: tuple[int, int], hidden: ViewMasks) -> dict[str, Any]:
    """Dead letters of one kind and cause; ``total``: how many letters and kinds there are of the cause."""
    return {
        "count": group.number,
        "what": f"{group.error_class or 'error'} in {group.runs}",
        **fields(group, "kind", "error_class", "fingerprint"),
        "oldest": time(group.oldest),
        "newest": time(group.newest),
        "id": group.id,
        "error": hidden.error(group.id, group.kind, group.error),
        **dict(zip(("shared_count", "shared_kinds"), total, strict=True)),
    }


def schedule_view(one: ScheduleRecord, found: SchedulesNow, hidden: ViewMasks) -> dict[str, Any]:
    """One schedule of those that were found."""
    from scheduler.operations import schedules

    return {
        **fields(one, "name", "kind"),
        "recurrence": one.recurrence.describe(),
        "next_at": time(one.next_at),
        "next_local": schedules.local_time(one),
        "last_slot": time(one.last_slot),
        **fields(one, "last_task", "paused"),
        "orphan": one.name in found.orphans,
        "unserved": found.unserved.get(one.name),
        **fields(one, "catchup", "overlap"),
        "jitter": seconds(one.jitter),
        "owner": one.owner,
        "tasks": schedules.nodes(one),
        "payload": None if one.graph is not None else hidden.payload(one.kind, decoded(one.payload)),
        **fields(one, "created_at", "updated_at", "seen_at"),
    }


def whole_task_view(tx: Tx, task: TaskRecord) -> dict[str, Any]:
    """All that ``schedctl show`` prints of a task, with its secrets."""
    from scheduler.operations.details import attempt_log, details, whole_why

    found = details(tx, task, children=SHOWN_CHILDREN)
    log = attempt_log(tx, task.id)
    stands = found.standing
    return {
        **task_view(found.task),
        "worker": None if found.worker is None else found.worker.label,
        "why": whole_why(tx, task.id),
        "runs": found.runs if task.worker else None,
        "standing": None if stands is None else {"since": time(stands.since), "where": stands.where},
        "depends_on": [edge_view(e, e.parent) for e in found.depends_on],
        "dependents": [edge_view(e, e.child) for e in found.dependents],
        "attempts": [attempt_view(a) for a in found.attempts],
        "children": children_view(found.children, found.child_count),
        "placements": [placement_view(p) for p in found.placements],
        "recorded": [checkpoint_view(c) for c in found.recorded],
        "waits": [wait_view(w) for w in found.waits],
        "audit": [audit_view(a) for a in found.audit],
        "stack": None if found.stack is None else found.stack.splitlines(),
        "log": None if log is None else log.splitlines()[-LOG_LINES:],
    }


SHOWN_CHILDREN = 20
LOG_LINES = 20

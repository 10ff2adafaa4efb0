"""What is recorded of tasks' lives: their timelines, and how things stood at a past instant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.checkpoint import CheckpointType
from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import FIRST_TERMINAL, TaskState
from scheduler.model.texts import rfc3339
from scheduler.model.timeline import Attempted, AuditedChange, Life, Span, spans, state_at
from scheduler.ports import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints
from scheduler.store.read import audit
from scheduler.store.read.graph import StoredGraph
from scheduler.store.read.paging import first_id
from scheduler.store.read.stats import StatsRecord, stats
from scheduler.store.read.tasks import get_task
from scheduler.store.read.workers import workers

_CHUNK = 2_000  # tasks read in one statement
_MOST_CHANGES = 20_000  # audit entries that are read of a chunk
_SLACK = 600 * SECOND  # ids and creation times may be this much out of step
_HOUR = 3_600 * SECOND

_TASKS = (
    "SELECT id, kind, state, created_at, run_at, claim, attempt, claimed_at, started_at, finished_at "
    "FROM schedd_tasks WHERE {among}"
)
_ATTEMPTS = (
    "SELECT task_id, claim, number, claimed_at, started_at, finished_at, outcome FROM schedd_attempts WHERE {among}"
)
_PARENTS = (
    "SELECT e.child, count(*), count(p.id), max(p.finished_at), "
    f"sum(CASE WHEN p.state < {FIRST_TERMINAL} THEN 1 ELSE 0 END) "
    "FROM schedd_edges e LEFT JOIN schedd_tasks p ON p.id = e.parent WHERE {among} GROUP BY e.child"
)
_CHANGES = (
    "SELECT task_id, at, action, detail FROM schedd_audit WHERE task_id IS NOT NULL AND {among} "
    "AND action IN ('cancel', 'retry', 'replay', 'rerun') ORDER BY id LIMIT :most"
)


def read_lives(tx: Tx, ids: Sequence[int]) -> dict[int, Life]:
    """What is recorded of these tasks, those that are not stored left out."""
    found: dict[int, Life] = {}
    wanted = list(dict.fromkeys(map(int, ids)))
    for begin in range(0, len(wanted), _CHUNK):
        found |= _read_chunk(tx, wanted[begin : begin + _CHUNK])
    return found


def _read_chunk(tx: Tx, ids: Sequence[int]) -> dict[int, Life]:
    bound = tx.dialect.bind_ids(ids)

    def read(sql: str, column: str, **more: object) -> Iterable[Any]:
        return tx.run(sql.format(among=tx.dialect.among(column)), ids=bound, **more)

    attempts: dict[int, list[Attempted]] = {}
    for task_id, claim, number, claimed, started, finished, outcome in read(_ATTEMPTS, "task_id"):
        if outcome in range(len(AttemptEnd)):
            end = AttemptEnd.from_code(outcome)
            attempts.setdefault(task_id, []).append(Attempted(claim, number, claimed, started, finished, end))
    changes: dict[int, list[AuditedChange]] = {}
    for task_id, at, action, detail in read(_CHANGES, "task_id", most=_MOST_CHANGES):
        changes.setdefault(task_id, []).append(AuditedChange(at, action, _before(detail)))
    parents = {row[0]: row for row in read(_PARENTS, "e.child")}
    found = {}
    for row in read(_TASKS, "id"):
        if row.state not in range(len(TaskState)):
            continue
        state = TaskState.from_code(row.state)
        _, count, stored, ended, alive = parents.get(row.id, (row.id, 0, 0, None, 0))
        found[row.id] = Life(
            *(row.id, state, row.created_at, row.run_at, tx.now),
            *(attempts.get(row.id, ()), changes.get(row.id, ())),
            *(count, ended if stored == count and not alive else None),
            *(row.claim, row.attempt, row.claimed_at, row.started_at),
            row.finished_at if state.terminal else None,
        )
    return found


def _before(detail: str | None) -> TaskState | None:
    try:
        found = msgspec.json.decode(detail or "{}").get("before")
        return None if found is None else TaskState(found)
    except (msgspec.MsgspecError, ValueError, AttributeError):
        return None


class Mark(NamedTuple):
    """A verb on the task. ``text``: ``cancel by alice: wrong customer``."""

    at: int
    text: str


class Step(NamedTuple):
    """What an attempt recorded on its way. ``start`` None: it took no time of its own."""

    name: str
    type: CheckpointType
    claim: int
    start: int | None
    end: int


class TaskTimeline(NamedTuple):
    """``spans``: the times of a task; ``steps``: its checkpoints; ``marks``: who did something to it, and when."""

    spans: list[Span]
    steps: list[Step]
    marks: list[Mark]


def timeline(tx: Tx, task_id: int) -> TaskTimeline:
    """What a task has been through. Raises UnknownTaskError."""
    get_task(tx, task_id)
    life = read_lives(tx, [task_id])[int(task_id)]
    steps = [Step(c.name, c.type, c.claim, c.started_at, c.at) for c in checkpoints.records(tx, task_id)]
    marks = [Mark(e.at, f"{e.action} {audit.by(e)}") for e in audit.of_task(tx, task_id)]
    return TaskTimeline(spans(life), steps, marks)


def check_past(tx: Tx, at: int) -> None:
    """Raises ConfigError for an instant that is still to come."""
    if at > tx.now:
        raise ConfigError(f"{rfc3339(at, exact=False)} is still to come: a past instant is needed")


class PastTask(NamedTuple):
    """How a task stood at ``at``. ``state``: None if nothing says so; ``existed``: whether it had been made.

    ``span``: the time of its life that ``at`` lies in; ``attempt``: the number of the attempt that was under way.
    """

    id: int
    at: int
    existed: bool
    state: TaskState | None
    span: Span | None
    attempt: int | None


def task_at(tx: Tx, task_id: int, at: int) -> PastTask:
    """How a task stood at a past instant (microseconds). Raises UnknownTaskError, ConfigError."""
    check_past(tx, at)
    get_task(tx, task_id)
    life = read_lives(tx, [task_id])[int(task_id)]
    if at < life.created_at:
        return PastTask(life.id, at, False, None, None, None)
    within = [s for s in spans(life) if s.start <= at and (s.end is None or at < s.end)]
    span = within[-1] if within else None
    return PastTask(life.id, at, True, state_at(life, at), span, None if span is None else span.number)


def states_at(tx: Tx, ids: Sequence[int], at: int) -> dict[int, TaskState | None]:
    """The states of tasks at a past instant, None where nothing says which; those made later are left out.

    Of a task that retention removed since nothing is known of its time. Raises ConfigError.
    """
    check_past(tx, at)
    found = read_lives(tx, ids)
    return {
        task_id: state_at(found[task_id], at) if task_id in found else None
        for task_id in ids
        if task_id not in found or found[task_id].created_at <= at
    }


class PastGraph(NamedTuple):
    """``states``: of the tasks that had been made, None where nothing says which; ``absent``: those made later."""

    at: int
    states: dict[int, TaskState | None]
    absent: list[int]


def graph_at(tx: Tx, graph: StoredGraph, at: int) -> PastGraph:
    """How the tasks of a graph stood at a past instant (microseconds). Raises ConfigError."""
    ids = [node.id for node in graph.nodes]
    states = states_at(tx, ids, at)
    return PastGraph(at, states, [task_id for task_id in ids if task_id not in states])


class PastWorker(NamedTuple):
    """A worker that had started and sent a later sign of life; ``label``: host:pid."""

    id: int
    label: str
    started_at: int


class PastStatus(NamedTuple):
    """How things stood at ``at``, as far as it is recorded.

    ``looked_at``: how many tasks were looked at, the newest of those made before; ``more``: there were more, so the
    counts are of these only. ``counts``: state -> how many, None for states without a record. ``running``: those
    under way. ``stats``: the attempts that ended in the hour before. ``changes``: what was done in that hour.
    """

    at: int
    looked_at: int
    more: bool
    counts: dict[TaskState | None, int]
    running: list[int]
    workers: list[PastWorker]
    stats: StatsRecord
    changes: list[audit.AuditRecord]


def status_at(tx: Tx, at: int, *, limit: int = 2_000) -> PastStatus:
    """How things stood at a past instant (microseconds), from the newest ``limit`` tasks made before it.

    Tasks that retention has removed since are not among them. Raises ConfigError.
    """
    check_past(tx, at)
    below = first_id(tx, at + _SLACK) + 1
    rows = tx.run(
        "SELECT id FROM schedd_tasks WHERE id < :below AND created_at <= :at ORDER BY id DESC LIMIT :limit",
        below=below,
        at=at,
        limit=limit + 1,
    ).fetchall()
    states = states_at(tx, [row[0] for row in rows[:limit]], at)
    counts: dict[TaskState | None, int] = {}
    for state in states.values():
        counts[state] = counts.get(state, 0) + 1
    running = sorted(task_id for task_id, state in states.items() if state is TaskState.RUNNING)
    there = [
        PastWorker(w.id, w.label, w.started_at)
        for w in workers(tx, every=True)
        if w.started_at <= at <= w.heartbeat_at or (w.started_at <= at and w.alive)
    ]
    changes, _ = audit.entries(tx, audit.AuditFilter(since=at - _HOUR, until=at + 1), 100)
    return PastStatus(
        *(at, len(states), len(rows) > limit, counts, running, there),
        stats(tx, at - _HOUR, at),
        changes,
    )

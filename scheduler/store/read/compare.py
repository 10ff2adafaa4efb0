"""Compares a task, or the graph that it belongs to, with an earlier run: by default the last good one of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scheduler.model.compare import pattern
from scheduler.model.graph_folding import role_classes
from scheduler.model.state import SUCCESS, TaskState
from scheduler.model.task_filter import TaskFilter, in_states, only
from scheduler.store.db.tx import Tx
from scheduler.store.read.choose import chosen_tasks
from scheduler.store.read.graph import StoredGraph, graph
from scheduler.store.read.tasks import TaskRecord, get_task

_RUNS = 20  # earlier runs of a schedule among which a good one is looked for
_TASKS = 200  # earlier successes of a kind
MAX_GRAPH = 2_000  # tasks of each graph
_CHUNK = 5_000


class Side(NamedTuple):
    """The tasks of one run in a role. ``run_time``: microseconds that their handlers ran, of all attempts together;
    ``attempts``: how many there were; ``ends``: state -> how many."""

    tasks: tuple[int, ...]
    run_time: int
    attempts: int
    ends: dict[TaskState, int]


class RolePair(NamedTuple):
    """The tasks of one role in both runs; a side without tasks: only the other run has it."""

    kind: str | None
    ours: Side
    theirs: Side


class Comparison(NamedTuple):
    """A task beside an earlier one. ``whole``: how long the runs took, from the first start to the last end, or None.

    ``roles``: the tasks of both graphs by role, in the order of the ids. ``truncated``: a graph has more than 2,000
    tasks.
    """

    task: TaskRecord
    other: TaskRecord
    whole: tuple[int | None, int | None]
    roles: list[RolePair]
    truncated: bool


def last_good(tx: Tx, task_id: int) -> int | None:
    """The last task before this one with which it can be compared, and whose run succeeded; None: there is none.

    Of one that a schedule made: the same task of the last fire time whose tasks all succeeded. Of another one: the last
    success of its kind whose correlation and key differ in numbers only. Raises UnknownTaskError.
    """
    task = get_task(tx, task_id)
    if task.schedule is not None and task.slot is not None:
        return _of_schedule(tx, task)
    wanted = TaskFilter((only("kind", task.kind), in_states([TaskState.SUCCESS])), up_to=task.id - 1)
    found, _ = chosen_tasks(tx, wanted, None, _TASKS)
    ids = [row.id for row in found]
    rows = tx.run(
        f"SELECT id, correlation, key FROM schedd_tasks WHERE {tx.dialect.among('id')} ORDER BY id DESC",
        ids=tx.dialect.bind_ids(ids),
    )
    like = _pattern(task.id, task.correlation, task.key)
    return next((row.id for row in rows if _pattern(row.id, row.correlation, row.key) == like), None)


def _pattern(task_id: int, correlation: str | None, key: str | None) -> tuple[str, str]:
    own = correlation is None or correlation == str(task_id)
    return "" if own else pattern(correlation or ""), pattern(key or "")


def _of_schedule(tx: Tx, task: TaskRecord) -> int | None:
    slots = tx.run(
        "SELECT slot, min(state), max(state) FROM schedd_tasks WHERE schedule = :name AND slot < :slot "
        "GROUP BY slot ORDER BY slot DESC LIMIT :limit",
        name=task.schedule,
        slot=task.slot,
        limit=_RUNS,
    ).fetchall()
    good = next((row[0] for row in slots if row[1] == row[2] == SUCCESS), None)
    if good is None:
        return None
    rows = tx.run(
        "SELECT id, key FROM schedd_tasks WHERE schedule = :name AND slot = :slot AND kind = :kind ORDER BY id",
        name=task.schedule,
        slot=good,
        kind=task.kind,
    ).fetchall()
    like = pattern(task.key or "")
    return next((row.id for row in rows if pattern(row.key or "") == like), rows[0].id if rows else None)


def compare(tx: Tx, task_id: int, other: int | None = None) -> Comparison | None:
    """A task and its graph beside an earlier one; None: there is none. ``other``: the last good one, if not given.

    Raises UnknownTaskError.
    """
    task = get_task(tx, task_id)
    if other is None:
        other = last_good(tx, task_id)
        if other is None:
            return None
    earlier = get_task(tx, other)
    ours, theirs = graph(tx, task.id, MAX_GRAPH), graph(tx, earlier.id, MAX_GRAPH)
    if {node.id for node in ours.nodes} & {node.id for node in theirs.nodes}:  # of one graph: only these two
        ours, theirs = _alone(ours, task.id), _alone(theirs, earlier.id)
    times = _times(tx, [node.id for node in (*ours.nodes, *theirs.nodes)])
    return Comparison(
        task,
        earlier,
        (_whole(ours, times), _whole(theirs, times)),
        _roles(ours, theirs, times),
        ours.truncated or theirs.truncated,
    )


def _alone(whole: StoredGraph, task_id: int) -> StoredGraph:
    return StoredGraph([node for node in whole.nodes if node.id == task_id], [], False)


class _Times(NamedTuple):
    run_time: int
    attempts: int
    first: int | None
    last: int | None


def _times(tx: Tx, ids: Sequence[int]) -> dict[int, _Times]:
    found: dict[int, _Times] = {}
    for begin in range(0, len(ids), _CHUNK):
        rows = tx.run(
            "SELECT task_id, sum(finished_at - started_at), count(*), min(started_at), max(finished_at) "
            f"FROM schedd_attempts WHERE {tx.dialect.among('task_id')} AND started_at IS NOT NULL GROUP BY task_id",
            ids=tx.dialect.bind_ids(ids[begin : begin + _CHUNK]),
        )
        found |= {row[0]: _Times(int(row[1]), int(row[2]), row[3], row[4]) for row in rows}
    return found


def _whole(one: StoredGraph, times: Mapping[int, _Times]) -> int | None:
    known = [times[node.id] for node in one.nodes if node.id in times]
    firsts = [t.first for t in known if t.first is not None]
    lasts = [t.last for t in known if t.last is not None]
    return max(lasts) - min(firsts) if firsts and lasts else None


def _roles(ours: StoredGraph, theirs: StoredGraph, times: Mapping[int, _Times]) -> list[RolePair]:
    """Pair what has the same role in both, then by kind what has none: a graph of another shape has other roles."""
    nodes = {node.id: node for node in (*ours.nodes, *theirs.nodes)}
    edges = [(edge.parent, edge.child) for edge in (*ours.edges, *theirs.edges)]
    role = role_classes({node.id: node.kind for node in nodes.values()}, edges)
    own = {node.id for node in ours.nodes}
    sides: dict[Any, tuple[list[int], list[int]]] = {}
    for task_id in sorted(nodes):
        sides.setdefault(role[task_id], ([], []))[task_id not in own].append(task_id)
    paired: dict[Any, tuple[list[int], list[int]]] = {}
    for number, (one, other) in sides.items():
        key = number if one and other else ("kind", nodes[(one or other)[0]].kind)
        both = paired.setdefault(key, ([], []))
        both[0].extend(one)
        both[1].extend(other)
    found = [
        RolePair(nodes[(one or other)[0]].kind, *(_side(some, nodes, times) for some in (one, other)))
        for one, other in paired.values()
    ]
    return sorted(found, key=lambda pair: (pair.ours.tasks or pair.theirs.tasks)[0])


def _side(ids: list[int], nodes: Mapping[int, Any], times: Mapping[int, _Times]) -> Side:
    known = [times[i] for i in ids if i in times]
    ends: dict[TaskState, int] = {}
    for i in ids:
        ends[nodes[i].state] = ends.get(nodes[i].state, 0) + 1
    return Side(tuple(sorted(ids)), sum(t.run_time for t in known), sum(t.attempts for t in known), ends)

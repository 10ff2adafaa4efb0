"""Looks ahead and back: graphs and estimates, comparisons, past states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler.model.compare import FieldChange, TextDiff, text_diff
from scheduler.store.db.tx import Tx
from scheduler.store.read.compare import Comparison, compare
from scheduler.store.read.estimate import graph_estimate as graph_estimate
from scheduler.store.read.graph import GraphNode as GraphNode
from scheduler.store.read.graph import StoredGraph as StoredGraph
from scheduler.store.read.graph import graph as graph
from scheduler.store.read.graph import newest_graphs as newest_graphs
from scheduler.store.read.history import attempt_log
from scheduler.store.read.past import TaskTimeline as TaskTimeline
from scheduler.store.read.past import graph_at as graph_at
from scheduler.store.read.past import status_at as status_at
from scheduler.store.read.past import task_at as task_at
from scheduler.store.read.past import timeline as timeline
from scheduler.store.read.task_masks import TaskMasks, payload_changes


class Beside(NamedTuple):
    """A run beside another: ``payload`` and ``log`` without secrets."""

    found: Comparison
    payload: Sequence[FieldChange]
    log: TextDiff


def beside(
    tx: Tx, task_id: int, other: int | None, *, masks: type[TaskMasks] = TaskMasks, shown: Callable[[str], str] = str
) -> Beside | None:
    """A task and its graph beside ``other``, by default the last good run of its kind; None: there is none.

    ``shown``: how a log is shown, before its secrets are hidden. Raises UnknownTaskError.
    """
    found = compare(tx, task_id, other)
    if found is None:
        return None
    pair = (found.other, found.task)
    made = masks(tx, {task.kind for task in pair})
    own = [made.of(task) for task in pair]
    logs = [mask.text(shown(attempt_log(tx, task.id) or "")) or "" for mask, task in zip(own, pair, strict=True)]
    return Beside(found, payload_changes(own, [task.payload for task in pair]), text_diff(*logs))

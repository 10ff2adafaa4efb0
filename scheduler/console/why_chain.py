"""Why a task does not run, followed to the root: it waits for 12, which waits for 7, which is dead."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.errors import UnknownTaskError
from scheduler.model.state import TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.read.explain import why
from scheduler.store.read.graph import dependencies
from scheduler.store.read.tasks import TaskRecord, get_task

LONGEST = 12  # links of a chain


class Link(NamedTuple):
    """A task of the chain, and why it does not run, or how it ended. ``event``: it waits for this one.

    ``by_parent``: it ended because another task did.
    """

    id: int
    kind: str
    state: str
    why: str | None
    by_parent: bool = False
    event: str | None = None


def why_chain(tx: Tx, task: TaskRecord) -> list[Link]:
    """The task itself, then what it waits for or ended with, down to what an operator can do something about."""
    found: list[Link] = []
    seen: set[int] = set()
    current: TaskRecord | None = task
    while current is not None and current.id not in seen and len(found) < LONGEST:
        seen.add(current.id)
        awaited = waits.records(tx, current.id) if current.state is TaskState.SUSPENDED else []
        event = next((wait.event for wait in awaited if wait.event is not None), None)
        found.append(
            Link(
                current.id, current.kind, current.state.value, why(tx, current.id), current.ended_by is not None, event
            )
        )
        following = _next(tx, current, [wait.task for wait in awaited if wait.task is not None])
        try:
            current = None if following is None else get_task(tx, following)
        except UnknownTaskError:
            current = None
    return found


def _next(tx: Tx, task: TaskRecord, awaited: list[int]) -> int | None:
    """The task that this one waits for, or whose end ended it: what has failed before what still lives."""
    if task.state.terminal:
        return task.ended_by
    if task.state is TaskState.SUSPENDED:
        return awaited[0] if awaited else None
    if task.state is not TaskState.WAITING:
        return None
    unmet = [edge for edge in dependencies(tx, task.id) if not edge.satisfied]
    unmet.sort(key=lambda edge: (not edge.state.terminal, edge.state is not TaskState.WAITING, edge.parent))
    return unmet[0].parent if unmet else None

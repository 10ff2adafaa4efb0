"""Why a task does not run, followed to the root: it waits for 12, which waits for 7, which is dead."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.errors import UnknownTaskError
from scheduler.model.state import TaskState
from scheduler.model.texts import rfc3339
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.read.explain import why
from scheduler.store.read.graph import dependencies
from scheduler.store.read.task_masks import TaskMasks
from scheduler.store.read.tasks import TaskRecord, get_task

LONGEST = 12  # links of a chain that are shown
_MOST = 1000  # that are followed


class ChainLink(NamedTuple):
    """A task of the chain, and why it does not run, or how it ended. ``event``: it waits for this one.

    ``by_parent``: it ended because another task did.
    """

    id: int
    kind: str
    state: str
    why: str | None
    by_parent: bool = False
    event: str | None = None


def why_chain(tx: Tx, task: TaskRecord) -> list[ChainLink]:
    """The task itself, then what it waits for or ended with, down to what an operator can do something about.

    Of a chain longer than :data:`LONGEST` the last link follows the first ones.
    """
    tasks, _ = _walk(tx, task)
    shown = tasks if len(tasks) <= LONGEST else [*tasks[: LONGEST - 1], tasks[-1]]
    return [_link(tx, one) for one in shown]


def whole_why(tx: Tx, task_id: int) -> str | None:
    """Why the task is not running, and what stands at the root of that; None if it runs and nothing is amiss.

    Raises UnknownTaskError.
    """
    own, (tasks, ring) = why(tx, task_id), _walk(tx, get_task(tx, task_id))
    if len(tasks) < 2 or ring or tasks[-1].state is TaskState.SUCCESS:  # its own words tell of a ring, and of a success
        return own
    root = tasks[-1]
    ids = [str(one.id) for one in tasks]
    way = " -> ".join(ids if len(ids) <= LONGEST else [*ids[: LONGEST - 1], "…", ids[-1]])
    by_way = "" if len(tasks) == 2 else f" (by way of {way})"
    return f"{own or 'it is running'}; task {root.id} ({root.kind}){by_way}: {_words(tx, root) or _runs(root)}"


def _words(tx: Tx, task: TaskRecord) -> str | None:
    """Why this task does not run, without its secrets: whoever asks may be asking about another kind."""
    text = why(tx, task.id)
    return None if text is None else TaskMasks(tx, [task.kind]).of_all(task).text(text)


def _runs(task: TaskRecord) -> str:
    return "it is running" if task.started_at is None else f"it runs since {rfc3339(task.started_at, exact=False)}"


def _walk(tx: Tx, task: TaskRecord) -> tuple[list[TaskRecord], bool]:
    """The tasks of the chain, and whether it leads back into itself."""
    found, seen = [task], {task.id}
    while len(found) < _MOST:
        following = _next(tx, found[-1])
        if following is None:
            break
        if following in seen:
            return found, True
        seen.add(following)
        try:
            found.append(get_task(tx, following))
        except UnknownTaskError:
            break
    return found, False


def _link(tx: Tx, task: TaskRecord) -> ChainLink:
    awaited = waits.records(tx, task.id) if task.state is TaskState.SUSPENDED else []
    event = next((wait.event for wait in awaited if wait.event is not None), None)
    return ChainLink(task.id, task.kind, task.state.value, _words(tx, task), task.ended_by is not None, event)


def _next(tx: Tx, task: TaskRecord) -> int | None:
    """The task that this one waits for, or whose end ended it: what has failed before what still lives."""
    if task.state.terminal:
        return task.ended_by
    if task.state is TaskState.SUSPENDED:
        return waits.awaited_task(tx, task.id)
    if task.state is not TaskState.WAITING:
        return None
    unmet = [edge for edge in dependencies(tx, task.id) if not edge.satisfied]
    unmet.sort(key=lambda edge: (not edge.state.terminal, edge.state is not TaskState.WAITING, edge.parent))
    return unmet[0].parent if unmet else None

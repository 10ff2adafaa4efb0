"""Masks: hide the secrets of tasks in what any door shows; the audit says who has them shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.store import audit
from scheduler.store.db.tx import Tx
from scheduler.store.read import task_masks
from scheduler.store.read.task_masks import MASK as MASK
from scheduler.store.read.task_masks import TaskMask as TaskMask
from scheduler.store.read.task_masks import TaskMasks as TaskMasks
from scheduler.store.read.task_masks import masked as masked
from scheduler.store.read.task_masks import masked_schema as masked_schema
from scheduler.store.read.task_masks import masked_text as masked_text
from scheduler.store.read.task_masks import secret_path as secret_path
from scheduler.store.read.tasks import TaskRecord, get_task

if TYPE_CHECKING:
    from scheduler.operations.desk import Desk

_AS_THEY_ARE = frozenset({"id", "kind", "state", "simple", "queue", "priority", "created_at", "run_at", "retry"})
_NAMES = frozenset({"key", "correlation", "causation", "subject", "idempotency_key", "schedule"})


class ViewMasks:
    """Hides the secrets of tasks of several kinds in views of them, within one read."""

    def __init__(self, tx: Tx, kinds: Iterable[str]) -> None:
        self._tx = tx
        self._masks = task_masks.TaskMasks(tx, kinds)

    def hides(self, task: TaskRecord) -> bool:
        """Whether something of the payload of a task is hidden."""
        return self._masks.of(task).hides(task.payload)

    def text(self, task: TaskRecord, text: str) -> str:
        """What an attempt of a task wrote, without its secrets."""
        return self._masks.of_all(task).text(text) or ""

    def view(self, task: TaskRecord, view: dict[str, Any]) -> dict[str, Any]:
        """What is shown of a task, without its secrets, wherever in it they are."""
        mask = self._masks.of_all(task)
        hidden = {**view, "payload": mask.decoded(view["payload"])} if "payload" in view else dict(view)
        if "attempts" in view:
            hidden["attempts"] = [{**a, "payload": mask.decoded(a["payload"])} for a in view["attempts"]]
        return {
            name: value if name in _AS_THEY_ARE else mask.plain(value) if name in _NAMES else mask.value(value)
            for name, value in hidden.items()
        }

    def error(self, task_id: int, kind: str, error: str | None) -> str | None:
        """An error of this task without its secrets."""
        if error is None:
            return error
        shown: str = self.view(get_task(self._tx, task_id), {"error": error})["error"]
        return shown

    def payload(self, kind: str, payload: Any) -> Any:
        """A decoded payload of this kind without its secrets."""
        return self._masks.of_kind(kind).decoded(payload)


def note_reveal(desk: Desk, tasks: Sequence[TaskRecord]) -> None:
    """Have the audit say that the secrets of these tasks are shown, before they are; of those that have any.

    Raises UnknownTaskError, StoreUnavailableError.
    """

    def work(tx: Tx) -> None:
        found = ViewMasks(tx, {task.kind for task in tasks})
        audit.record(tx, "reveal", tasks=[task.id for task in tasks if found.hides(task)])

    if tasks:
        desk.write(work)


def reveal(desk: Desk, task_id: int) -> Any:
    """The decoded payload of a task with its secrets; the audit says who saw it. Raises UnknownTaskError."""

    def work(tx: Tx) -> str | None:
        task = get_task(tx, task_id)
        audit.record(tx, "reveal", tasks=[task_id])
        return task.payload

    text = desk.database.change(work)
    return None if text is None else msgspec.json.decode(text)


def hidden(desk: Desk, task_id: int) -> Any:
    """The decoded payload of a task with ``***`` in place of its secrets. Raises UnknownTaskError."""
    with desk.read() as tx:
        task = get_task(tx, task_id)
        return task_masks.TaskMasks(tx, [task.kind]).of(task).payload(task.payload)

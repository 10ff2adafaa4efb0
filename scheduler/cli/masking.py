"""Hides the secrets of tasks in what commands print, and records who has them shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.options import acts
from scheduler.cli.session import Session

if TYPE_CHECKING:
    from scheduler.store.db.tx import Tx
    from scheduler.store.read.tasks import TaskRecord

F = TypeVar("F", bound=Callable[..., Any])


def reveals(command: F) -> F:
    """Adds ``--reveal``, with ``--by`` and ``--reason``."""
    return click.option("--reveal", is_flag=True, help="Also show secrets of payloads; the audit records it.")(
        acts(command)
    )


class Masks:
    """Hides the secrets of tasks of several kinds, within one read."""

    def __init__(self, tx: Tx, kinds: Iterable[str]) -> None:
        from scheduler.store.read.task_masks import TaskMasks

        self._tx = tx
        self._masks = TaskMasks(tx, kinds)

    def hides(self, task: TaskRecord) -> bool:
        """Whether something of the payload of a task is hidden."""
        return self._masks.of(task).hides(task.payload)

    def text(self, task: TaskRecord, text: str) -> str:
        """What an attempt of a task wrote, without its secrets."""
        return self._masks.of_all(task).text(text) or ""

    def view(self, task: TaskRecord, view: dict[str, Any]) -> dict[str, Any]:
        """What is printed of a task, without its secrets, wherever in it they are."""
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
        from scheduler.store.read.tasks import get_task

        if error is None:
            return error
        shown: str = self.view(get_task(self._tx, task_id), {"error": error})["error"]
        return shown

    def payload(self, kind: str, payload: Any) -> Any:
        """A decoded payload of this kind without its secrets."""
        return self._masks.of_kind(kind).decoded(payload)


_AS_THEY_ARE = frozenset({"id", "kind", "state", "simple", "queue", "priority", "created_at", "run_at", "retry"})
_NAMES = frozenset({"key", "correlation", "causation", "subject", "idempotency_key", "schedule"})


def record_reveal(session: Session, tasks: Sequence[TaskRecord]) -> None:
    """Record that the secrets of these tasks are shown, before they are; of those that have any."""
    from scheduler.store import audit

    def work(tx: Tx) -> None:
        found = Masks(tx, {task.kind for task in tasks})
        audit.record(tx, "reveal", tasks=[task.id for task in tasks if found.hides(task)])

    if tasks:
        session.write(work)

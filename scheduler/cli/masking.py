"""Hides the secrets of tasks in what commands print, and records who has them shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.options import acts
from scheduler.cli.session import Session

if TYPE_CHECKING:
    from scheduler.model.secrets import Mask
    from scheduler.store.db.tx import Tx
    from scheduler.store.read.tasks import TaskRecord

F = TypeVar("F", bound=Callable[..., Any])


def reveals(command: F) -> F:
    """Adds ``--reveal``, with ``--by`` and ``--reason``."""
    return click.option("--reveal", is_flag=True, help="Show secrets of payloads, too; the audit says who did.")(
        acts(command)
    )


class Masks:
    """Hides the secrets of tasks of several kinds, within one read."""

    def __init__(self, tx: Tx, kinds: Iterable[str]) -> None:
        from scheduler.store.masks import masks

        self._tx = tx
        self._masks: dict[str, Mask] = masks(tx, kinds)

    def __contains__(self, kind: str) -> bool:
        return kind in self._masks

    def secrets(self, task: TaskRecord) -> frozenset[str]:
        """The secret texts of a task: of its payload, and of those that earlier attempts had."""
        from scheduler.store.read.history import attempts

        mask = self._masks.get(task.kind)
        if mask is None:
            return frozenset()
        return mask.secrets(task.payload, *(a.envelope.payload for a in attempts(self._tx, task.id)))

    def view(self, task: TaskRecord, view: dict[str, Any]) -> dict[str, Any]:
        """What is printed of a task, without its secrets, wherever in it they are."""
        from scheduler.model.secrets import hide_in

        mask = self._masks.get(task.kind)
        if mask is None:
            return view
        secrets = self.secrets(task)
        hidden = {**view, "payload": mask.payload(view["payload"])} if "payload" in view else dict(view)
        if "attempts" in view:
            hidden["attempts"] = [{**a, "payload": mask.payload(a["payload"])} for a in view["attempts"]]
        return {name: value if name in _AS_THEY_ARE else hide_in(value, secrets) for name, value in hidden.items()}

    def error(self, task_id: int, kind: str, error: str | None) -> str | None:
        """An error of this task without its secrets."""
        from scheduler.store.read.tasks import get_task

        if error is None or kind not in self._masks:
            return error
        shown: str = self.view(get_task(self._tx, task_id), {"error": error})["error"]
        return shown

    def payload(self, kind: str, payload: Any) -> Any:
        """A decoded payload of this kind without its secrets."""
        mask = self._masks.get(kind)
        return payload if mask is None else mask.payload(payload)


_AS_THEY_ARE = frozenset({"id", "kind", "state", "simple", "queue", "priority", "created_at", "run_at", "retry"})


def record_reveal(session: Session, tasks: Sequence[TaskRecord]) -> None:
    """Record that the secrets of these tasks are shown, before they are; of those that have any."""
    from scheduler.store import audit

    def work(tx: Tx) -> None:
        found = Masks(tx, {task.kind for task in tasks})
        audit.record(tx, "reveal", tasks=[task.id for task in tasks if task.kind in found])

    if tasks:
        session.write(work)

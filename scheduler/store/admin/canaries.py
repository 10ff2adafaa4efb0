"""The task of a bulk that goes first: how it ended, or what keeps it from ever running."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.errors import UnknownTaskError
from scheduler.model import state as st
from scheduler.model.bulk import ItemResult
from scheduler.model.state import HELD, TaskState
from scheduler.store import bulks
from scheduler.store.bulks import BulkRecord
from scheduler.store.db.tx import Tx
from scheduler.store.read.ready import out_of_reach
from scheduler.store.read.tasks import ends
from scheduler.store.read.workers import fleet_of, workers

_ROW = (
    "SELECT id, kind, schema_version, queue, priority, lane, state, worker FROM schedd_tasks "
    f"WHERE id = :id AND state >= {st.SCHEDULED} AND state <= {st.RUNNING}"
)


class Canary(NamedTuple):
    """``end``: None while it has not ended, nor is removed. ``hindered``: why it does not run, and the remedy."""

    task_id: int
    end: TaskState | None
    hindered: str | None

    def describe(self) -> str:
        """Why the rest of its bulk was left alone."""
        if self.hindered is not None:
            return f"the canary, task {self.task_id}, waits: {self.hindered}"
        return f"the canary, task {self.task_id}, has not ended" if self.end is None else "the canary did not succeed"


def canary_of(tx: Tx, bulk: BulkRecord) -> Canary | None:
    """The task that went first; None: none has, or others have followed it."""
    if not bulk.options.canary or bulk.done != 1:
        return None
    task_id = bulks.items(tx, bulk.name, result=ItemResult.DONE, limit=1)[0][0].task_id
    try:
        end = ends(tx, [task_id])[task_id]
    except UnknownTaskError:
        return Canary(task_id, None, "it has been removed")
    return Canary(task_id, end, None if end is not None else _hindrance(tx, task_id))


def _hindrance(tx: Tx, task_id: int) -> str | None:
    """A pause, or that no live worker serves it; None if some worker may run it, or other tasks are before it."""
    row = tx.run(_ROW, id=task_id).first()
    if row is None:
        return None
    found, held = workers(tx), TaskState.from_code(row.state) in HELD
    if held and any(worker.id == row.worker and worker.alive for worker in found):
        return None
    cause = out_of_reach(tx, row, fleet_of(tx, found))
    if cause is None:
        return None
    words = cause.words.removeprefix(", but ")
    return words if cause.name == "paused" or cause.remedy in words else f"{words}. {cause.remedy}"

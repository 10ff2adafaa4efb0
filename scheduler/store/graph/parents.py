"""What a handler may read of its parents, their results and failures; and what a row says of those that keep it from
running."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import ResultExpiredError
from scheduler.model.state import SUCCESS, TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import IS_GONE


def parent_results(tx: Tx, task_id: int) -> list[tuple[int, str | None]]:
    """Results of the tasks that ``task_id`` depends on: rows (id, JSON text). No text for what returned None, or did
    not succeed.

    Raises ResultExpiredError if one has succeeded, and its result, or all of it, was removed since.
    """
    rows = tx.run(
        f"SELECT e.parent, coalesce(p.result, v.value) AS result, {IS_GONE.format('p')} AS gone, "
        "coalesce(p.state, o.state) AS state, p.id IS NULL AS removed FROM schedd_edges e "
        "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes o ON o.task_id = e.parent "
        "LEFT JOIN schedd_task_values v ON v.task_id = e.parent AND v.name = 'result' "
        "WHERE e.child = :id ORDER BY e.parent",
        id=task_id,
    ).fetchall()
    for row in rows:
        if row.state == SUCCESS and row.result is None and (row.gone or row.removed):
            raise ResultExpiredError(row.parent)
    return [(row.parent, row.result) for row in rows]


def dependency_failures(tx: Tx, task_id: int) -> list[tuple[int, str]]:
    """Parents of ``task_id`` that ended without success: rows (id, state and error)."""
    rows = tx.run(
        "SELECT e.parent, coalesce(p.state, o.state) AS state, p.error FROM schedd_edges e "
        "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes o ON o.task_id = e.parent "
        f"WHERE e.child = :id AND coalesce(p.state, o.state) > {SUCCESS} ORDER BY e.parent",
        id=task_id,
    )
    return [(row.parent, f"{TaskState.from_code(row.state)}: {row.error or 'no error recorded'}") for row in rows]


def broken_text(parents: Sequence[tuple[int, TaskState]], ended: TaskState) -> str:
    """The sentence recorded on a task that its parents' ends ended."""
    named = ", ".join(f"task {parent} ended {state}" for parent, state in parents)
    return f"{'not run' if ended is TaskState.FAILED else 'skipped'}: {named}"


def removed_text(parent: int) -> str:
    """The same for one that waited for a retry of what is no longer there."""
    return f"not run: task {parent} was removed"

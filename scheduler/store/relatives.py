"""What a handler may read of the tasks around it: its parents' results and failures."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.state import TaskState
from scheduler.store.dialect import prepared


def parent_results(connection: sa.Connection, task_id: int) -> dict[int, Any]:
    """Results of the tasks that ``task_id`` depends on, by id; None where there is none."""
    rows = connection.execute(
        prepared(
            "SELECT e.parent, coalesce(p.result, v.value) AS result FROM schedd_edges e "
            "LEFT JOIN schedd_tasks p ON p.id = e.parent "
            "LEFT JOIN schedd_task_values v ON v.task_id = e.parent AND v.name = 'result' "
            "WHERE e.child = :id ORDER BY e.parent"
        ),
        {"id": task_id},
    )
    return {row.parent: None if row.result is None else msgspec.json.decode(row.result) for row in rows}


def dependency_failures(connection: sa.Connection, task_id: int) -> dict[int, str]:
    """Parents of ``task_id`` that ended without success: id -> state and error."""
    rows = connection.execute(
        prepared(
            "SELECT e.parent, coalesce(p.state, o.state) AS state, p.error FROM schedd_edges e "
            "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes o ON o.task_id = e.parent "
            f"WHERE e.child = :id AND coalesce(p.state, o.state) > {st.SUCCESS} ORDER BY e.parent"
        ),
        {"id": task_id},
    )
    return {row.parent: f"{TaskState.from_code(row.state)}: {row.error or 'no error recorded'}" for row in rows}

"""Where the columns of a task are listed: what has to be touched when one is added."""

from __future__ import annotations

import re
from pathlib import Path

from scheduler.client.info import TaskInfo
from scheduler.client.json_views import TASK_VIEW
from scheduler.model.task_columns import TaskColumns
from scheduler.store.read.tasks import TaskRecord
from scheduler.store.schema import tasks

ROOT = Path(__file__).parents[3]
MANY = 20  # lines without a blank one that name so many columns list them
PLACES = {
    "migrations/versions/0001_initial.py": "makes them; a new column has a migration of its own",
    "scheduler/store/schema.py": "declares them",
    "scheduler/model/spec.py": "those that a caller sets: the new row is made of them",
    "scheduler/store/tasks/claim.py": "those that an attempt is handed",
    "scheduler/model/task_columns.py": "those that are read and shown: TaskRecord, TaskInfo and JSON follow from it",
}
CHECKED = {"scheduler/store/db/table_names.py"}  # compared with the schema by tests/store/db/test_table_names.py


def test_a_column_is_listed_in_few_places() -> None:
    """One that a caller sets, an attempt is handed and a program reads takes five, with its migration."""
    assert len(PLACES) <= 5
    names = {column.name for column in tasks.columns}
    listing = re.compile(r"^\s*(?:Column\()?(?:sa\.Column\()?\"?(\w+)\"?(?:,|:)", re.MULTILINE)
    found = {
        str(file.relative_to(ROOT))
        for place in ("scheduler", "migrations")
        for file in (ROOT / place).rglob("*.py")
        if any(
            len(names & set(listing.findall(part))) >= MANY for part in file.read_text(encoding="utf-8").split("\n\n")
        )
    }
    assert found == set(PLACES) | CHECKED


def test_what_is_read_and_shown_follows_from_one_list() -> None:
    columns = set(TaskColumns.__struct_fields__)
    assert columns <= set(TaskRecord.__struct_fields__) & set(TaskInfo.__struct_fields__)
    assert columns - {"worker"} < set(TASK_VIEW)  # shown as worker_id
    stored = {column.name for column in tasks.columns}
    assert columns - {"priority", "fairness_key"} < stored  # the one is a code, the other a mark of the lane

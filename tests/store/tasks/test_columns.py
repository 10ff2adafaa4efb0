"""Where the columns of a task are listed: what has to be touched when one is added."""

from __future__ import annotations

import re
from pathlib import Path

from scheduler.store.schema import tasks

ROOT = Path(__file__).parents[3]
MANY = 20  # a file that names so many columns lists them
PLACES = {
    "migrations/versions/0001_initial.py": "makes them; a new column has a migration of its own",
    "scheduler/store/schema.py": "declares them",
    "scheduler/model/spec.py": "those that a caller sets",
    "scheduler/store/tasks/row.py": "those that are written with a new row",
    "scheduler/store/tasks/claim.py": "those that an attempt is handed",
    "scheduler/store/read/tasks.py": "those that are read for people",
    "scheduler/client/info.py": "those that programs see",
    "scheduler/client/json_views.py": "those that schedctl and the console show",
}


def test_a_column_is_listed_in_few_places() -> None:
    """A column of the store's own takes a migration, the schema and its row; another place one that goes there."""
    names = {column.name for column in tasks.columns}
    listing = re.compile(r"^\s*(?:Column\()?(?:sa\.Column\()?\"?(\w+)\"?(?:,|:)", re.MULTILINE)
    found = {
        str(file.relative_to(ROOT))
        for place in ("scheduler", "migrations")
        for file in (ROOT / place).rglob("*.py")
        if len(names & set(listing.findall(file.read_text(encoding="utf-8")))) >= MANY
    }
    assert found == set(PLACES)

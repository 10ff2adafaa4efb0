"""The list of tables, which stands beside the schema so that few commands have to make that."""

from __future__ import annotations

import subprocess
import sys

from scheduler.store.broken_rows import numbers_of
from scheduler.store.db.table_names import NUMBERED, NUMBERS, TABLES
from scheduler.store.schema import metadata


def test_the_list_names_the_tables_of_the_schema() -> None:
    assert sorted(metadata.tables) == list(TABLES)
    assert set(NUMBERED) <= set(TABLES)
    assert {name: list(columns) for name, columns in NUMBERS.items()} == {name: numbers_of(name) for name in NUMBERS}


def test_a_listing_makes_no_schema_and_loads_no_other_database() -> None:
    code = (
        "import sys; from scheduler.cli import main; sys.argv = ['schedctl', 'list', '--help']; "
        "import scheduler.operations.details, scheduler.operations.status, scheduler.operations.details, "
        "scheduler.store.db.database; "
        "heavy = {'scheduler.store.schema', 'sqlalchemy.dialects.postgresql', 'alembic'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

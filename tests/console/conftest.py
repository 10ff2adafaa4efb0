"""A filled store and a console on it that tests of pages share: they only look."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.console.serve import ConsoleServer
from support.consoles import served
from support.databases import Database
from support.filled import Filled, fill


@pytest.fixture(scope="session")
def filled(_sqlite_template: Path) -> Iterator[Filled]:
    with tempfile.TemporaryDirectory(prefix="filled") as place:  # pytest's own goes with the runs of others
        path = Path(place) / "jobs.db"
        path.write_bytes(_sqlite_template.read_bytes())
        yield fill(f"sqlite:///{path}")


@pytest.fixture(scope="session")
def console(filled: Filled) -> Iterator[ConsoleServer]:
    with served(Database(filled.url, "sqlite"), label="staging") as server:
        yield server

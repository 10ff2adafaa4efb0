"""What the fault tests share: workers on the test's database, and a scheduler of the test's own."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.harness import Fleet, Mother, connect
from faults.shared_fork_server import SharedForkServers
from scheduler import Scheduler
from scheduler.engine.processes import children as children
from support.databases import Database
from support.leftovers import MARK, none_left
from support.session import files_directory


@pytest.fixture(scope="session")
def mother() -> Iterator[Mother]:
    made = Mother()
    yield made
    made.close()


@pytest.fixture
def fleet(database: Database, mother: Mother) -> Iterator[Fleet]:
    """Starts worker processes on the test's database, and leaves none behind."""
    directory = Path(tempfile.mkdtemp(prefix="f", dir=files_directory()))
    made = Fleet(database.url, directory, mother)
    yield made
    made.close()
    for process in made.processes:
        print(process.tail())  # shown when the test failed
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = connect(database.url)
    yield made
    made.close()


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks every process that is started from here on; at the end none of them may be left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    none_left(value)


@pytest.fixture(scope="session")
def shared_fork_servers() -> Iterator[SharedForkServers]:
    made = SharedForkServers()
    yield made
    made.close()


@pytest.fixture
def shared_fork_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Child processes come from a fork server that tests share; of a test that takes ``mark``, too, from its own."""
    if "mark" in request.fixturenames:
        request.getfixturevalue("mark")
        yield
        return
    shared_fork_servers: SharedForkServers = request.getfixturevalue("shared_fork_servers")
    monkeypatch.setattr(children, "ForkServerClient", shared_fork_servers.lend)
    yield
    shared_fork_servers.none_left()

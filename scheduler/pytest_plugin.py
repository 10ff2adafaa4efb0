"""Fixtures for pytest, which finds this module by its entry point: ``schedd``, ``schedd_clock``, ``schedd_drain``.

Every run of pytest in an environment with schedd imports it, so it imports the rest when a fixture is asked for.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.store.db.temporary import TemporaryDatabases, TemporaryFiles
    from scheduler.testing import Drain, FakeClock

DATABASES = ("sqlite", "postgresql")
URL_VARIABLE = "SCHEDD_TEST_POSTGRESQL_URL"
_OWN = ("databases", "modules")  # what the mark takes beside the options of a Scheduler


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("schedd")
    group.addoption(
        "--schedd-databases",
        metavar="NAMES",
        help="run tests of the fixture schedd on these only: sqlite, postgresql, or both with a comma between",
    )
    parser.addini("schedd_databases", "what the fixture schedd runs on: sqlite (default), postgresql", "args", [])
    parser.addini(
        "schedd_postgresql_url",
        f"a database of PostgreSQL beside which tests get theirs; ${URL_VARIABLE} goes before it",
    )
    parser.addini("schedd_modules", "task modules whose types the fixture schedd registers", "args", [])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "schedd(databases=('sqlite', 'postgresql'), modules=(), inline=False, raise_errors=False, **options): what the "
        "fixture schedd runs on, the task modules that it registers, and options of its Scheduler",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "_schedd_database" not in metafunc.fixturenames:
        return
    names = _databases(metafunc.config, _marked(metafunc.definition))
    wanted = metafunc.config.getoption("--schedd-databases")
    if wanted is not None:
        chosen = _names(wanted.split(","), "--schedd-databases")
        if not set(names) & set(chosen):
            why = f"it runs on {' and '.join(names)}, which --schedd-databases leaves out"
            metafunc.parametrize("_schedd_database", [pytest.param("", marks=pytest.mark.skip(why))], indirect=True)
            return
        names = [name for name in names if name in chosen]
    if len(names) > 1 or names != ["sqlite"]:
        metafunc.parametrize("_schedd_database", names, indirect=True)


@pytest.fixture
def schedd_clock() -> FakeClock:
    """The clock of ``schedd``: it stands still at 2026-01-01 UTC until ``schedd_clock.advance(seconds)``."""
    from scheduler.testing import FakeClock

    return FakeClock()


@pytest.fixture
def schedd_options() -> dict[str, Any]:
    """Options of the Scheduler of the fixture ``schedd``. Override it for a whole directory or module of tests."""
    return {}


@pytest.fixture
def schedd(
    request: pytest.FixtureRequest, _schedd_url: str, schedd_clock: FakeClock, schedd_options: dict[str, Any]
) -> Iterator[Scheduler]:
    """A Scheduler on an empty store of this test alone. It runs nothing by itself: ``schedd_drain()`` does."""
    from scheduler.app import Scheduler
    from scheduler.errors import ConfigError

    marked = _marked(request.node)
    options = {**schedd_options, **{name: value for name, value in marked.items() if name not in _OWN}}
    modules = [*request.config.getini("schedd_modules"), *_texts(marked.get("modules", ()), "modules")]
    try:
        raises = options.pop("raise_errors", False)
        if options.get("inline", False):
            options["raise_errors"] = raises
        jobs = Scheduler.for_testing(schedd_clock, url=_schedd_url, **options)
    except (ConfigError, TypeError) as error:
        raise _failed(f"the fixture schedd cannot make its Scheduler: {error}") from None
    try:
        _load(jobs, modules)
        yield jobs
    finally:
        jobs.close()


@pytest.fixture
def schedd_drain(request: pytest.FixtureRequest, schedd: Scheduler) -> Drain:
    """Run what is due: ``schedd_drain(queue=None, kind=None, task=None, raise_errors=False)``.

    Returns how many attempts ran; see ``scheduler.testing.drain``.
    """
    from functools import partial

    from scheduler.testing import drain

    return partial(drain, schedd, raise_errors=bool(_marked(request.node).get("raise_errors", False)))


@pytest.fixture
def _schedd_database(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def _schedd_url(request: pytest.FixtureRequest, _schedd_database: str) -> Iterator[str]:
    """The URL of a migrated, empty database of this test alone."""
    from scheduler.errors import SchedulerError

    if _schedd_database == "sqlite":
        files: TemporaryFiles = request.getfixturevalue("_schedd_files")
        directory = Path(tempfile.mkdtemp(prefix="schedd-test-"))
        try:
            yield files.make(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return
    databases: TemporaryDatabases = request.getfixturevalue("_schedd_server")
    try:
        url = databases.make()
    except SchedulerError as error:
        raise _failed(f"the fixture schedd cannot make a database on PostgreSQL: {error}") from None
    yield url
    databases.drop(url)


@pytest.fixture(scope="session")
def _schedd_files() -> Iterator[TemporaryFiles]:
    from scheduler.store.db.temporary import TemporaryFiles

    directory = tempfile.mkdtemp(prefix="schedd-test-")
    yield TemporaryFiles(Path(directory))
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def _schedd_server(request: pytest.FixtureRequest) -> Iterator[TemporaryDatabases]:
    from scheduler.errors import ConfigError
    from scheduler.store.db.temporary import TemporaryDatabases

    url = os.environ.get(URL_VARIABLE) or request.config.getini("schedd_postgresql_url")
    if not url:
        raise _failed(
            f"this test runs on PostgreSQL: set ${URL_VARIABLE}, or schedd_postgresql_url in pytest's configuration, "
            "to the URL of a database whose role may make databases; or leave it out with --schedd-databases=sqlite"
        )
    try:
        made = TemporaryDatabases(url)
    except ConfigError as error:
        raise _failed(f"{URL_VARIABLE} or schedd_postgresql_url: {error}") from None
    yield made
    made.close()


def _failed(text: str) -> BaseException:
    """A failure that is its text alone: what it tells of is a setting, not a line of code."""
    return pytest.fail.Exception(text, pytrace=False)


def _load(jobs: Scheduler, modules: list[str]) -> None:
    """Register the types of these modules, and call their ``setup``, as a daemon does."""
    if not modules:
        return
    from scheduler.config.model import Config, TasksSection
    from scheduler.config.task_modules import load_modules
    from scheduler.errors import SchedulerError

    try:
        load_modules(Config(tasks=TasksSection(modules=tuple(modules), path=())), jobs)
    except SchedulerError as error:
        raise _failed(f"the fixture schedd cannot load {', '.join(modules)}: {error}") from None


def _marked(node: pytest.Item) -> dict[str, Any]:
    """What the marks say; the nearest one counts."""
    found: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("schedd"))):
        if mark.args:
            raise pytest.UsageError(f"{node.nodeid}: the mark schedd takes names: databases=…, not {mark.args[0]!r}")
        found |= mark.kwargs
    return found


def _databases(config: pytest.Config, marked: dict[str, Any]) -> list[str]:
    if "databases" in marked:
        return _names(_texts(marked["databases"], "databases"), "@pytest.mark.schedd(databases=…)")
    return _names(config.getini("schedd_databases"), "schedd_databases") or ["sqlite"]


def _texts(given: Any, what: str) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(text, str) for text in texts):
        raise pytest.UsageError(f"@pytest.mark.schedd({what}=…) takes names, not {given!r}")
    return texts


def _names(given: list[str], where: str) -> list[str]:
    names = [name.strip() for name in given]
    for name in names:
        if name not in DATABASES:
            raise pytest.UsageError(f"{where}: there is no database {name!r}; there are {', '.join(DATABASES)}")
    return list(dict.fromkeys(names))

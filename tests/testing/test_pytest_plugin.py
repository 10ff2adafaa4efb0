"""The fixtures for pytest: what they cost, make, take, and say."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.testing import Drain, FakeClock
from support.databases import PostgresDatabases

MODULE = """
from scheduler import Task, RetryPolicy, task

@task
def greet(ctx, name: str) -> str:
    return f"hello {name} from {ctx.state}"

class Fails(Task, retry=RetryPolicy(min_wait=60, jitter=0, max_attempts=2)):
    def run(self, ctx):
        raise KeyError("in the handler")

def setup(jobs):
    jobs.task(greet, "daily").daily_at(3, 0).key("daily").schedule()
"""
TESTS = """
import pytest
from own_tasks import Fails, greet
from scheduler import TaskState

@pytest.fixture
def schedd_options():
    return {"state": "a test"}

def test_the_store_is_empty_and_the_clock_stands(schedd, schedd_clock, schedd_drain):
    assert schedd.list_tasks() == []
    done, later = schedd.task(greet, "you").schedule(), schedd.task(greet, "later").after(60).schedule()
    assert done == 1
    assert schedd_drain() == 1
    assert schedd.result(done, timeout=0) == "hello you from a test"
    schedd_clock.advance(60)
    assert schedd_drain(task=later) == 1
    assert [one.name for one in schedd.schedules.list()] == ["daily"]

def test_again(schedd):
    test_the_store_is_empty_and_the_clock_stands.__name__
    assert schedd.task(greet, "you").schedule() == 1

@pytest.mark.schedd(inline=True, state="the mark")
def test_inline(schedd):
    assert schedd.result(schedd.task(greet, "you").schedule(), timeout=0) == "hello you from the mark"

@pytest.mark.schedd(raise_errors=True)
def test_raised(schedd, schedd_drain):
    schedd.task(Fails()).schedule()
    schedd_drain()
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(own_tasks=MODULE)
    pytester.syspathinsert()
    return pytester


def test_importing_the_plugin_is_cheap() -> None:
    """In the processor's time of a fresh interpreter that has pytest, the least of five."""
    code = (
        "import pytest, sys, time, json; before = time.process_time(); import scheduler.pytest_plugin;"
        "print(json.dumps([time.process_time() - before, sorted(sys.modules)]))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout)
        for _ in range(5)
    ]
    assert min(seconds for seconds, _ in runs) < 0.020
    loaded = {name.partition(".")[0] for name in runs[0][1]}
    assert not loaded & {"sqlalchemy", "structlog", "msgspec", "alembic", "networkx", "croniter"}


def test_pytest_finds_it() -> None:
    (entry,) = importlib.metadata.entry_points(group="pytest11", name="schedd")
    assert entry.value == "scheduler.pytest_plugin"


def test_a_run_without_the_fixtures_imports_no_sqlalchemy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_it():\n    assert 'sqlalchemy' not in sys.modules")
    pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_fixtures_of_a_project(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nschedd_modules = own_tasks")
    project.makepyfile(test_own=TESTS)
    result = project.runpytest_inprocess("--strict-markers", "-p", "no:randomly")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*own_tasks.py:9: KeyError", "*KeyError*in the handler*"])
    result.stdout.fnmatch_lines(["*task 1 (Fails), attempt 1*"])


def test_both_databases_by_the_mark(
    project: pytest.Pytester, postgres_databases: PostgresDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_databases.url("postgres")
    project.makepyfile(
        test_own="""
import pytest
from own_tasks import greet

pytestmark = pytest.mark.schedd(modules=["own_tasks"], databases=("sqlite", "postgresql"))

@pytest.mark.parametrize("name", ["a", "b"])
def test_it(schedd, schedd_drain, name):
    assert schedd.list_tasks() == []
    assert schedd.task(greet, name).schedule() == 1
    assert schedd_drain() == 1
    print("on", schedd.database.dialect.name)

@pytest.mark.schedd(databases="postgresql")
def test_there(schedd):
    assert schedd.database.dialect.name == "postgresql"
"""
    )
    monkeypatch.delenv("SCHEDD_TEST_POSTGRESQL_URL", raising=False)
    result = project.runpytest_inprocess("-v", "-rP")
    result.assert_outcomes(passed=2, errors=3)
    result.stdout.fnmatch_lines(["*this test runs on PostgreSQL: set $SCHEDD_TEST_POSTGRESQL_URL, or*"])

    project.runpytest_inprocess("-v", "--schedd-databases=sqlite").assert_outcomes(passed=2, skipped=1)

    monkeypatch.setenv("SCHEDD_TEST_POSTGRESQL_URL", url)
    before = _databases(url)
    result = project.runpytest_inprocess("-v", "-rP")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*test_it*sqlite*PASSED*", "*test_it*postgresql*PASSED*"])
    assert _databases(url) == before

    monkeypatch.setenv("SCHEDD_TEST_POSTGRESQL_URL", "postgresql://nobody@127.0.0.1:1/none")
    result = project.runpytest_inprocess("-v", "--schedd-databases=postgresql")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["*the fixture schedd cannot make a database on PostgreSQL*"])


def _databases(url: str) -> list[str]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        names = connection.exec_driver_sql("select datname from pg_database where starts_with(datname, 'schedd_test_')")
        found = sorted(names.scalars())
    engine.dispose()
    return found


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('databases="sqlte"', "there is no database 'sqlte'; there are sqlite, postgresql"),
        ('"sqlite"', "the mark schedd takes names: databases=*"),
        ("databases=[1]", "takes names, not [[]1]"),
        ("no_such=1", "*cannot make its Scheduler: *no_such*"),
        ('modules="nosuch.module"', "*cannot load nosuch.module: *there is no module 'nosuch'*"),
    ],
)
def test_mistakes_are_said(project: pytest.Pytester, mark: str, said: str) -> None:
    project.makepyfile(test_own=f"import pytest\n\n@pytest.mark.schedd({mark})\ndef test_it(schedd):\n    pass\n")
    result = project.runpytest_inprocess()
    assert result.ret != 0
    result.stdout.fnmatch_lines([f"*{said}*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@task
def here(ctx: Context) -> str:
    return f"{ctx.created_at:%Y}"


def test_the_fixtures_directly(schedd: Scheduler, schedd_clock: FakeClock, schedd_drain: Drain) -> None:
    schedd.register(here)
    waits = schedd.task(here).after(10).schedule()
    assert schedd_drain() == 0
    schedd_clock.advance(10)
    assert schedd_drain(kind=here) == 1
    assert schedd.result(waits, timeout=0) == "2026"

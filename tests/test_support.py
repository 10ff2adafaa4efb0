"""The tools of the tests themselves: the book of cases, and that databases are really empty each time."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mutants
import psycopg
import pytest
import sqlalchemy

from scheduler.store import schema
from support import postgres_server, session
from support.casebook import PROPERTY, SHOWN, Case, Casebook, cells_of, read_cases
from support.databases import (
    DIALECTS,
    ON_BOTH,
    ON_ONE,
    ONE_OF,
    Database,
    PostgresDatabases,
    chosen,
    is_left_out,
    needs_postgresql,
)
from support.session import TESTS


def report(cells: list[tuple[int, str]], outcome: str, when: str = "call", test: str = "t") -> Any:
    return SimpleNamespace(
        user_properties=[(PROPERTY, cells)],
        failed=outcome == "failed",
        passed=outcome == "passed",
        when=when,
        nodeid=test,
    )


@pytest.fixture
def book() -> Casebook:
    return Casebook({1: Case(1, True, "one"), 2: Case(2, False, "two")})


def test_a_case_is_shown_when_it_passed_on_both(book: Casebook) -> None:
    assert book.gaps() == [(1, "sqlite"), (1, "postgresql")]
    book.add(report([(1, "sqlite")], "passed", test="a"))
    assert book.gaps() == [(1, "postgresql")]
    book.add(report([(1, "postgresql")], "passed", test="b"))
    assert book.gaps() == []


def test_setup_and_skipped_tests_show_nothing_and_failures_undo(book: Casebook) -> None:
    both = [(1, "sqlite"), (1, "postgresql")]
    book.add(report(both, "passed", when="setup"))
    book.add(report(both, "skipped"))
    assert len(book.gaps()) == 2
    book.add(report(both, "passed"))
    book.add(report([(1, "sqlite")], "failed", when="teardown", test="other"))
    assert book.gaps() == [(1, "sqlite")]
    assert any("FAIL 1" in line for line in book.lines())


def test_a_test_that_names_no_database_gets_an_error(book: Casebook) -> None:
    book.add(report([(1, "")], "passed", test="vague"))
    assert book.untold() == ["vague"]
    assert len(book.gaps()) == 2


def item(mark: pytest.Mark, **parameters: Any) -> Any:
    return SimpleNamespace(nodeid="t", iter_markers=lambda name: [mark], callspec=SimpleNamespace(params=parameters))


def test_cells_of_a_test() -> None:
    known = read_cases()
    assert cells_of(item(pytest.mark.case(4, 5).mark, dialect="sqlite"), known) == [
        (4, "sqlite"),
        (5, "sqlite"),
    ]
    assert cells_of(item(pytest.mark.case(4, pure=True).mark), known) == [(4, "sqlite"), (4, "postgresql")]
    assert cells_of(item(pytest.mark.case(4).mark, other=object()), known) == [(4, "")]
    with pytest.raises(pytest.UsageError):
        cells_of(item(pytest.mark.case(108).mark), known)
    with pytest.raises(pytest.UsageError):
        cells_of(item(pytest.mark.case(4, pur=True).mark), known)


def test_the_book_has_all_cases() -> None:
    cases = read_cases()
    assert list(cases) == list(range(1, 108))
    assert all(case.due for case in cases.values())


def test_make_test_and_make_programs_show_each_case_on_both(request: pytest.FixtureRequest) -> None:
    """Whatever is left to --every-database."""
    config = request.config
    if config.getoption("sqlite_only") or {Path(argument).resolve() for argument in config.args} != {TESTS}:
        return  # in a part of them nobody expects it
    assert {(number, dialect) for number in read_cases() for dialect in DIALECTS} - config.stash[SHOWN] == set()


def row_of(table: sqlalchemy.Table) -> dict[str, Any]:
    """Some row that the table takes."""
    needed = [column for column in table.columns if not column.nullable and column.server_default is None]
    return {column.name: 1 if column.type.python_type is int else "x" for column in needed}


@pytest.mark.both_databases
@pytest.mark.parametrize("again", [False, True])
def test_a_database_is_migrated_and_empty(database: Database, again: bool) -> None:
    """Twice on each: the second finds nothing of what the first wrote."""
    engine = sqlalchemy.create_engine(database.url)
    with engine.begin() as connection:
        assert connection.execute(sqlalchemy.select(schema.workers)).all() == []
        connection.execute(schema.workers.insert().values(row_of(schema.workers)))
    engine.dispose()


def test_an_empty_database_has_no_tables(empty_database: Database) -> None:
    engine = sqlalchemy.create_engine(empty_database.url)
    assert sqlalchemy.inspect(engine).get_table_names() == []
    engine.dispose()


def test_postgres_is_emptied_but_for_what_migrations_wrote(postgres_databases: PostgresDatabases) -> None:
    server = postgres_databases
    name = server.create()
    url = server.url(name).replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kinds (id int primary key)")
        connection.execute("create table tasks (id bigserial primary key, kind int references kinds)")
        connection.execute("create sequence numbers")
        connection.execute("insert into kinds values (7)")
        server.keep_rows_of_migrations(name)
    for _ in range(2):
        left_open = psycopg.connect(url)
        assert left_open.execute("insert into tasks (kind) values (7) returning id").fetchone() == (1,)
        for n in (1, 2):
            assert left_open.execute("select nextval('numbers')").fetchone() == (n,)
        with psycopg.connect(url) as other:
            other.execute("insert into kinds values (8)")
            other.execute("create table mine (kind int references kinds)")
        left_open.commit()
        with psycopg.connect(url) as other:
            other.execute("alter sequence numbers increment by 2")
            other.execute("alter table tasks set (autovacuum_enabled = off)")
        left_open.execute("select * from tasks")  # a transaction that a test forgot
        server.reset(name)
        left_open.close()
        with psycopg.connect(url) as connection:
            assert connection.execute("select id from kinds").fetchall() == [(7,)]
            assert connection.execute("select id from tasks").fetchall() == []
            assert connection.execute("select to_regclass('mine')").fetchone() == (None,)
            assert connection.execute("select reloptions from pg_class where relname = 'tasks'").fetchone() == (None,)
    server.drop(name)


@pytest.mark.parametrize("pid", ["", "x", str(os.getpid()), "4194305"], ids=["none", "junk", "mine", "gone"])
def test_a_server_that_is_gone_or_whose_pid_another_process_has_is_not_stopped(tmp_path: Path, pid: str) -> None:
    data = tmp_path / "pg"
    data.mkdir()
    (data / "postmaster.pid").write_text(f"{pid}\n{data}\n")
    postgres_server.stop(tmp_path)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_can_be_made(mutant: mutants.Mutant) -> None:
    """Else ``make mutants``, which takes minutes, would be the first to say that the code has moved on."""
    for change in mutant.changes:
        assert (mutants.ROOT / change.file).read_text(encoding="utf-8").count(change.old) == 1, change.file


@pytest.mark.parametrize(
    ("parameters", "fixtures", "needed"),
    [
        ({"dialect": "postgresql"}, ["dialect", "database"], True),
        ({"url": "postgresql"}, ["url"], True),
        ({}, ["postgres_databases"], True),
        ({"dialect": "sqlite"}, ["dialect", "database"], False),
        (None, [], False),
    ],
)
def test_sqlite_only_leaves_out_what_takes_postgresql(
    parameters: dict[str, str] | None, fixtures: list[str], needed: bool
) -> None:
    item: Any = SimpleNamespace(fixturenames=fixtures)
    if parameters is not None:
        item.callspec = SimpleNamespace(params=parameters)
    assert needs_postgresql(item) is needed


def taken(place: str, *marks: str, dialect: str | None = "postgresql", explicit: bool = False, name: str = "a") -> Any:
    """A test in this room, or file, with these marks."""
    path = place if place.endswith(".py") else f"{place}/test_it.py"
    there = [getattr(pytest.mark, name).mark for name in marks]
    if explicit:
        there.append(pytest.mark.parametrize("dialect", ["postgresql"], indirect=True).mark)
    return SimpleNamespace(
        path=TESTS / path,
        nodeid=f"tests/{path}::test_{name}[{dialect}]",
        callspec=None if dialect is None else SimpleNamespace(params={"dialect": dialect}),
        iter_markers=lambda name: [mark for mark in there if mark.name == name],
        get_closest_marker=lambda name: next((mark for mark in there if mark.name == name), None),
    )


def where(place: str, *marks: str, name: str = "a") -> list[str]:
    return [one for one in DIALECTS if not is_left_out(taken(place, *marks, dialect=one, name=name))]


def test_above_the_store_one_database_is_enough() -> None:
    found = {str(number): where("cli", "case", name=str(number)) for number in range(60)}
    assert {len(here) for here in found.values()} == {1}
    assert 10 < sum(here == ["postgresql"] for here in found.values()) < 30
    assert found == {number: where("cli", "case", name=number) for number in found}  # the same in each run
    assert where("store/tasks", "one_is_enough") == where("executors") == ["sqlite"]
    for both in (("store/tasks",), ("engine/dispatch",), ("cli", "both_databases"), ("executors", "both_databases")):
        assert where(*both) == list(DIALECTS)
    others = [taken("cli", explicit=True), taken("store/tasks", "one_is_enough", explicit=True)]
    assert not any(map(is_left_out, [*others, taken("cli", dialect=None)]))


def test_rules_above_sql_take_one_database_in_the_rooms_of_sql_too() -> None:
    replaced = "store/tasks/test_replace.py"
    found = [where(replaced, "case", name=str(number)) for number in range(60)]
    assert {len(here) for here in found} == {1}
    assert 60 / ONE_OF < found.count(["postgresql"]) < 25
    assert where(replaced, "both_databases") == where("store/tasks/test_lock_waits.py") == list(DIALECTS)


def test_each_test_runs_on_the_database_that_its_name_chooses() -> None:
    names = [f"tests/cli/test_it.py::test_a[x-{dialect}]" for dialect in DIALECTS]
    assert chosen(names[0], ONE_OF) == chosen(names[1], ONE_OF)


def test_the_files_of_make_quick_are_there() -> None:
    root = Path(__file__).parents[1]
    listed = re.search(r"^QUICK := ((?:.*\\\n)*.*)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed is not None
    names = listed[1].replace("\\", " ").split()
    files = [Path(__file__).parent / name for name in names]
    assert len(files) > 20
    assert [str(file) for file in files if not file.with_name(f"test_{file.name}.py").exists()] == []


def test_files_and_rooms_that_are_listed_are_there() -> None:
    assert [name for name in (*session.OF_PROGRAMS, *ON_BOTH, *ON_ONE) if not (TESTS / name).exists()] == []


def test_workers_import_each_file_of_tests_once_between_them() -> None:
    shares = [session.share(number, 4) for number in range(4)]
    assert sorted(file for share in shares for file in share) == sorted(TESTS.rglob("test_*.py"))
    sizes = [sum(file.stat().st_size for file in share) for share in shares]
    assert max(sizes) < 1.1 * min(sizes)


def test_a_failure_is_told_though_the_parser_fails_the_first_time(request: pytest.FixtureRequest) -> None:
    found = pytest.CallInfo.from_call(lambda: 1 / 0, "call")
    making = session.pytest_runtest_makereport(request.node, found)
    next(making)
    with pytest.raises(StopIteration) as told:
        making.throw(SystemError("AST constructor recursion depth mismatch"))
    assert told.value.value.failed
    assert "ZeroDivisionError" in told.value.value.longreprtext

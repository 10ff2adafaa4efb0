"""Ties tests to the numbered cases of the guarantees, and shows which case is proven on which database.

``@pytest.mark.case(4, 5)`` on a test that takes a database counts for the database it ran on; a test that
needs none says ``@pytest.mark.case(13, pure=True)`` and counts for both. ``pytest --cases`` ends with the
table, and with a status other than 0 when a case that is due was not shown on one of them. The cases, and
which are due, are in tests/cases.txt.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.databases import DIALECTS

CASES = Path(__file__).parents[1] / "cases.txt"
PROPERTY = "schedd_cases"


@dataclass(frozen=True)
class Case:
    number: int
    due: bool
    title: str


@dataclass
class Cell:
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @property
    def verdict(self) -> str:
        if self.failed:
            return f"FAIL {len(self.failed)}"
        return f"pass {len(self.passed)}" if self.passed else "-"


def read_cases(path: Path = CASES) -> dict[int, Case]:
    cases = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            mark, number, title = line.split(maxsplit=2)
            cases[int(number)] = Case(int(number), mark == "due", title)
    return cases


def cells_of(item: pytest.Item, known: dict[int, Case]) -> list[tuple[int, str]]:
    """The (case, database) pairs that this test shows; "" for a database that it does not tell."""
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.values() if callspec else ()
    databases = [name for name in DIALECTS if name in parameters]
    cells = []
    for mark in item.iter_markers("case"):
        if not mark.args or not set(mark.args) <= known.keys() or not set(mark.kwargs) <= {"pure"}:
            raise pytest.UsageError(f"{item.nodeid}: case{mark.args} {mark.kwargs}: no such case")
        shown = DIALECTS if mark.kwargs.get("pure") else databases or [""]
        cells += [(number, database) for number in mark.args for database in shown]
    return cells


class Casebook:
    """Collects what the tests showed; each report brings the cells of its test."""

    def __init__(self, cases: dict[int, Case]) -> None:
        self.cases = cases
        self.cells: dict[tuple[int, str], Cell] = defaultdict(Cell)

    def add(self, report: pytest.TestReport) -> None:
        value: Any
        for name, value in report.user_properties:
            if name == PROPERTY:
                for number, database in value:
                    cell = self.cells[number, database]
                    if report.failed:
                        cell.failed.add(report.nodeid)
                    elif report.when == "call" and report.passed:
                        cell.passed.add(report.nodeid)

    def gaps(self) -> list[tuple[int, str]]:
        due = [(case.number, database) for case in self.cases.values() if case.due for database in DIALECTS]
        return [key for key in due if not self.cells[key].passed or self.cells[key].failed]

    def untold(self) -> list[str]:
        cells = [cell for (_, database), cell in self.cells.items() if not database]
        return sorted({test for cell in cells for test in cell.passed | cell.failed})

    def lines(self) -> list[str]:
        lines = ["case  " + "".join(f"{name:12}" for name in DIALECTS)]
        for case in self.cases.values():
            verdicts = [self.cells[case.number, database].verdict for database in DIALECTS]
            if case.due or verdicts != ["-", "-"]:
                verdicts = ["GAP" if verdict == "-" and case.due else verdict for verdict in verdicts]
                lines.append(f"{case.number:4}  " + "".join(f"{v:12}" for v in verdicts) + case.title)
        for test in self.untold():
            lines.append(f"counts for neither, as it takes no database and is not marked pure: {test}")
        due = sum(case.due for case in self.cases.values())
        wanted, missing = due * len(DIALECTS), len(self.gaps())
        lines.append(f"{due} cases due on {len(DIALECTS)} databases: {wanted - missing} shown, {missing} missing")
        return lines


BOOK = pytest.StashKey[Casebook]()
# What make test and make programs show between them: the others need servers, or hours.
SHOWN = pytest.StashKey[set[tuple[int, str]]]()
ELSEWHERE = ("soak", "executors", "kube", "transports")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", action="store_true", help="end with the table of cases, and fail on a gap")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BOOK] = Casebook(read_cases())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config.stash[BOOK]), "schedd-casebook")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = config.stash[BOOK].cases
    shown = config.stash[SHOWN] = set()
    for item in items:
        cells = cells_of(item, known)
        if cells:
            item.user_properties.append((PROPERTY, cells))
            if not any(item.get_closest_marker(name) for name in ELSEWHERE):
                shown.update(cells)


class _Collector:
    """Lives where the reports arrive: in the controller, or in the only process."""

    def __init__(self, book: Casebook) -> None:
        self.book = book

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.book.add(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        asked = session.config.getoption("--cases")
        if asked and session.exitstatus == pytest.ExitCode.OK and self.book.gaps():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.getoption("--cases"):
            terminalreporter.section("cases")
            for line in self.book.lines():
                terminalreporter.write_line(line)

"""Figures that tests measure, such as how many tasks were run again, shown at the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROPERTY = "schedd_measured"


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Call it with a line for the end of the run; the test's name is put in front."""

    def say(line: str) -> None:
        print(line)
        request.node.user_properties.append((PROPERTY, line))

    return say


class _Collector:
    """Lives where the reports arrive: in the controller, or in the only process."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            name = report.nodeid.rpartition("::")[2]
            self.lines += [f"{name}: {line}" for key, line in report.user_properties if key == PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.lines:
            terminalreporter.section("measured")
            for line in sorted(self.lines):
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(), "schedd-measured")

"""``pytest --forks N``: tests on N processes, forked when the tests have been collected.

Collecting takes half a minute of processor time and 250 MB, which pytest-xdist takes in each process. Half of the
processes take tests from the beginning, where those are that wait for programs, and half from the end, where those
are that compute. Tests marked ``alone``, which measure time, come last, one after the other.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

CHUNK = 10  # tests of a file that one process takes at a time: what they share is made once for these
GRACE = 20.0  # seconds that the processes have to end when the run is broken off


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests on N processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count: int = session.config.getoption("--forks")
    if count < 1 or session.testsfailed or session.config.option.collectonly:
        return None
    _Run(session).go(count)
    return True


def chunks(items: list[pytest.Item]) -> Iterator[list[int]]:
    """Numbers of tests that follow each other, of one file, and all or none of which are to run alone."""

    def kind(number: int) -> Any:
        return items[number].path, items[number].get_closest_marker("alone") is not None

    for _, group in groupby(range(len(items)), kind):
        numbers = list(group)
        yield from (numbers[first : first + CHUNK] for first in range(0, len(numbers), CHUNK))


class _Worker:
    def __init__(self, number: int, pid: int, channel: Connection) -> None:
        self.number = number
        self.pid = pid
        self.channel = channel
        self.chunk: deque[int] = deque()  # what it has not done yet
        self.asks = False
        self.ends = False


class _Run:
    """In the process that collected: hands out tests, and tells pytest what the others report."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._workers: dict[int, _Worker] = {}  # by their pids
        self._left: deque[list[int]] = deque()
        self._alone: deque[list[int]] = deque()
        for chunk in chunks(session.items):
            apart = session.items[chunk[0]].get_closest_marker("alone")
            (self._alone if apart else self._left).append(chunk)

    def go(self, count: int) -> None:
        """Returns in the forked processes, too."""
        reporter: Any = self._session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # files come in no order
        try:
            for number in range(min(count, len(self._left) + len(self._alone))):
                if self._fork(number):
                    return
            while self._workers:
                if self._turn():
                    return
        finally:
            self._interrupt()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _fork(self, number: int) -> bool:
        """True: in the new process, when it has done its part."""
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            theirs.close()
            self._workers[pid] = _Worker(number, pid, ours)
            return False
        for channel in [ours, *(other.channel for other in self._workers.values())]:
            channel.close()
        self._workers.clear()
        _work(self._session, number, theirs)
        return True

    def _turn(self) -> bool:
        ready = wait([worker.channel for worker in self._workers.values()], timeout=1.0)
        for worker in list(self._workers.values()):
            try:
                if worker.channel in ready:
                    self._hear(worker, *worker.channel.recv())
                    continue
                if ready or not os.waitpid(worker.pid, os.WNOHANG)[0]:
                    continue  # what it started may still hold its channel
            except (EOFError, ConnectionResetError):
                os.waitpid(worker.pid, 0)
            if self._gone(worker):
                return True
        for worker in self._workers.values():
            if worker.asks:
                self._answer(worker)
        return False

    def _hear(self, worker: _Worker, kind: str, *values: Any) -> None:
        config = self._session.config
        if kind == "asks":
            worker.asks = True
        elif kind == "warning":
            text, category, file, line, *where = values
            warning = warnings.WarningMessage(text, category, file, line)
            told = dict(zip(("warning_message", "when", "nodeid", "location"), (warning, *where), strict=True))
            config.hook.pytest_warning_recorded.call_historic(kwargs=told)
        elif kind == "logreport":
            report = config.hook.pytest_report_from_serializable(config=config, data=values[0])
            config.hook.pytest_runtest_logreport(report=report)
        else:
            config.hook.pytest_runtest_logfinish(nodeid=values[0], location=values[1])
            worker.chunk.popleft()

    def _answer(self, worker: _Worker) -> None:
        if self._session.shouldfail or self._session.shouldstop:
            self._left.clear()
            self._alone.clear()
        chunk: list[int] = []
        if self._left:
            chunk = self._left.pop() if worker.number % 2 else self._left.popleft()
        elif self._alone and all(other is worker or other.ends for other in self._workers.values()):
            if len(self._workers) > 1:
                return  # until they have ended
            chunk = self._alone.popleft()
        worker.asks, worker.ends, worker.chunk = False, not chunk, deque(chunk)
        worker.channel.send(chunk)

    def _gone(self, worker: _Worker) -> bool:
        """True: in a process forked in its place, when it has done its part."""
        del self._workers[worker.pid]
        worker.channel.close()
        if not worker.chunk:
            return False
        item = self._session.items[worker.chunk.popleft()]
        text = f"process {worker.number} ended while it ran this test"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.chunk:
            apart = self._session.items[worker.chunk[0]].get_closest_marker("alone")
            (self._alone if apart else self._left).append(list(worker.chunk))
        return self._fork(worker.number)

    def _interrupt(self) -> None:
        """Broken off: let the others end as from a terminal."""
        for pid in self._workers:
            os.kill(pid, signal.SIGINT)
        until = time.monotonic() + GRACE
        while self._workers:
            for pid in list(self._workers):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._workers[pid]
                elif time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


class _Reports:
    """In a forked process: sends what the first one is to tell."""

    def __init__(self, config: pytest.Config, channel: Connection) -> None:
        self._config = config
        self._channel = channel

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send(("logreport", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._channel.send(("logfinish", nodeid, location))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if when == "runtest":  # the first one has those of the collection
            one = warning_message
            self._channel.send(
                ("warning", str(one.message), one.category, one.filename, one.lineno, when, nodeid, location)
            )


def _work(session: pytest.Session, number: int, channel: Connection) -> None:
    """Run tests in a forked process."""
    config = session.config
    config.workerinput = {"workerid": f"w{number}"}  # type: ignore[attr-defined]
    random.seed()
    config.pluginmanager.unregister(name="terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # into files that all processes have
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.pluginmanager.register(_Reports(config, channel), "schedd-reports")
    while True:
        channel.send(("asks",))
        items = [session.items[one] for one in channel.recv()]
        if not items:
            return
        for item, following in zip(items, [*items[1:], session], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break  # the first one has counted, too

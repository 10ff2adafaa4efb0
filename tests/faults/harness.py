"""The test's side of worker processes: start, hear, tell and kill them, and read what they noted."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from faults import durable_kinds, kinds
from scheduler import Scheduler
from scheduler.engine.dispatch import completion as ledger
from scheduler.model import state as st
from scheduler.model.defaults import POOL_SLOTS
from scheduler.store.db.dialect import prepared
from scheduler.store.read import history as read_history
from support.warm import warm

TESTS = Path(__file__).parents[1]
PATIENCE = 20.0  # seconds until a test gives up on something that should have happened long ago
T = TypeVar("T")


def until(condition: Callable[[], T], what: str, timeout: float = PATIENCE, every: float = 0.01) -> T:
    """Wait until ``condition()`` is true, and return it."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(every)


class Process:
    """One worker process. ``log`` is the file with all that it wrote."""

    def __init__(self, pid: int, reports: int, commands: int, log: Path, reap: Callable[[], int]) -> None:
        self.pid = pid
        self.log = log
        self._fd = os.pidfd_open(pid)
        self._reports = reports
        self._commands = commands
        self._reap = reap
        self._buffer = b""
        self._received: list[dict[str, Any]] = []
        self.status: int | None = None

    def send(self, do: str, **fields: Any) -> None:
        os.write(self._commands, json.dumps({"do": do, **fields}).encode() + b"\n")

    def open(self, gate: str = "gate") -> None:
        """Let the handlers go on that wait at this gate."""
        self.send("open", gate=gate)

    def expect(self, at: str, timeout: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """The next report of this name with these fields; others stay for later."""
        deadline = time.monotonic() + timeout
        while True:
            for index, report in enumerate(self._received):
                if report["at"] == at and all(report.get(k) == v for k, v in fields.items()):
                    return self._received.pop(index)
            left = deadline - time.monotonic()
            assert self._read(left), f"no report {at} {fields} within {timeout:g} s; {self.tail()}"

    def reported(self, at: str) -> list[dict[str, Any]]:
        """All reports of this name so far that no ``expect()`` has taken."""
        while self._read(0):
            pass
        return [report for report in self._received if report["at"] == at]

    def _read(self, timeout: float) -> bool:
        if not select.select([self._reports], [], [], max(0.0, timeout))[0]:
            return False
        data = os.read(self._reports, 65536)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._received += [json.loads(line) for line in lines]
        return bool(data)

    def alive(self) -> bool:
        return not select.select([self._fd], [], [], 0)[0]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and for SIGKILL wait for the end."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.wait()

    def wait(self, timeout: float = PATIENCE) -> int:
        """How it ended: its exit status, or minus the number of the signal."""
        if self.status is None:
            assert select.select([self._fd], [], [], timeout)[0], f"alive after {timeout:g} s; {self.tail()}"
            self.status = self._reap()
        return self.status

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self, containing: str) -> list[str]:
        return [line for line in self.text().splitlines() if containing in line]

    def tail(self) -> str:
        return f"log of {self.pid}:\n{self.text()[-3000:]}"

    def close(self) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself, and was reaped
                os.kill(self.pid, signal.SIGCONT)
                os.kill(self.pid, signal.SIGKILL)
            self.wait()
        for fd in (self._fd, self._reports, self._commands):
            os.close(fd)


class Mother:
    """The process that forks workers; one per pytest process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
            self._process = subprocess.Popen(
                [sys.executable, str(TESTS / "faults" / "worker.py"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
            )

    def fork(self, request: dict[str, Any], fds: list[int]) -> int:
        socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        return int(self._answer())

    def reap(self, pid: int) -> int:
        self._socket.send(json.dumps({"wait": pid}).encode())
        return int(self._answer())

    def _answer(self) -> bytes:
        answer = self._socket.recv(64)
        assert answer, "the process that forks workers has died"
        return answer

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class Run(NamedTuple):
    """One execution of a handler as its handler noted it; ``end`` None: interrupted. Nanoseconds, monotonic."""

    attempt: int
    pid: int
    start: int
    end: int | None
    claim: int


class Fleet:
    """The workers of one test on one database, and the notes that their handlers write."""

    def __init__(self, url: str, directory: Path, mother: Mother) -> None:
        self.url = url
        self.directory = directory
        self.notes = directory / "notes"
        self.notes.mkdir()
        self._mother = mother
        self.processes: list[Process] = []

    def worker(self, *, ready: bool = True, **config: Any) -> Process:
        """An embedded Scheduler in a process of its own.

        ``options``: its own; ``arm``: a failpoint; ``url``: another way to the database; ``clock``: seconds that its
        wall clock is ahead; ``many``: ends from which on it records them beside the claim; ``extra``: names of kinds in
        versions.py; ``next``: the migrations of the next program, which it is.
        """
        request = {"url": self.url, "notes": str(self.notes), **config}
        process = self._start(lambda fds: self._forked(request, fds))
        if ready:
            process.expect("ready")
        return process

    def _forked(self, request: dict[str, Any], fds: list[int]) -> tuple[int, Callable[[], int]]:
        pid = self._mother.fork(request, fds)
        return pid, lambda: self._mother.reap(pid)

    def daemon(
        self,
        *,
        ready: bool = True,
        module: str = "faults.kinds",
        url: str = "",
        clock: float = 0.0,
        many: int = ledger.BACKGROUND_MIN_OUTCOMES,
        path: Sequence[str] = (str(TESTS),),
        **settings: str,
    ) -> Process:
        """A real schedd. ``settings`` by their dotted names with ``__``, as TOML values; ``path``: of its task modules;
        the rest as for a worker."""
        sections: dict[str, list[str]] = {"store": [f'url = "{url or self.url}"']}
        sections["tasks"] = [f'modules = ["{module}"]', f"path = {json.dumps(list(path))}"]
        for name, value in settings.items():
            section, _, setting = name.rpartition("__")
            sections.setdefault(section.replace("__", "."), []).append(f"{setting} = {value}")
        config = self.directory / f"config{len(self.processes)}.toml"
        config.write_text("\n".join("\n".join([f"[{s}]", *lines]) for s, lines in sections.items()))
        process = self._start(lambda fds: self._spawned(config, clock, many, fds))
        if ready:
            until(lambda: process.lines("ready") or not process.alive(), f"schedd is ready; {process.tail()}")
            assert process.alive(), process.tail()
        return process

    def _spawned(self, config: Path, clock: float, many: int, fds: list[int]) -> tuple[int, Callable[[], int]]:
        reports, commands, log = fds
        module, arguments = "scheduler.daemon", ["--config", str(config)]
        environ = {
            **os.environ,
            "FAULTS_LINK": json.dumps([reports, commands, str(self.notes)]),
            "FAULTS_CLOCK": str(clock),
            "FAULTS_MANY": str(many),
        }
        if warm.can(environ):
            with open(os.devnull) as nothing:
                forked = warm.start(
                    *(module, arguments, self.directory, environ, [nothing.fileno(), log, log]),
                    keep=[reports, commands],
                    session=True,
                )
            return forked.pid, forked.wait
        spawned = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environ,
            cwd=self.directory,
            pass_fds=[reports, commands],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        return spawned.pid, spawned.wait

    def _start(self, make: Callable[[list[int]], tuple[int, Callable[[], int]]]) -> Process:
        log = self.directory / f"log{len(self.processes)}"
        ours, reports = os.pipe2(os.O_CLOEXEC)
        commands, tell = os.pipe2(os.O_CLOEXEC)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fds = [reports, commands, output]
        pid, reap = make(fds)
        for fd in fds:
            os.close(fd)
        process = Process(pid, ours, tell, log, reap)
        self.processes.append(process)
        return process

    def runs(self, task_id: int) -> list[Run]:
        """The executions of a task, in the order in which they started."""
        path = self.notes / str(task_id)
        found: list[Run] = []
        for line in path.read_text().splitlines() if path.exists() else ():
            what, attempt, pid, at, claim = line.split()
            if what == "start":
                found.append(Run(int(attempt), int(pid), int(at), None, int(claim)))
            else:
                index = next(i for i, r in enumerate(found) if (r.claim, r.pid) == (int(claim), int(pid)))
                found[index] = found[index]._replace(end=int(at))
        return found

    def started(self) -> dict[int, list[Run]]:
        """The runs of every task that has started."""
        return {int(path.name): self.runs(int(path.name)) for path in self.notes.iterdir()}

    def close(self) -> None:
        for process in self.processes:
            process.close()


def freeze(process: Process, jobs: Scheduler) -> None:
    """Stop a worker where it stands, but not inside a transaction, which would stop others by nature."""
    while True:
        process.kill(signal.SIGSTOP)
        until(lambda: _stopped(process.pid), "every thread has stopped")
        if not _in_transaction(jobs):
            return
        process.kill(signal.SIGCONT)
        time.sleep(0.003)


def _stopped(pid: int) -> bool:
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _in_transaction(jobs: Scheduler) -> bool:
    path = jobs.database.path
    if path is None:
        busy = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'schedd' AND state <> 'idle' "
        return bool(rows(jobs, busy + "AND datname = current_database() AND pid <> pg_backend_pid()"))
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
    return False


def connect(url: str, **options: Any) -> Scheduler:
    """The test's own Scheduler, which only schedules and looks."""
    jobs = Scheduler(url, **options)
    for kind in (*kinds.ALL, *durable_kinds.ALL):
        jobs.register(kind)
    return jobs


def rows(jobs: Scheduler, sql: str, **bound: Any) -> list[Any]:
    with jobs.database.read() as tx:
        return list(tx.connection.execute(prepared(sql), bound).fetchall())


def counts(jobs: Scheduler) -> dict[st.TaskState, int]:
    """How many tasks are in each state."""
    found = rows(jobs, "SELECT state, count(*) FROM schedd_tasks GROUP BY state")
    return {st.TaskState.from_code(code): n for code, n in found}


def unfinished(jobs: Scheduler) -> int:
    return sum(n for state, n in counts(jobs).items() if not state.terminal)


def all_ended(jobs: Scheduler, timeout: float = PATIENCE) -> None:
    """Wait until every task has ended."""
    deadline = time.monotonic() + timeout
    while unfinished(jobs):
        assert time.monotonic() < deadline, f"not ended within {timeout:g} s: {counts(jobs)}"
        time.sleep(0.02)


def all_take_part(fleet: Fleet, jobs: Scheduler, processes: list[Process]) -> None:
    """Handlers in every one of these processes, which have the default pools and nothing else to do: one more under way
    at once than there are slots without any one of them. Their run times are unknown, so none is claimed ahead."""
    slots = POOL_SLOTS["medium"][0] + POOL_SLOTS["low"][0]  # idle ones of low help
    with jobs.batch() as batch:
        for _ in range(slots * (len(processes) - 1) + 1):
            batch.task(kinds.Hold())
    until(lambda: all(fleet.runs(i) for i in batch.ids), f"{len(batch.ids)} handlers are under way at once")
    assert {run.pid for i in batch.ids for run in fleet.runs(i)} == {process.pid for process in processes}
    for process in processes:
        process.open()
    all_ended(jobs)


def history(jobs: Scheduler, task_id: int) -> list[tuple[int, str]]:
    """(attempt, how it ended) of each recorded attempt, oldest first."""
    return [(a.number, str(a.outcome)) for a in attempts(jobs, task_id)]


def attempts(jobs: Scheduler, task_id: int) -> list[read_history.AttemptRecord]:
    """The attempts of a task that have ended."""
    with jobs.database.read() as tx:
        return list(read_history.attempts(tx, task_id))


def state(jobs: Scheduler, task_id: int) -> str:
    (row,) = rows(jobs, "SELECT state FROM schedd_tasks WHERE id = :id", id=task_id)
    return str(st.TaskState.from_code(row.state))


def result(jobs: Scheduler, task_id: int) -> Any:
    (row,) = rows(jobs, "SELECT result FROM schedd_tasks WHERE id = :id", id=task_id)
    return json.loads(row.result)


def overlapping(runs: list[Run]) -> Iterator[tuple[Run, Run]]:
    """Pairs of runs that were under way at once; what was interrupted ended before the next began."""
    for first, second in itertools.pairwise(runs):
        if first.end is not None and second.start < first.end:
            yield first, second

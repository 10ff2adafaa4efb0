"""An executor's placer for tests: stepped by hand, with real jobs, on an engine that may be made unreliable."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy

from scheduler import Scheduler, TaskState
from scheduler.config.load import load
from scheduler.config.model import Config
from scheduler.executors.gateway import JobGateway
from scheduler.executors.placer import Placer
from scheduler.executors.ports import Capabilities, Executor, ExecutorError, Finding, Job, Refused, Seen, Submitted
from scheduler.executors.service import JobCommands, make_executor
from scheduler.model.placement import name_prefix
from scheduler.ports import FAILPOINTS
from scheduler.store import placements, reaper
from scheduler.store.placements import PlacementRecord
from support.placed import Moment, Newer, Work

NAME = "it"
TESTS = Path(__file__).parents[1]
GATE = 'read go < "$0"; exec "$@"'
MAX_GATED = 1000
PATIENCE = 90.0  # seconds: the machine may be busy
PAUSE = 0.02  # seconds between two looks


def free_port() -> int:
    """A port of the loopback that was free a moment ago."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class Unreliable:
    """An engine that a test may have lose requests and answers, forget jobs, and count questions."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.drop_requests = self.drop_answers = 0  # of so many submissions
        self.forgets = False  # it knows no job
        self.twice = False  # it starts each job a second time
        self.asked = self.submissions = 0
        self.submitted: list[Job] = []
        self.cancelled: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        self.submissions += 1
        if self.drop_requests:
            self.drop_requests -= 1
            raise ExecutorError("the request was lost")
        self.submitted += jobs
        answers = self.inner.submit(jobs)
        if self.twice:
            self.inner.submit(jobs)
        if self.drop_answers:
            self.drop_answers -= 1
            raise ExecutorError("the answer was lost")
        return answers

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        return {} if self.forgets else self.inner.find(names)

    def observe(self) -> Sequence[Seen]:
        self.asked += 1
        return [] if self.forgets else self.inner.observe()

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        self.cancelled += handles
        self.inner.cancel(handles, grace)

    def logs(self, handle: str, tail: int) -> str | None:
        return self.inner.logs(handle, tail)

    def forget(self, handles: Sequence[str]) -> None:
        self.inner.forget(handles)

    def check(self) -> Sequence[Finding]:
        return self.inner.check()

    def close(self) -> None:
        self.inner.close()


class Gate:
    """Keeps jobs waiting before they begin, without work for the machine."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        os.mkfifo(self.path)
        self._fd = -1

    def open(self) -> None:
        """Let them begin, and those that come later."""
        self._fd = os.open(self.path, os.O_RDWR)
        os.write(self._fd, b"\n" * MAX_GATED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class TestCommands(JobCommands):
    """A job's command, behind a gate if there is one, or another one altogether."""

    __test__ = False

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.executors[NAME])
        self.gate: Gate | None = None  # a job begins once it is open
        self.instead: list[str] | None = None
        self.more: dict[str, str] = {}  # of the environment

    def argv(self, executor: str, task_id: int, claim: int) -> Sequence[str]:
        argv = self.instead or list(super().argv(executor, task_id, claim))
        return argv if self.gate is None else ["/bin/sh", "-c", GATE, str(self.gate.path), *argv]

    def env(self) -> Mapping[str, str]:
        return {**super().env(), "PYTHONPATH": str(TESTS), **self.more}


class Place:
    """One store, one executor and its placer. ``settings``: of the executor, as TOML lines; ``PORT`` is a free one.

    ``serves``: jobs reach the store through this program's gateway, if the settings have one.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        settings: str,
        holder: str = "first",
        submit_grace: float = 0.2,
        serves: bool = True,
    ) -> None:
        self.directory = directory
        self.notes = directory / "notes"
        self.file = directory / "config.toml"
        if not self.file.exists():
            give_an_id(url)
            self.file.write_text(
                f'[store]\nurl = "{url}"\n[tasks]\nmodules = ["support.placed"]\n[worker]\nlease = 5\n'
                f'[log]\nlevel = "warning"\n[executors.{NAME}]\ninterval = 0.02\ngrace = 1\n'
                f"submit_grace = {submit_grace}\n{settings.replace('PORT', str(free_port()))}"
            )
        self.config = load(str(self.file), {})
        self.jobs = Scheduler(url)
        self.jobs.register(Work)
        self.jobs.register(Newer)
        self.jobs.register(Moment)
        self.gateway: JobGateway | None = None
        if self.config.gateway.listen is not None and serves:
            self.open_gateway()
        self.engine = Unreliable(make_executor(self.config, NAME))
        self.commands = TestCommands(self.config)
        self.gate: Gate | None = None
        self.rung = 0
        self.patience = PATIENCE
        self.pause = PAUSE
        self.placer = Placer(
            NAME,
            self.config.executors[NAME],
            self.engine,
            self.jobs.database,
            self.jobs.registry,
            holder,
            self.commands,
            ring=self._ring,
        )

    def open_gateway(self) -> JobGateway:
        """Serve jobs that have no database, at the address of the configuration."""
        self.jobs.database.open()
        self.gateway = JobGateway(self.config, self.jobs, self._ring)
        self.gateway.start()
        return self.gateway

    def _ring(self) -> None:
        self.rung += 1

    def close(self) -> None:
        """End whatever still runs."""
        try:
            self.engine.forgets = False
            self.engine.cancel([seen.handle for seen in self.seen() if not seen.phase.over], 0.0)
            self.until(lambda: all(seen.phase.over for seen in self.seen()), step=False)
        finally:
            if self.gate is not None:
                self.gate.close()
            if self.gateway is not None:
                self.gateway.stop()
            self.placer.close()
            self.jobs.close()

    def shut(self) -> Gate:
        """Have jobs wait at a gate before they begin."""
        self.commands.gate = self.gate = Gate(self.directory)
        return self.gate

    def schedule(self, how: str = "plain") -> int:
        """Store a task; what its bodies do is in the notes."""
        return int(self.jobs.task(Work(str(self.notes), how)).schedule())

    def go(self) -> None:
        """Let bodies that wait go on."""
        self.notes.with_suffix(".go").touch()

    def lines(self, what: str = "") -> list[str]:
        """What bodies have written that begins with ``what``."""
        if not self.notes.exists():
            return []
        return [line for line in self.notes.read_text().splitlines() if line.startswith(what)]

    def until(self, over: Callable[[], Any], *, step: bool = True) -> None:
        """Step the placer until something is so; workers that are dead are reaped meanwhile."""
        deadline = time.monotonic() + self.patience
        while not over():
            assert time.monotonic() < deadline, self.told()
            if step:
                self.placer.step()
                self.jobs.database.change(lambda tx: reaper.reap(tx))
            time.sleep(self.pause if step else PAUSE)

    def told(self) -> str:
        """What is known, for an assertion that fails."""
        tasks = [(task.id, task.state, task.error) for task in self.jobs.list_tasks()]
        places = [self.placements(task[0]) for task in tasks]
        return f"{tasks}\n{places}\n{self.lines()}\n{self.engine.observe()}"

    def ended(self, *ids: int) -> bool:
        """Whether these tasks have ended."""
        return all(self.jobs.get_task(task_id).state.terminal for task_id in ids)

    def state(self, task_id: int) -> TaskState:
        return self.jobs.get_task(task_id).state

    def outcomes(self, task_id: int) -> list[str]:
        """How the attempts ended, in order."""
        return [attempt.outcome.value for attempt in self.jobs.get_attempts(task_id)]

    def placements(self, task_id: int) -> list[PlacementRecord]:
        with self.jobs.database.read() as tx:
            return placements.placements_of(tx, task_id)

    def seen(self) -> list[Seen]:
        """What the engine itself says of this store's jobs: other tests may have some, too."""
        with self.jobs.database.read():
            identity = self.jobs.database.same.identity
        assert identity is not None
        ours = name_prefix(identity.store)
        return [seen for seen in self.engine.inner.observe() if seen.name.startswith(ours)]

    def handles(self) -> list[str]:
        return [seen.handle for seen in self.seen()]

    def side_by_side(self) -> int:
        """How many bodies of one task ran while another of its bodies did: one that was killed has no end."""
        found, open_bodies = 0, dict[str, str]()
        for line in self.lines():
            what, task_id, _, pid = line.split()
            if what == "end":
                open_bodies.pop(task_id, None)
            if what != "begin":
                continue
            before = open_bodies.get(task_id)
            found += before is not None and _is_running(int(before))
            open_bodies[task_id] = pid
        return found


def give_an_id(url: str) -> None:
    """An id of its own for the store: those of tests are copies of one, and names of jobs begin with it."""
    engine = sqlalchemy.create_engine(url)
    if sqlalchemy.inspect(engine).has_table("schedd_store"):  # else it is new, and gets one
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("UPDATE schedd_store SET store = :store"), {"store": str(uuid.uuid4())})
    engine.dispose()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """``python -m support.placing URL DIRECTORY POINT``: step a placer until it kills itself at this failpoint."""
    url, directory, point = sys.argv[1:]

    def hit(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    FAILPOINTS.hit = hit
    place = Place(url, Path(directory), "", holder="killed", serves=False)
    while True:
        place.placer.step()
        time.sleep(0.02)


if __name__ == "__main__":
    main()

"""A world: a store, what runs tasks there, and what is killed while they run. See run.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scheduler import Scheduler, TaskInfo, TaskState

EXAMPLES = Path(__file__).resolve().parents[1]
PROGRAM = EXAMPLES / "anywhere.py"
BIN = Path(sys.executable).parent
PATIENCE_S = 300.0  # of one world: the machine may be busy
LOOK_S = 0.03  # between two looks at the store
LAST_LINES = 10  # of a log, for an error

CONFIG = """\
[store]
url = "{url}"

[tasks]
modules = ["anywhere"]
path = ["{examples}", "{examples}/worlds"]

[worker]
lease = 5
max_concurrent_tasks = {slots}

{executor}
"""


class WorldError(Exception):
    """A world came to no end; the text says why."""


class StoppedError(Exception):
    """The user has had enough."""


class Outcome(NamedTuple):
    """``ended``: how many tasks had ended at the first kill. ``again``: attempts beyond one for each task."""

    output: str
    tasks: int
    killed: tuple[str, ...]
    ended: int
    again: int
    seconds: float


class World:
    """Runs anywhere.py once. Subclasses say where, and what else there is to kill."""

    name = ""
    on_postgres = False
    executor = "local"
    daemons = 1
    slots = 6  # of a daemon

    @classmethod
    def missing(cls) -> str:
        """What to install for this world; empty: nothing."""
        return ""

    def __init__(self, place: Path, url: str, parcels: int, say: Callable[[str], None], stop: threading.Event) -> None:
        self.place = place
        self.url = url
        self.parcels = parcels
        self.config = place / "schedd.toml"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDD_")}
        self.environ |= {"SCHEDD_CONFIG": str(self.config), "PARCELS": str(parcels)}
        self.killed: list[str] = []
        self.jobs = Scheduler(url)
        self.cluster: Any = None  # of the engine, if it has one
        self._say = say
        self._stop = stop
        self._running: list[subprocess.Popen[bytes]] = []  # daemons
        self._program: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0

    # What worlds differ in

    def start_engine(self) -> str:
        """Start what the daemons place tasks in; returns lines of their configuration."""
        return ""

    def kill(self) -> None:
        """Kill what there is to kill, once a part of the tasks has ended, and start it again."""
        raise NotImplementedError

    # The same in all

    def run(self) -> Outcome:
        """The whole order in this world. Raises WorldError, StoppedError."""
        began = time.monotonic()
        self.place.mkdir()
        try:
            executor = self.start_engine()
            self._deadline = time.monotonic() + PATIENCE_S
            text = CONFIG.format(url=self.url, examples=EXAMPLES, slots=self.slots, executor=executor)
            self.config.write_text(text, encoding="utf-8")
            # The store is there before anybody looks at it.
            subprocess.run([BIN / "schedctl", "db", "upgrade"], env=self.environ, check=True, capture_output=True)
            for _ in range(self.daemons):
                self.start_daemon()
            self.start_program()
            ended = self.wait_for_the_middle(0.25)
            self.kill()
            assert self._program is not None
            self.wait_until(self.has_ended)
            if self._program.returncode:
                raise WorldError(f"anywhere.py ended with status {self._program.returncode}:\n{self.last_words()}")
            found = self.tasks()
            again = sum(max(0, len(self.jobs.get_attempts(task.id)) - 1) for task in found)
            output = (self.place / "output").read_text(encoding="utf-8")
            self.check_calls(again)
            return Outcome(output, len(found), tuple(self.killed), ended, again, time.monotonic() - began)
        finally:
            self.close()

    def check_calls(self, again: int) -> None:
        """A step may run once more only if its attempt was killed before the step was recorded."""
        labels = [line for line in self.service() if line.startswith("label")]
        if "crash" not in self.service():
            raise WorldError("no handler crashed: this run shows nothing")
        if len(labels) - len(set(labels)) > again:
            raise WorldError(f"{len(labels)} labels were printed for {self.parcels} parcels, by {again} new attempts")

    def start_daemon(self) -> None:
        with (self.place / "schedd.log").open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    [BIN / "schedd", "--config", self.config],
                    env=self.environ,
                    cwd=self.place,
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                )
            )

    def kill_daemon(self) -> None:
        """kill -9 of the eldest daemon, and start another one."""
        daemon = self._running.pop(0)
        daemon.kill()
        daemon.wait()
        self.note("a daemon", daemon.pid)
        self.start_daemon()

    def start_program(self) -> None:
        """anywhere.py: it stores the tasks, waits for them, and prints what became of them."""
        arguments = [str(self.config), self.executor] if self.daemons else []
        with (self.place / "output").open("wb") as output, (self.place / "schedd.log").open("ab") as log:
            self._program = subprocess.Popen(
                [sys.executable, PROGRAM, *arguments],
                env=self.environ,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
            )

    def kill_program(self) -> None:
        """kill -9 of anywhere.py, and start it again."""
        assert self._program is not None
        self._program.kill()
        self._program.wait()
        self.note("the program", self._program.pid)
        self.start_program()

    def note(self, what: str, pid: int) -> None:
        self.killed.append(what)
        self._say(f"kill -9 {pid}, {what}: {self.ended()} tasks had ended")

    # Looking

    def tasks(self) -> list[TaskInfo]:
        return list(self.jobs.list_tasks(limit=1000))

    def parcel_tasks(self) -> list[TaskInfo]:
        """Raises WorldError if all have ended: there is nothing left to kill."""
        found = [task for task in self.tasks() if task.kind == "Parcel"]
        if found and all(task.state.terminal for task in found):
            raise WorldError("all parcels were packed before everything was killed: this run shows nothing")
        return found

    def ended(self) -> int:
        return sum(task.state.terminal for task in self.tasks())

    def service(self) -> list[str]:
        """What was called outside."""
        file = self.place / "service"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def wait_for_the_middle(self, share: float) -> int:
        """Until such a share of the parcels is packed, and more of them are being packed; how many tasks have ended."""

        def is_there() -> bool:
            states = [task.state for task in self.parcel_tasks()]
            return states.count(TaskState.SUCCESS) >= share * self.parcels and TaskState.RUNNING in states

        self.wait_until(is_there)
        return self.ended()

    def has_ended(self) -> bool:
        """Whether the program has come to its end."""
        return self._program is not None and self._program.poll() is not None

    def wait_until(self, over: Callable[[], bool]) -> None:
        while not over():
            if self._stop.wait(LOOK_S):
                raise StoppedError
            if time.monotonic() > self._deadline or any(daemon.poll() is not None for daemon in self._running):
                raise WorldError(f"it came to no end: {self.ended()} tasks have ended. {self.last_words()}")

    def last_words(self) -> str:
        log = (self.place / "schedd.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-LAST_LINES:])

    def processes(self) -> Iterator[int]:
        """All processes of this world, whichever process started them."""
        return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and self.owns(entry))

    def owns(self, process: Path) -> bool:
        """Whether a process is of this world, by its environment."""
        try:
            return f"SCHEDD_CONFIG={self.config}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            return False

    def close(self) -> None:
        """Leave no process behind."""
        for process in (*self._running, self._program):
            if process is not None:
                process.kill()
                process.wait()
        if self.cluster is not None:
            self.cluster.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.jobs.close()

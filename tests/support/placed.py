"""Task types for jobs of executors. Each body writes what it does into a file, for tests to read.

``PLACED_KILL=POINT`` in a job's environment: the job of the task's first claim kills itself at this failpoint.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from scheduler import Context, PermanentError, Resources, RetryPolicy, Task
from scheduler.ports import FAILPOINTS

SMALL = Resources(cpu=0.01)


def note(place: str, what: str) -> None:
    """Append a line, whole."""
    with open(place, "a", encoding="utf-8") as file:
        file.write(f"{what}\n")


def wait_for(path: Path, seconds: float = 60.0) -> None:
    """Wait until a test has made this file."""
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.01)


def facts() -> dict[str, Any]:
    """What a job may see of how it was started, without what differs between any two."""
    signals = {number.name: str(signal.getsignal(number)).partition(" at ")[0] for number in signal.Signals}
    files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) < 3]
    parent = os.getppid()
    command = Path(f"/proc/{os.getpid()}/cmdline").read_bytes()
    return {
        "environ": sorted(set(os.environ) - {"LC_CTYPE"}),
        "signals": signals,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "files": sorted(Path(file).name for file in files),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "path": sys.path,
        "argv": sys.argv[:-2],
        "directory": os.getcwd(),
        "umask": os.umask(0o077),
        "nice": os.nice(0),
        "group is the session": os.getpgid(0) == os.getsid(0),
        "leads a session": os.getsid(0) == os.getpid(),
        "parent leads the session": os.getsid(0) == parent,
        "forked": b"job_template" in command,
    }


class Work(Task, executor="it", resources=SMALL, retry=RetryPolicy(min_wait=0, max_attempts=3, jitter=0)):
    """``how``: returns at once; takes a moment; waits for the file ``go``; fails; kills itself in the first claim;
    hears nothing, or keeps its whole process from hearing anything."""

    notes: str
    how: str = "plain"

    def run(self, ctx: Context) -> Any:
        place, go = self.notes, Path(self.notes).with_suffix(".go")
        note(place, f"begin {ctx.id} {ctx.attempt} {os.getpid()}")
        first = ctx.step("first", lambda: ctx.attempt)
        if self.how == "wait":
            told = False
            while not go.exists():
                ctx.check_cancelled()
                if ctx.time_left() is not None and not told:
                    told = True
                    note(place, f"told {ctx.id} {ctx.attempt} {os.getpid()}")
                time.sleep(0.01)
        elif self.how == "deaf":
            while True:
                try:
                    time.sleep(0.05)
                except BaseException:
                    note(place, f"deaf {ctx.id} {ctx.attempt} {os.getpid()}")
        elif self.how == "slow":
            time.sleep(0.3)
        elif self.how == "facts":
            return {"facts": facts()}
        elif self.how == "look":
            _look(place)
        elif self.how == "transaction":
            with ctx.transaction():
                note(place, "opened")
        elif self.how == "large":
            ctx.step("large", lambda: "x" * 200_000)
        elif self.how == "grouped":
            for n in range(12):
                ctx.step(f"grouped {n}", lambda: "x" * 12_000, durable="grouped")
        elif self.how == "calls":
            ctx.report_progress(50, "half")
            ctx.spawn(Work(place), name="child")
            ctx.emit_event("made", {"by": ctx.id})
            ctx.results()
        elif self.how == "freeze":
            wait_for(go)
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread takes it, and goes no step further
        elif self.how == "fail":
            raise PermanentError("it cannot be done")
        elif self.how == "die" and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        note(place, f"end {ctx.id} {ctx.attempt} {os.getpid()}")
        ctx.log.info("the body has ended")
        print("the body has ended")
        return {"first": first, "attempt": ctx.attempt}


class Moment(Task, executor="it", resources=SMALL, retry=RetryPolicy(min_wait=0, max_attempts=1000, jitter=0)):
    """Takes up to ``longest`` seconds, and notes it if another body of its task runs. The claim is in the command."""

    notes: str
    longest: float

    def run(self, ctx: Context) -> int:
        claim = int(sys.argv[-1])
        who = f"{ctx.id} {claim} {os.getpid()}"
        note(self.notes, f"begin {who}")
        with open(f"{self.notes}.bodies", "a", encoding="utf-8") as bodies:  # the lock goes with the process
            try:
                fcntl.lockf(bodies, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, ctx.id)
            except OSError:
                note(self.notes, f"beside {who}")
            time.sleep(random.uniform(0.0, self.longest))
        note(self.notes, f"end {who}")
        return claim


class Newer(Task, executor="it", resources=SMALL, schema_version=1):
    """Stored by a newer program, in a test."""

    def run(self, ctx: Context) -> None: ...


def _look(place: str) -> None:
    """Write what the job has been given, and what it has opened."""
    environ = [f"{name}={value}" for name, value in os.environ.items()]
    own = Path("/proc/self/environ").read_text().split("\0")
    arguments = Path("/proc/self/cmdline").read_text().split("\0")
    found = {"environ": environ, "own": own, "argv": arguments, "opened": sorted(_opened)}
    note(place, f"look {json.dumps(found)}")


_opened: set[str] = set()


def _watch() -> None:
    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect":
            _opened.add(f"sqlite3 {given[0]}")
        elif event == "socket.connect" and isinstance(given[1], tuple):
            _opened.add(f"socket {given[1][0]}:{given[1][1]}")
        elif event == "import" and given[0] == "psycopg":
            _opened.add("psycopg")

    sys.addaudithook(hear)


if os.environ.get("PLACED_WATCH"):
    _watch()


def _arm(point: str) -> None:
    def hit(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    FAILPOINTS.hit = hit


if os.environ.get("PLACED_KILL") and sys.argv[-1:] == ["1"]:  # the number of the claim
    _arm(os.environ["PLACED_KILL"])

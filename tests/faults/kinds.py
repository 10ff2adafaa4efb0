"""The task types of the fault tests, and the link between a worker process and the test that started it.

Imported by both sides: the test schedules these types, the worker runs them. A handler notes when it starts and
ends in a file of its task's own, which survives the worker's death.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import json
import os
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any

from scheduler import AsyncContext, Context, RetryPolicy, Task, ports
from scheduler.engine.dispatch import completion as ledger
from scheduler.errors import PermanentError, TaskTimeout
from scheduler.ports import FAILPOINTS, SECOND, SystemClock

AT_ONCE = RetryPolicy(min_wait=0, max_wait=0, max_attempts=3, jitter=0.0, strategy="fixed")


class SkewedClock(SystemClock):
    """The machine's clocks, the wall's being off by what a test says."""

    offset = 0  # microseconds

    def now(self) -> int:
        return super().now() + self.offset


clock = SkewedClock()


class Link:
    """The worker's end: reports go up as JSON lines, commands come down; without them it dies."""

    def __init__(self, reports: int, commands: int, notes: str) -> None:
        self._reports = reports
        self._commands = commands
        self.notes = Path(notes)
        self.beside = self.notes.parent / f"beside-{os.getpid()}"  # is there once ends were recorded beside a claim
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.gates = _Gates()
        self.armed = ""  # the failpoint at which to report and block
        FAILPOINTS.hit = self.hit
        threading.Thread(target=self._listen, name="faults-link", daemon=True).start()

    def say(self, at: str, **fields: Any) -> None:
        os.write(self._reports, json.dumps({"at": at, **fields}).encode() + b"\n")

    def hit(self, point: str) -> None:
        """A failpoint: report, and stand still until killed."""
        if point == "before commit beside the claim" and not self.beside.exists():
            self.beside.touch()
        if point == self.armed:
            self.armed = ""
            self.say(point)
            threading.Event().wait()

    def _listen(self) -> None:
        with open(self._commands, encoding="utf-8") as lines:
            for line in lines:
                command = json.loads(line)
                if command["do"] == "open":
                    self.gates[command["gate"]].set()
                    gate_file(self.notes, os.getpid(), command["gate"]).touch()
                elif command["do"] == "arm":
                    self.armed = command["point"]
                elif command["do"] == "clock":
                    clock.offset = round(command["offset"] * SECOND)
                else:
                    self.commands.put(command)
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, what: str, ctx: Context | AsyncContext) -> None:
        claim = ctx._attempt.claimed.claim
        line = f"{what} {ctx.attempt} {os.getpid()} {time.monotonic_ns()} {claim}\n"
        fd = os.open(self.notes / str(ctx.id), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        os.write(fd, line.encode())
        os.close(fd)


def gate_file(notes: Path, worker: int, gate: str) -> Path:
    """Is there once the worker's gate is open."""
    return notes.parent / f"gate-{worker}-{gate}"


class ChildGate:
    """A gate as the children of a worker see it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wait(self) -> None:
        while not self.path.exists():
            time.sleep(0.01)


class ChildLink(Link):
    """A child process of a worker: it reports through the worker's own pipe."""

    def __init__(self, worker: int, reports: int, notes: str) -> None:
        self._reports = os.open(f"/proc/{worker}/fd/{reports}", os.O_WRONLY | os.O_CLOEXEC)
        self.notes = Path(notes)
        self.gates = _ChildGates(worker, self.notes)  # type: ignore[assignment]


class _Gates(dict[str, threading.Event]):
    """Made when first asked for. A defaultdict would now and then make two of one name, for two handlers that ask at
    once, and who waits at the first is never let go."""

    def __missing__(self, gate: str) -> threading.Event:
        return self.setdefault(gate, threading.Event())


class _ChildGates(dict[str, ChildGate]):
    def __init__(self, worker: int, notes: Path) -> None:
        self.worker, self.notes = worker, notes

    def __missing__(self, gate: str) -> ChildGate:
        return ChildGate(gate_file(self.notes, self.worker, gate))


link: Link | None = None


def setup(scheduler: Any) -> None:
    """Called by a real schedd that was told this module."""
    if link is None and "FAULTS_LINK" in os.environ:
        connect(*json.loads(os.environ["FAULTS_LINK"]))
        clock.offset = round(float(os.environ.get("FAULTS_CLOCK", "0")) * SECOND)
        ledger.BACKGROUND_MIN_OUTCOMES = int(os.environ.get("FAULTS_MANY", ledger.BACKGROUND_MIN_OUTCOMES))
        scheduler.clock = scheduler.database.clock = clock


def connect(reports: int, commands: int, notes: str) -> Link:
    global link
    os.environ["FAULTS_CHILD"] = json.dumps([os.getpid(), reports, notes])
    link = Link(reports, commands, notes)
    return link


def _link() -> Link:
    global link
    if link is None and ports.IN_CHILD:
        link = ChildLink(*json.loads(os.environ["FAULTS_CHILD"]))
    assert link is not None, "these handlers run in a worker that a test started"
    return link


class Noop(Task):
    """Nothing at all."""

    def run(self, ctx: Context) -> None:
        pass


class Work(Task, retry=AT_ONCE):
    """Some milliseconds, noted."""

    ms: float = 0.0

    def run(self, ctx: Context) -> int:
        _link().note("start", ctx)
        time.sleep(self.ms / 1000)
        _link().note("end", ctx)
        return ctx.attempt


class Step(Task):
    """Some milliseconds, noted; one attempt that may fail; asks its context all the time."""

    ms: float = 0.0

    def run(self, ctx: Context) -> int:
        _link().note("start", ctx)
        until = time.monotonic() + self.ms / 1000
        try:
            while time.monotonic() < until:
                ctx.check_cancelled()
                time.sleep(min(0.005, max(0.0, until - time.monotonic())))
        finally:
            _link().note("end", ctx)
        return ctx.attempt


class Beating(Task):
    """Sends heartbeats until something ends it."""

    def run(self, ctx: Context) -> None:
        _link().note("start", ctx)
        try:
            while True:
                ctx.heartbeat()
                time.sleep(0.02)
        finally:
            _link().note("end", ctx)


class Dozing(Task):
    """A coroutine that sleeps until something ends it."""

    async def run(self, ctx: AsyncContext) -> None:
        _link().note("start", ctx)
        try:
            await asyncio.sleep(3600)
        finally:
            _link().note("end", ctx)


class Hold(Task, retry=AT_ONCE):
    """Reports, then waits until the test opens its gate, deaf to everything else."""

    gate: str = "gate"

    def run(self, ctx: Context) -> int:
        _link().note("start", ctx)
        _link().say("body", task=ctx.id, attempt=ctx.attempt)
        _link().gates[self.gate].wait()
        _link().note("end", ctx)
        return ctx.attempt


class Narrow(Hold, max_concurrency=2, kind="Narrow"):
    """Like Hold, and no more than two at a time."""


class Paced(Work, rate_limit="20/2s", kind="Paced"):
    """Like Work, and no more than twenty starts in two seconds."""


class Fail(Task):
    """Like Hold, and then fails for good."""

    def run(self, ctx: Context) -> None:
        _link().say("body", task=ctx.id, attempt=ctx.attempt)
        _link().gates["gate"].wait()
        raise PermanentError("no")


class Raises(Task, retry=AT_ONCE):
    """Raises the built-in exception of this name."""

    name: str

    def run(self, ctx: Context) -> None:
        raise getattr(builtins, self.name)("on purpose")


class Chatty(Task):
    """Like Hold, and then reports its progress."""

    def run(self, ctx: Context) -> None:
        _link().note("start", ctx)
        _link().say("body", task=ctx.id, attempt=ctx.attempt)
        _link().gates["gate"].wait()
        for percent in range(20):
            ctx.report_progress(percent)
        _link().note("end", ctx)


class Big(Task, retry=AT_ONCE):
    """Returns a result of this many bytes."""

    size: int

    def run(self, ctx: Context) -> str:
        _link().note("start", ctx)
        _link().note("end", ctx)
        return "x" * self.size


class Attentive(Task, retry=AT_ONCE, timeout=0.75):
    """Asks its context all the time on the first attempt, and tells what that raised."""

    def run(self, ctx: Context) -> int:
        _link().note("start", ctx)
        try:
            while ctx.attempt == 1:
                ctx.check_cancelled()
                time.sleep(0.005)
        except TaskTimeout as error:
            _link().say("timeout", task=ctx.id, now=time.monotonic(), error=str(error))
            raise
        finally:
            _link().note("end", ctx)
        return ctx.attempt


class Deaf(Task, retry=AT_ONCE, timeout=0.75):
    """Overruns its timeout without asking its context, until the gate opens; only the first attempt."""

    def run(self, ctx: Context) -> int:
        _link().note("start", ctx)
        _link().say("body", task=ctx.id, attempt=ctx.attempt)
        if ctx.attempt == 1:
            _link().gates["deaf"].wait()
        _link().note("end", ctx)
        return ctx.attempt


class Sleeper(Task, retry=AT_ONCE, timeout=0.75):
    """An async handler that waits for ever on the first attempt."""

    async def run(self, ctx: AsyncContext) -> int:
        _link().note("start", ctx)
        _link().say("body", task=ctx.id, attempt=ctx.attempt)
        try:
            if ctx.attempt == 1:
                await asyncio.sleep(3600)
        finally:
            _link().note("end", ctx)
        return ctx.attempt


class Stubborn(Task, retry=AT_ONCE, timeout=0.75):
    """An async handler that swallows what should end it until the gate opens; only the first attempt."""

    async def run(self, ctx: AsyncContext) -> int:
        _link().note("start", ctx)
        _link().say("body", task=ctx.id, attempt=ctx.attempt)
        gate = asyncio.create_task(asyncio.to_thread(_link().gates["stubborn"].wait))
        while ctx.attempt == 1 and not gate.done():
            try:
                await asyncio.shield(gate)
            except asyncio.CancelledError:
                _link().say("swallowed", task=ctx.id)
        _link().gates["stubborn"].set()
        _link().note("end", ctx)
        return ctx.attempt


class Segfault(Task, retry=RetryPolicy(min_wait=0, max_wait=0, max_attempts=None, strategy="fixed")):
    """Takes its worker process with it, once everything else that the worker holds is under way."""

    after: float = 0.0

    def run(self, ctx: Context) -> None:
        _link().note("start", ctx)
        time.sleep(self.after)
        ctypes.string_at(0)


class Kills(Task, retry=AT_ONCE):
    """Kills its process at once."""

    def run(self, ctx: Context) -> None:
        _link().note("start", ctx)
        os.kill(os.getpid(), signal.SIGKILL)


ALL = (
    *(Noop, Work, Step, Beating, Dozing, Hold, Narrow, Paced, Fail, Raises, Chatty, Big),
    *(Attentive, Deaf, Sleeper, Stubborn, Segfault, Kills),
)

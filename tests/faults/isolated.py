"""Task types that run in child processes, most of them up to no good. Imported by the tests and by the children."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from scheduler import AsyncContext, Context, PermanentError, RetryPolicy, Task, ports
from scheduler.errors import Interrupted, TaskFailedError

AT_ONCE = RetryPolicy(min_wait=0, max_wait=0, max_attempts=2, jitter=0.0, strategy="fixed")
made = 0


def make_state() -> dict[str, Any]:
    """``ctx.state`` of each child: called once in it."""
    global made
    made += 1
    return {"pid": os.getpid(), "made": made}


def make_no_state() -> None:
    raise RuntimeError("the model is missing")


def note(path: str, what: str) -> None:
    """A line in a file, whole whatever happens next."""
    if path:
        line = f"{what} {os.getpid()} {time.monotonic_ns()}\n".encode()
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, line)
        os.close(fd)


def hang() -> None:
    """C code that never lets Python run again: a regular expression that backtracks for centuries."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def square(value: int) -> tuple[int, int]:
    return value * value, os.getpid()


def refuse(value: int) -> None:
    raise LookupError(f"not {value}")


def hold(notes: str) -> None:
    """Nothing but SIGKILL ends it."""
    note(notes, "start")
    hang()


def leave(notes: str) -> None:
    """Leaves a process behind."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(notes, "start")
        while True:
            time.sleep(3600)
    while not lines(Path(notes)):
        time.sleep(0.005)


def living(notes: str) -> list[str]:
    """Of the processes that noted something, those that are there."""
    return [line[1] for line in lines(Path(notes)) if os.path.exists(f"/proc/{line[1]}")]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def garble() -> None:
    """Write into whatever stream there is, the one to the engine included."""
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.type == socket.SOCK_STREAM:
                    found.send(b"\x01\0\0\0\xc1")  # a message of one byte, which msgpack never uses
        except OSError:
            pass


class Garble(Task, isolation="process", dead_letter=True):
    """Says something that is no message, and goes on."""

    notes: str = ""

    def run(self, ctx: Context) -> None:
        garble()
        note(self.notes, "start")
        hang()


class Pid(Task, isolation="process"):
    """Tells in which process it runs, and what its state is."""

    n: int = 0

    def run(self, ctx: Context) -> dict[str, Any]:
        return {"pid": os.getpid(), "n": self.n, "parent": os.getppid()}


class Meet(Task, isolation="process"):
    """Ends once another one is under way in another process."""

    place: str

    def run(self, ctx: Context) -> int:
        place = Path(self.place)
        (place / str(os.getpid())).touch()
        while len(list(place.iterdir())) < 2:
            time.sleep(0.005)
        return os.getpid()


class APid(Task, isolation="process"):
    async def run(self, ctx: AsyncContext) -> int:
        await asyncio.sleep(0)
        return os.getpid()


class State(Task, isolation="process"):
    def run(self, ctx: Context) -> Any:
        return ctx.state


class Hang(Task, isolation="process", retry=AT_ONCE, timeout=0.75):
    """Ignores everything, on its first attempt."""

    notes: str = ""

    def run(self, ctx: Context) -> int:
        note(self.notes, "start")
        if ctx.attempt == 1:
            hang()
        return ctx.attempt


class Loop(Task, isolation="process"):
    """Pure Python without an end, that cleans up when it is stopped."""

    notes: str = ""
    swallow: bool = False

    def run(self, ctx: Context) -> None:
        note(self.notes, "start")
        try:
            while True:
                try:
                    while True:
                        sum(range(100))
                except Exception:  # what ends a handler is none of these
                    note(self.notes, "swallowed")
                except BaseException:
                    if not self.swallow:
                        raise
        finally:
            note(self.notes, "cleaned")


class ALoop(Task, isolation="process", timeout=0.75, retry=AT_ONCE):
    """Waits for ever, on its first attempt."""

    notes: str = ""

    async def run(self, ctx: AsyncContext) -> int:
        try:
            if ctx.attempt == 1:
                note(self.notes, "start")
                await asyncio.sleep(3600)
        finally:
            note(self.notes, "cleaned")
        return ctx.attempt


class Ask(Task, isolation="process"):
    """Asks its context all the time."""

    notes: str = ""

    def run(self, ctx: Context) -> None:
        note(self.notes, "start")
        while True:
            ctx.check_cancelled()
            time.sleep(0.005)


class Segfault(Task, isolation="process"):
    """Says something, and dies."""

    def run(self, ctx: Context) -> None:
        print("last words")
        os.write(2, b"of C code\n")
        ctypes.string_at(0)


class Exit(Task, isolation="process"):
    status: int = 7

    def run(self, ctx: Context) -> None:
        os._exit(self.status)


class Kill(Task, isolation="process"):
    """As the OOM killer would."""

    def run(self, ctx: Context) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Allocate(Task, isolation="process", limits={"memory": "256M"}):
    gigabytes: int = 4

    def run(self, ctx: Context) -> int:
        return len(bytearray(self.gigabytes << 30))


class Grouped(Task, isolation="process", limits={"memory": "256M"}, retry=RetryPolicy.none()):
    """What is written in the only group there is (of plain files); or dies as one that the kernel ends there."""

    groups: str
    dies: bool = False

    def run(self, ctx: Context) -> dict[str, str]:
        (group,) = Path(self.groups).iterdir()
        if self.dies:
            (group / "memory.events").write_text("oom 1\noom_kill 2\n")
            die()
        return {"procs": (group / "cgroup.procs").read_text(), "max": (group / "memory.max").read_text()}


class Burn(Task, isolation="process", limits={"cpu": 1}):
    def run(self, ctx: Context) -> None:
        hang()


class Open(Task, isolation="process", limits={"files": 16}):
    count: int = 100

    def run(self, ctx: Context) -> int:
        held = [open("/dev/null") for _ in range(self.count)]  # noqa: SIM115
        count = len(held)
        for one in held:
            one.close()
        return count


class Bomb(Task, isolation="process"):
    """Fifty processes, every other one in a session of its own, and every third again as a child's child."""

    count: int = 50
    end: str = "return"

    def run(self, ctx: Context) -> str:
        for number in range(self.count):
            if os.fork() == 0:
                if number % 2:
                    os.setsid()
                if number % 3 == 0 and os.fork():
                    os._exit(0)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(3600)
        if self.end == "hang":
            hang()
        elif self.end == "die":
            ctypes.string_at(0)
        return "returned"


class Forks(Task, isolation="process"):
    """Comes back twice."""

    def run(self, ctx: Context) -> str:
        return "child" if os.fork() == 0 else "parent"


class Workers(Task, isolation="process", timeout=10):
    """Has a worker of multiprocessing that prints, logs and waits until it is terminated."""

    def run(self, ctx: Context) -> int | None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(theirs,))
        worker.start()
        ours.recv()
        worker.terminate()
        worker.join()
        return worker.exitcode


def work(parent: Any) -> None:
    print("printed by a worker")
    logging.getLogger("isolated").warning("logged by a worker")
    parent.send(True)
    signal.pause()


class Unwaited(Task, isolation="process"):
    """Leaves a zombie behind: a process that has ended and was not waited for. Tells whether one was there before."""

    def run(self, ctx: Context) -> dict[str, Any]:
        before = True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            before = False
        pid = os.posix_spawnp("true", ["true"], {})
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return {"pid": os.getpid(), "before": before}


class Program(Task, isolation="process"):
    """Waits for another program that ignores SIGTERM."""

    def run(self, ctx: Context) -> None:
        script = (
            "import signal, time; signal.signal(15, signal.SIG_IGN); print('program', flush=True); time.sleep(3600)"
        )
        subprocess.run([sys.executable, "-c", script], check=True)


class Report(Task, isolation="process"):
    """Writes in every way there is."""

    def run(self, ctx: Context) -> None:
        ctx.log.info("through ctx.log", size=3)
        logging.getLogger("isolated").warning("through logging")
        print("through print")
        print("no newline", end="")
        ctx.capture("through capture\n")
        os.write(1, b"past Python\n")
        subprocess.run(["echo", "of another program"], check=True)


class Odd(Task, isolation="process", retry=AT_ONCE):
    """Says, and on its first attempt raises, what is no text: the name of a file, say, in some other encoding."""

    def run(self, ctx: Context) -> int:
        ctx.capture("captured \udcff\n")
        if ctx.attempt == 1:
            raise LookupError("raised \udcff")
        return ctx.attempt


class Together(Task, isolation="process", retry=AT_ONCE):
    """Its coroutines raise at once."""

    async def run(self, ctx: AsyncContext) -> None:
        async def one(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            for error in (ValueError("no"), PermanentError("never", status=410)):
                group.create_task(one(error))


class Chatter(Task, isolation="process"):
    lines: int = 5000

    def run(self, ctx: Context) -> None:
        for number in range(self.lines):
            print(f"line {number} " + "x" * 80)


class Hooked(Task, isolation="process", retry=AT_ONCE):
    """Dies each time; its hooks run elsewhere."""

    notes: str

    def run(self, ctx: Context) -> None:
        os._exit(9)

    def on_attempt_failed(self, ctx: Context, error: BaseException) -> None:
        note(self.notes, f"retried:{ctx.attempt}:{type(error).__name__}")

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        note(self.notes, f"failed:{ctx.attempt}:{type(error).__name__}")


class Grow(Task, isolation="process"):
    """Keeps what it allocates."""

    size: int

    def run(self, ctx: Context) -> int:
        kept.append(b"x" * self.size)
        return os.getpid()


kept: list[bytes] = []


class Big(Task, isolation="process"):
    """Longer than a message can be."""

    text: str

    def run(self, ctx: Context) -> str:
        return self.text[::-1]


class Compute(Task):
    """In a thread: functions in child processes."""

    what: str = "square"

    def run(self, ctx: Context) -> Any:
        if self.what == "square":
            return ctx.cpu(square, 7)
        if self.what == "refuse":
            return ctx.cpu(refuse, 3)
        if self.what == "die":
            return ctx.cpu(die)
        if self.what in CALLS:
            return ctx.cpu(*CALLS[self.what](ctx))
        return ctx.cpu(hang)


def closing_over(value: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return value() if callable(value) else value, os.getpid()

    return inner


class LocalError(Exception):
    """Told apart from the others by where it is defined."""


def raising() -> Callable[[], Any]:
    class OfOneCall(LocalError):
        pass

    def inner() -> None:
        raise OfOneCall("said there", 7)

    return inner


def returning(value: Any) -> Any:
    return value()


async def coroutine() -> None: ...


CALLS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "lambda": lambda ctx: (lambda n: (n * n, os.getpid()), 7),
    "closure": lambda ctx: (closing_over(49),),
    "closure of a closure": lambda ctx: (closing_over(lambda: 49),),
    "partial": lambda ctx: (partial(lambda a, b: (a * b, os.getpid()), 7), 7),
    "argument": lambda ctx: (returning, lambda: (49, os.getpid())),
    "method": lambda ctx: (Squares(7).square,),
    "raises its own": lambda ctx: (raising(),),
    "lock": lambda ctx: (closing_over(threading.Lock()),),
    "locked argument": lambda ctx: (square, threading.Lock()),
    "ctx": lambda ctx: (lambda: ctx.heartbeat(),),
    "returns a lock": lambda ctx: (lambda: threading.Lock(),),
    "coroutine": lambda ctx: (coroutine,),
}


class Squares:
    def __init__(self, n: int) -> None:
        self.n = n

    def square(self) -> tuple[int, int]:
        return self.n**2, os.getpid()


class AsyncCompute(Task):
    what: str = "square"

    async def run(self, ctx: AsyncContext) -> Any:
        if self.what == "many":
            return await asyncio.gather(*[ctx.cpu(square, n) for n in range(10)])
        if self.what in CALLS:
            return await ctx.cpu(*CALLS[self.what](ctx))
        return await (ctx.cpu(square, 7) if self.what == "square" else ctx.cpu(hang))


class Outlives(Task, retry=AT_ONCE):
    """A function that goes on, on its first attempt; which of its processes are there, on the second."""

    notes: str

    def run(self, ctx: Context) -> Any:
        return ctx.cpu(hold, self.notes) if ctx.attempt == 1 else living(self.notes)


class AOutlives(Task, retry=AT_ONCE):
    notes: str

    async def run(self, ctx: AsyncContext) -> Any:
        return await ctx.cpu(hold, self.notes) if ctx.attempt == 1 else living(self.notes)


class Leaves(Task):
    """Which of its function's processes are there when that has returned."""

    notes: str

    def run(self, ctx: Context) -> Any:
        ctx.cpu(leave, self.notes)
        return living(self.notes)


class AGivesUp(Task):
    """Waits for a function for so many seconds only. Which of its processes are there then, and whether it is noted."""

    notes: str
    seconds: float = 0.5

    async def run(self, ctx: AsyncContext) -> Any:
        try:
            await asyncio.wait_for(ctx.cpu(hold, self.notes), self.seconds)
        except TimeoutError:
            return living(self.notes)


class ComputeInside(Task, isolation="process"):
    """There it is a plain call."""

    def run(self, ctx: Context) -> Any:
        return [os.getpid(), *ctx.cpu(square, 3)]


class Unpicklable(Exception):
    """It holds what cannot be sent to another process."""

    def __init__(self, text: str = "unpicklable") -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class WantsMore(Exception):
    """It cannot be made of its text alone."""

    def __init__(self, text: str, more: int) -> None:
        super().__init__(text)
        self.more = more


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class EndsWhoReadsIt(Exception):
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


ODD: dict[str, Callable[[], BaseException]] = {
    "stop": StopIteration,
    "astop": StopAsyncIteration,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "future": CancelledError,
    "interrupt": KeyboardInterrupt,
    "exit": lambda: SystemExit(3),
    "unpicklable": Unpicklable,
    "more": lambda: WantsMore("more", 2),
    "wordless": Wordless,
    "reads": EndsWhoReadsIt,
    "group": lambda: BaseExceptionGroup("two", [StopIteration(), GeneratorExit()]),
    "interrupted": lambda: Interrupted("by nobody"),
    "timeout": lambda: TimeoutError("its own"),
}


def raise_odd(which: str) -> None:
    raise ODD[which]()


class RaisesOdd(Task):
    """A function raises what is no plain error."""

    which: str
    where: str

    def run(self, ctx: Context) -> Any:
        return ctx.cpu(raise_odd, self.which) if self.where == "cpu" else ctx.step("odd", raise_odd, self.which)


class ARaisesOdd(Task):
    which: str
    where: str

    async def run(self, ctx: AsyncContext) -> Any:
        if self.where == "thread":
            return await asyncio.to_thread(raise_odd, self.which)
        if self.where == "gather":
            return await asyncio.gather(ctx.cpu(raise_odd, self.which), ctx.cpu(square, 3))
        return await (ctx.cpu(raise_odd, self.which) if self.where == "cpu" else ctx.step("odd", raise_odd, self.which))


class RaisesInside(Task, isolation="process"):
    which: str

    def run(self, ctx: Context) -> Any:
        raise_odd(self.which)


class ARaisesInside(Task, isolation="process"):
    which: str
    where: str

    async def run(self, ctx: AsyncContext) -> Any:
        if self.where == "cpu":
            return await ctx.cpu(raise_odd, self.which)
        return await ctx.step("odd", raise_odd, self.which)


class Awaiting(Task, isolation="process"):
    """Awaits a task, does something because of its failure if it is to, and dies."""

    other: int
    acts: bool = False

    def run(self, ctx: Context) -> Any:
        try:
            return ctx.await_task(self.other)
        except TaskFailedError:
            if self.acts:
                ctx.step("act", str, "acted")
            raise


class AAwaiting(Task, isolation="process"):
    """Likewise; something else goes on beside it."""

    other: int
    acts: bool = False

    async def run(self, ctx: AsyncContext) -> Any:
        try:
            return (await asyncio.gather(ctx.await_task(self.other), self.beside(ctx)))[0]
        except TaskFailedError:
            if self.acts:
                await ctx.step("act", str, "acted")
            raise

    async def beside(self, ctx: AsyncContext) -> None:
        for n in range(5):
            await ctx.step(f"beside {n}", str, n)


class Durable(Task, isolation="process", retry=AT_ONCE):
    """Each durable call once; notes what it comes to in each of its processes."""

    notes: str

    def run(self, ctx: Context) -> Any:
        note(self.notes, f"begun:{ctx.attempt}")
        one = ctx.step("one", self._one)
        ctx.sleep_for(0.05)
        child = ctx.spawn(Twice(5))
        first = ctx.emit_event(f"event {ctx.id}", 1)
        return [one, ctx.await_task(child), first, ctx.await_event(f"event {ctx.id}")]

    def _one(self) -> int:
        note(self.notes, "effect")
        return 1


class Everything(Task, isolation="process"):
    """Every call of the context."""

    def run(self, ctx: Context) -> dict[str, Any]:
        return everything(ctx)


class AEverything(Task, isolation="process"):
    async def run(self, ctx: AsyncContext) -> dict[str, Any]:
        return await aeverything(ctx)


class Twice(Task):
    """A child of these, in a thread."""

    n: int

    def run(self, ctx: Context) -> int:
        return 2 * self.n


def everything(ctx: Context) -> dict[str, Any]:
    ctx.check_cancelled()
    ctx.heartbeat()
    ctx.report_progress(40, "under way")
    one = ctx.step("one", int, "1")
    ctx.sleep_for(0.2)
    two = ctx.step("two", str, "one")
    event = f"event {ctx.id}"
    emitted = ctx.emit_event(event, {"to": 1}), ctx.emit_event(event, {"to": 2}), ctx.await_event(event)

    def own_rows() -> None:
        with ctx.transaction() as tx:
            tx.result = tx.execute(sa.text("SELECT 40 + 2")).scalar_one()

    rows = ctx.step("rows", own_rows)
    results = {str(k): v for k, v in ctx.results().items()}
    failures = {str(k): v for k, v in ctx.dependency_failures().items()}
    ctx.sleep_until(ctx.created_at)
    try:
        ctx.await_event("never", timeout=0.05)
    except TimeoutError as error:
        missed = type(error).__name__
    children = [ctx.await_task(ctx.spawn(Twice(21))), *ctx.map(Twice, [1, 2])]
    durable = {"steps": [one, two, rows], "event": emitted, "missed event": missed, "children": children}
    return {"results": results, "failures": failures, "cpu": ctx.cpu(int, "7"), **durable, **envelope(ctx)}


async def aeverything(ctx: AsyncContext) -> dict[str, Any]:
    await ctx.check_cancelled()
    await ctx.heartbeat()
    await ctx.report_progress(40, "under way")
    one = await ctx.step("one", int, "1")
    await ctx.sleep_for(0.2)
    two = await ctx.step("two", str, "one")
    event = f"event {ctx.id}"
    emitted = (
        await ctx.emit_event(event, {"to": 1}),
        await ctx.emit_event(event, {"to": 2}),
        await ctx.await_event(event),
    )

    async def own_rows() -> None:
        async with ctx.transaction() as tx:
            tx.result = (await tx.execute(sa.text("SELECT 40 + 2"))).scalar_one()

    rows = await ctx.step("rows", own_rows)
    results = {str(k): v for k, v in (await ctx.results()).items()}
    failures = {str(k): v for k, v in (await ctx.dependency_failures()).items()}
    await ctx.sleep_until(ctx.created_at)
    try:
        await ctx.await_event("never", timeout=0.05)
    except TimeoutError as error:
        missed = type(error).__name__
    children = [await ctx.await_task(await ctx.spawn(Twice(21))), *await ctx.map(Twice, [1, 2])]
    durable = {"steps": [one, two, rows], "event": emitted, "missed event": missed, "children": children}
    return {"results": results, "failures": failures, "cpu": await ctx.cpu(int, "7"), **durable, **envelope(ctx)}


def envelope(ctx: Context | AsyncContext) -> dict[str, Any]:
    return {
        "id": ctx.id,
        "kind": ctx.kind,
        "attempt": ctx.attempt,
        "key": ctx.key,
        "idempotency_key": ctx.idempotency_key,
        "headers": ctx.headers,
        "correlation_id": ctx.correlation_id,
        "causation_id": ctx.causation_id,
        "subject": ctx.subject,
        "message_type": ctx.message_type,
        "schema_version": ctx.schema_version,
        "sequence": ctx.sequence,
        "payload_ref": ctx.payload_ref,
        "created_at": ctx.created_at.isoformat(),
        "queue": ctx.queue,
        "slot": ctx.slot and ctx.slot.isoformat(),
        "missed": ctx.missed,
        "settings": ctx.settings,
        "pid": os.getpid(),
    }


class Pays(Task, isolation="process", retry=AT_ONCE):
    """Writes into the test's own table, and dies at a point of its first attempt."""

    dies: str = ""
    in_step: bool = False

    def run(self, ctx: Context) -> Any:
        if self.dies and ctx.attempt == 1:
            ports.FAILPOINTS.hit = self._hit  # type: ignore[method-assign]
        return ctx.step("pay", self._pay, ctx) if self.in_step else self._pay(ctx)

    def _pay(self, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(sa.text("INSERT INTO ledger (entry) VALUES (:entry)"), {"entry": f"attempt {ctx.attempt}"})
            tx.result = {"pid": os.getpid(), "attempt": ctx.attempt}

    def _hit(self, name: str) -> None:
        if name == self.dies:
            die()


class APays(Task, isolation="process", retry=AT_ONCE):
    async def run(self, ctx: AsyncContext) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute(sa.text("INSERT INTO ledger (entry) VALUES ('async')"))
            tx.result = {"pid": os.getpid(), "attempt": ctx.attempt}


class PaysLate(Task, isolation="process"):
    """Waits for a file, and does its rows then."""

    path: str

    def run(self, ctx: Context) -> None:
        while not os.path.exists(self.path):
            time.sleep(0.01)
        with ctx.transaction() as tx:
            tx.execute(sa.text("INSERT INTO ledger (entry) VALUES ('child')"))


class CancelsItself(Task, isolation="process", retry=AT_ONCE):
    """A coroutine that cancels all tasks of its loop in its last moments."""

    how: str = "returns"

    async def run(self, ctx: AsyncContext) -> int:
        for task in asyncio.all_tasks():
            task.cancel()
        if self.how == "raises":
            raise ValueError("its own")
        return ctx.attempt


class LeavesAnAlarm(Task, isolation="process"):
    def run(self, ctx: Context) -> int:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        return os.getpid()


class Dozes(Task, isolation="process"):
    def run(self, ctx: Context) -> int:
        time.sleep(0.5)  # for longer than that alarm
        return os.getpid()


class LeavesAThread(Task):
    """It keeps the interpreter from ending."""

    def run(self, ctx: Context) -> None:
        ThreadPoolExecutor(1).submit(time.sleep, 3600)


class ThreadSegfault(Task, retry=RetryPolicy(min_wait=0, max_wait=0, max_attempts=None, strategy="fixed")):
    """In a thread, so it takes its worker with it; as a suspect, only its child."""

    def run(self, ctx: Context) -> None:
        time.sleep(0.05)
        ctypes.string_at(0)


class Bystander(Task, retry=AT_ONCE):
    ms: int = 40

    def run(self, ctx: Context) -> int:
        time.sleep(self.ms / 1000)
        return os.getpid()


KINDS = tuple(
    kind for kind in list(vars().values()) if isinstance(kind, type) and issubclass(kind, Task) and kind is not Task
)


def lines(path: Path) -> list[list[str]]:
    """What was noted."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

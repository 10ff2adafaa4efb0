"""Task types that write into the socket through which their process talks with the engine, and hooks up to no good."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from faults.isolated import AT_ONCE, hang
from scheduler import AsyncContext, Context, PermanentError, RetryPolicy, Task
from scheduler.engine.child.protocol import frame
from scheduler.engine.child.runtime import RemoteAttempt

STUBBORN = RetryPolicy(min_wait=0, max_wait=0, max_attempts=5, jitter=0.0, strategy="fixed")


def _length(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _end(ctx: Any, **other: Any) -> list[Any]:
    """A success of this attempt, but for ``other``."""
    c = ctx._attempt.claimed
    made = {"id": c.id, "claim": c.claim, "number": c.attempt, "end": "succeeded", "state": 7, "claimed_at": None}
    made |= {"started_at": None, "finished_at": 1, "result": None, "failure": None, "run_at": None} | other
    return list(made.values())


WRITTEN: dict[str, Callable[[int, Any], bytes]] = {
    "no UTF-8": lambda n, ctx: _length(b"\x92\xa4said\xa2\xff\xfe"),
    "nested 5,000 deep": lambda n, ctx: _length(b"\x91" * 5000 + b"\x90"),
    "4 GiB announced": lambda n, ctx: b"\xff\xff\xff\xff\x90",
    "256 MiB announced": lambda n, ctx: struct.pack("<I", 2**28) + b"\x92",
    "half a length": lambda n, ctx: b"\x01",
    "an unknown verb": lambda n, ctx: frame("nonsense", n),
    "no verb": lambda n, ctx: frame(),
    "an end without an outcome": lambda n, ctx: frame("done", n, None),
    "an end that is none": lambda n, ctx: frame("done", n, None, "succeeded"),
    "another task's end": lambda n, ctx: frame("done", n, None, _end(ctx, id=ctx.id + 1000)),
    "an end of no state": lambda n, ctx: frame("done", n, None, _end(ctx, state=99)),
    "an end before time": lambda n, ctx: frame("done", n, None, _end(ctx, finished_at=-1)),
    "an end with a NUL": lambda n, ctx: frame("done", n, None, _end(ctx, result='"\0"')),
    "a function's end": lambda n, ctx: frame("computed", n, None, True, b"no pickle"),
    "a verdict that is none": lambda n, ctx: frame("decided", n, []),
    "a start before time": lambda n, ctx: frame("start", n, -1),
    "a record that is none": lambda n, ctx: frame("log", n, {"name": 1}),
    "a question of no sort": lambda n, ctx: frame("ask", n, 1),
}


def streams() -> list[int]:
    """The descriptors of the sockets that are streams."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type == socket.SOCK_STREAM:
                    found.append(int(name))
        except OSError:
            pass
    return found


class Writes(Task, isolation="process"):
    """Writes something, or closes the socket, and goes on."""

    what: str

    def run(self, ctx: Context) -> None:
        assert isinstance(ctx._attempt, RemoteAttempt)
        for fd in streams():
            if self.what == "its end":
                os.close(fd)
            else:
                os.write(fd, WRITTEN[self.what](ctx._attempt.number, ctx))
        threading.Event().wait()


class Asks(Task, isolation="process"):
    """Asks the engine for what there is not."""

    def run(self, ctx: Context) -> str:
        assert isinstance(ctx._attempt, RemoteAttempt)
        link = ctx._runtime.link  # type: ignore[attr-defined]
        for question in (("nonsense",), ("request", "nonsense", 1), ("request", "record", {"x": 1}), ("load",)):
            with contextlib.suppress(Exception):  # the answer is an error
                link.ask(ctx._attempt.number, *question).result(20)
        return "went on"


class Overdue(Task, isolation="process", timeout=1.0):
    def run(self, ctx: Context) -> None:
        threading.Event().wait()


HOOKS = ("dies", "exits", "raises", "hangs")


def misbehave(how: str) -> None:
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exits":
        os._exit(3)
    elif how == "raises":
        raise SystemExit("of the hook")
    else:
        hang()


class Refused(Task, isolation="process", retry=STUBBORN, dead_letter=True):
    """Fails for good, with a hook that misbehaves."""

    how: str

    def run(self, ctx: Context) -> None:
        raise PermanentError("the card is closed")

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        misbehave(self.how)


class ARefused(Task, isolation="process", retry=STUBBORN, dead_letter=True):
    how: str

    async def run(self, ctx: AsyncContext) -> None:
        await asyncio.sleep(0)
        raise PermanentError("the card is closed")

    async def on_failed(self, ctx: AsyncContext, error: BaseException) -> None:
        misbehave(self.how)


class Again(Task, isolation="process", retry=AT_ONCE):
    """Fails once, with a hook that kills its process."""

    def run(self, ctx: Context) -> int:
        if ctx.attempt == 1:
            raise LookupError("not yet")
        return ctx.attempt

    def on_attempt_failed(self, ctx: Context, error: BaseException) -> None:
        misbehave("dies")


KINDS = (Writes, Asks, Overdue, Refused, ARefused, Again)

"""Where an attempt stands, from outside: whether it has moved since an earlier look, and its stack.

A thread has moved if it is elsewhere in its code, or has used processor time. A coroutine has moved if one of the
attempt's asyncio tasks is elsewhere, or awaits another future.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
import weakref
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.loop_threads import __file__ as _threads_file

MAX_STACK_CHARS = 8000  # of a stack: its end
_MAX_FRAMES = 100  # of a thread, the innermost
_MAX_TASKS = 200  # asyncio tasks of an attempt
_PACKAGE = Path(__file__).parents[2]
_RUN = str(_PACKAGE / "engine" / "execution" / "run.py")
_CALLERS = (  # of handlers, and of functions of ctx.cpu
    _RUN,
    str(_PACKAGE / "model" / "registry.py"),
    str(_PACKAGE / "engine" / "child" / "main.py"),
    _threads_file,
)
_LIBRARIES = tuple({str(_PACKAGE), *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))})
Position = tuple[CodeType, int]


class Threads:
    """All threads of this process at one moment."""

    def __init__(self) -> None:
        self.frames: Mapping[int, FrameType] = sys._current_frames()
        self._natives = {thread.ident: thread.native_id for thread in threading.enumerate()}
        self._natives[threading.main_thread().ident] = os.getpid()  # after a fork it has the parent's

    def spent(self, ident: int) -> str:
        """What the kernel has counted for a thread: processor time and turns; empty if it does not say."""
        return spent(f"/proc/self/task/{self._natives.get(ident)}/schedstat")


def spent(path: str) -> str:
    """The same of any thread, by its file in /proc."""
    try:
        with open(path, encoding="ascii") as file:
            used, _, turns = file.read().split()
    except (OSError, ValueError):
        return ""
    return f"{used} {turns}"


class Look(NamedTuple):
    """Where an attempt stood. ``awaited``: the futures that its asyncio tasks wait for."""

    positions: tuple[Position, ...]
    spent: tuple[str, ...]
    awaited: tuple[Any, ...]

    def moved_since(self, earlier: Look) -> bool:
        if (self.positions, self.spent) != (earlier.positions, earlier.spent):
            return True
        pairs = zip(self.awaited, earlier.awaited, strict=False)
        return len(self.awaited) != len(earlier.awaited) or any(a() is None or a() is not b() for a, b in pairs)


def look(attempt: Attempt, threads: Threads, thread: int = 0) -> Look:
    """Where it stands now. ``thread``: its handler's, if the attempt does not know it."""
    positions: list[Position] = []
    used: list[str] = []
    awaited: list[Any] = []
    for ident in _idents(attempt, thread):
        frame = threads.frames.get(ident)
        positions += [(one.f_code, one.f_lasti) for one in islice(_outward(frame), _MAX_FRAMES)]
        used.append(threads.spent(ident))
    for task in islice(_tasks(attempt), _MAX_TASKS):
        positions += [(frame.f_code, frame.f_lasti) for frame in _inward(task.get_coro())]
        future = getattr(task, "_fut_waiter", None)
        awaited.append(_never if future is None else weakref.ref(future))
    return Look(tuple(positions), tuple(used), tuple(awaited))


def _never() -> None:
    """In place of a future: the task is about to go on."""


def _idents(attempt: Attempt, thread: int) -> list[int]:
    """Its threads: the handler's, unless that only waits for a child, and those of its coroutine's calls."""
    own = 0 if attempt.asyncio_task is not None or attempt.in_child else attempt.thread or thread
    return [ident for ident in (own, *tuple(attempt.call_threads or ())) if ident]


def _tasks(attempt: Attempt) -> Iterator[Any]:
    if attempt.asyncio_task is not None:
        yield attempt.asyncio_task
        yield from (one for one in list(attempt.tasks or ()) if one is not attempt.asyncio_task and not one.done())


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _inward(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of what it awaits."""
    while coroutine is not None and (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await


def stack_of(attempt: Attempt | None, threads: Threads, thread: int = 0) -> str:
    """Where it stands, from its handler on, without the engine's frames."""
    return formatted(_summaries(attempt, threads, thread))[-MAX_STACK_CHARS:]


def where(attempt: Attempt, threads: Threads, thread: int = 0) -> str:
    """Where it stands, ``file:line function``: the innermost of its own code's frames."""
    found = _summaries(attempt, threads, thread)
    own = [one for one in found if not one.filename.startswith((*_LIBRARIES, "<frozen"))]
    innermost = (own or found)[-1:]
    return "".join(f"{one.filename}:{one.lineno} {one.name}" for one in innermost)


def _summaries(attempt: Attempt | None, threads: Threads, thread: int) -> list[traceback.FrameSummary]:
    if attempt is not None and not thread and attempt.asyncio_task is not None and not attempt.call_threads:
        return _from_handler([traceback.extract_stack(frame, limit=1)[0] for frame in _inward_of(attempt)])
    if not thread and attempt is not None:
        thread = next(iter(tuple(attempt.call_threads or ())), attempt.thread)
    frame = threads.frames.get(thread)
    return [] if frame is None else _from_handler(list(traceback.extract_stack(frame)))


def _inward_of(attempt: Attempt) -> Iterator[FrameType]:
    return _inward(attempt.asyncio_task.get_coro())


def _from_handler(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    ours = [i for i, one in enumerate(frames) if one.filename in _CALLERS]
    return frames[ours[-1] + 1 :] if ours else frames


def formatted(frames: list[traceback.FrameSummary]) -> str:
    return "".join(traceback.StackSummary.from_list(frames).format())

"""CallThreads: threads in which an asyncio program's calls of a Scheduler wait for the database."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

THREADS = 8  # calls of one Scheduler that wait for the database at once; further ones queue
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class CallThreads:
    """Threads of a Scheduler's own, started when first needed.

    The event loop's default executor is the program's, which may have filled it with what waits for these calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in a thread, with the caller's context variables.

        If the caller is cancelled meanwhile, what has begun there goes on, and what has not is dropped.
        """
        context = contextvars.copy_context()

        def work() -> T:
            try:
                return context.run(function, *args, **kwargs)
            except StopIteration as error:  # of the caller's own hook: no future can carry it
                raise RuntimeError("the function raised StopIteration") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads(), work)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pid != os.getpid():  # a fork takes no threads along, and may have copied a lock that is held
            self._lock, self._pool, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="schedd-call")
            return self._pool

    def close(self) -> None:
        """End the threads once they have done what they have begun; a later call starts others."""
        if self._pid == os.getpid():
            with self._lock:
                pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=False)


def in_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make the awaitable form of a method of an object that has ``threads``: same parameters, same errors."""

    @functools.wraps(method)
    async def awaitable(self: Any, /, *args: Any, **kwargs: Any) -> T:
        threads: CallThreads = self.threads
        done: T = await threads.call(getattr(self, method.__name__), *args, **kwargs)
        return done

    awaitable.__name__ = f"{method.__name__}_async"
    awaitable.__doc__ = f":meth:`{method.__name__}` without blocking the event loop."
    return awaitable

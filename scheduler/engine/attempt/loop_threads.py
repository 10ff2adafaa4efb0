"""The threads of an event loop: for calls of handlers, for steps, and for schedd's own reads.

They are apart, so that handlers that block their threads do not block the contexts of others. They start on demand.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NoReturn, ParamSpec, TypeVar

from scheduler.engine.attempt.capture import current_attempt
from scheduler.engine.attempt.own_directory import moved, put_back

P = ParamSpec("P")
R = TypeVar("R")
MAX_CONCURRENT_READS = 8  # of the database, for all handlers on a loop


class LoopThreads:
    """Three executors. ``size``: threads for handlers, and for steps; None: Python's default."""

    def __init__(self, size: int | None) -> None:
        self._size = size

    @cached_property
    def handlers(self) -> Executor:
        """The executor of ``asyncio.to_thread`` and ``run_in_executor(None, …)``."""
        return ThreadPoolExecutor(self._size, "schedd-to-thread")

    @cached_property
    def steps(self) -> Executor:
        return ThreadPoolExecutor(self._size, "schedd-steps")

    @cached_property
    def reads(self) -> Executor:
        return ThreadPoolExecutor(MAX_CONCURRENT_READS, "schedd-reads")

    def close(self) -> None:
        for name in ("handlers", "steps", "reads"):
            executor = self.__dict__.get(name)
            if executor is not None:
                executor.shutdown(wait=False)


_threads_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopThreads] = weakref.WeakKeyDictionary()


def install_threads(loop: asyncio.AbstractEventLoop, size: int | None = None, *, shared: bool = False) -> None:
    """Give a loop its threads, and register each call in them with its attempt.

    ``shared``: several handlers use the loop, so none may replace or shut down its executor.
    """
    threads = _threads_by_loop[loop] = LoopThreads(size)

    def run_in_executor(executor: Executor | None, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        pool = threads.handlers if executor is None else executor
        attempt = current_attempt.get()
        if attempt is not None and isinstance(pool, ThreadPoolExecutor):
            function = partial(_with_thread_ident, attempt.threads_of_calls(), function)
        running = pool.submit(function, *args)
        if attempt is not None:
            calls = attempt.calls_in_threads()
            calls.add(running)
            running.add_done_callback(calls.discard)
        return asyncio.wrap_future(running, loop=loop)

    def set_default_executor(executor: Any) -> None:
        threads.__dict__["handlers"] = executor

    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("handlers share this event loop, and its default executor: give your own to run_in_executor")

    replaced: dict[str, Any] = {"run_in_executor": run_in_executor, "set_default_executor": set_default_executor}
    if shared:
        replaced |= {"set_default_executor": refuse, "shutdown_default_executor": refuse}
    for name, function in replaced.items():
        with suppress(AttributeError):  # a loop that is not Python's own may forbid it
            setattr(loop, name, function)


def close_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Shut down the threads of a loop that has ended. Running calls end by themselves."""
    threads = _threads_by_loop.pop(loop, None)
    if threads is not None:
        threads.close()


def step_threads() -> Executor | None:
    """The executor for steps on the running loop; None: the loop's default one."""
    threads = _threads_by_loop.get(asyncio.get_running_loop())
    return None if threads is None else threads.steps


def end_of(call: Future[Any]) -> asyncio.Future[None]:
    """A future of the running loop that is done when the call has ended, in whatever way."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def set_ended() -> None:
        if not ended.done():
            ended.set_result(None)

    call.add_done_callback(lambda _: loop.call_soon_threadsafe(set_ended))
    return ended


def _with_thread_ident(threads: set[int], function: Callable[..., R], *args: Any) -> R:
    """Call the function in its own context, and note its thread meanwhile, so that a log can say where it hangs."""
    ident = threading.get_ident()
    threads.add(ident)
    try:
        return contextvars.Context().run(function, *args)
    except StopIteration as error:  # no future of asyncio can carry it: who awaits the call would wait for ever
        raise RuntimeError("the function raised StopIteration") from error
    finally:
        threads.discard(ident)
        if moved:
            put_back()


async def read(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a read in one of schedd's threads. A cancel does not wait: a read changes nothing."""
    loop = asyncio.get_running_loop()
    threads = _threads_by_loop.get(loop)
    if threads is None:
        return await asyncio.to_thread(function, *args, **kwargs)
    context = contextvars.copy_context()
    return await asyncio.wrap_future(threads.reads.submit(lambda: context.run(function, *args, **kwargs)), loop=loop)

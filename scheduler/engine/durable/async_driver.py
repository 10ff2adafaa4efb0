"""Runs durable calls of coroutines; suspends the attempt when all of them wait."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.engine.attempt.capture import current_attempt
from scheduler.engine.attempt.loop_threads import read, step_threads
from scheduler.engine.durable.calls import Durable, suspend
from scheduler.engine.durable.effects import Await, Effect, FunctionEffect, Read, RequestEffect, SendEffect, Steps
from scheduler.errors import Interrupted

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt

T = TypeVar("T")
_IDLE_ITERATIONS = 20  # of the loop with no active branch: one that just got an answer may be about to act


async def drive_async(durable: Durable, steps: Steps[T]) -> T:
    """Perform the effects of a durable call, and return its value.

    A cancel that comes after a step's function has returned is deferred until the step is recorded, so that no later
    attempt repeats it.
    """
    deferred_cancel: list[asyncio.CancelledError] = []
    with active(durable.attempt):
        try:
            effect = next(steps)
            while True:
                try:
                    answer = await _perform(durable, effect, deferred_cancel)
                except BaseException as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except StopIteration as done:
            if deferred_cancel:
                raise deferred_cancel[-1] from None
            value: T = done.value
            return value


async def settle_async(attempt: Attempt, *, quietly: bool = False) -> None:
    """``settle`` of thread_driver.py, for coroutines."""
    durable = attempt.durable
    while isinstance(durable, Durable) and durable.unsettled:
        try:
            await drive_async(durable, durable.settle())
        except BaseException:
            if not quietly:
                raise


@contextmanager
def active(attempt: Attempt) -> Iterator[None]:
    """Mark one branch of the handler as active: the handler is not unwound meanwhile."""
    attempt.active += 1
    try:
        yield
    finally:
        attempt.active -= 1
        if isinstance(attempt.durable, Durable) and attempt.durable.blocked:
            _suspend_if_idle(attempt.durable, _IDLE_ITERATIONS)


async def _perform(durable: Durable, effect: Effect, deferred_cancel: list[asyncio.CancelledError]) -> Any:
    attempt, runtime = durable.attempt, durable.runtime
    if isinstance(effect, RequestEffect):
        answer = asyncio.wrap_future(runtime.request(attempt, effect.what, effect.args))
        if effect.what == "record":
            await wait_uncancelled(answer, deferred_cancel)
        return await answer
    if isinstance(effect, SendEffect):
        return runtime.request(attempt, effect.what, effect.args)
    if isinstance(effect, Await):
        answer = asyncio.wrap_future(effect.reply)
        await wait_uncancelled(answer, deferred_cancel)
        return await answer
    if isinstance(effect, Read):
        return await read(runtime.load, attempt, effect.what, effect.args)
    if isinstance(effect, FunctionEffect):
        return await _call(effect, deferred_cancel)
    return await _block(durable, effect.until)


async def _call(effect: FunctionEffect, deferred_cancel: list[asyncio.CancelledError]) -> Any:
    if inspect.iscoroutinefunction(effect.function):
        return await effect.function(*effect.args, **effect.kwargs)
    running = _run_in_thread(step_threads(), effect.function, effect.args, effect.kwargs)
    await wait_uncancelled(running, deferred_cancel)
    if deferred_cancel and running.exception() is not None:
        raise deferred_cancel[-1]
    try:
        returned = running.result()
    finally:
        del running  # its error has this frame, which would keep it, and all that the function held
    if not inspect.isawaitable(returned):
        return returned
    if deferred_cancel:
        if inspect.iscoroutine(returned):
            returned.close()
        raise deferred_cancel[-1]
    return await returned


async def run_in_thread_of(threads: Executor, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the function in one of these threads. A cancel waits until it has ended."""
    running = _run_in_thread(threads, function, args, kwargs)
    deferred_cancel: list[asyncio.CancelledError] = []
    await wait_uncancelled(running, deferred_cancel)
    if deferred_cancel:
        running.exception()  # retrieved, or asyncio would log it
        raise deferred_cancel[-1]
    try:
        return running.result()
    finally:
        del running  # as in _call


def _run_in_thread(
    threads: Executor | None, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> asyncio.Future[Any]:
    """Start the function in a thread, in the caller's context variables."""
    context = contextvars.copy_context()

    def work() -> Any:
        try:
            return context.run(function, *args, **kwargs)
        except StopIteration as error:  # no future can carry it
            raise RuntimeError("the function raised StopIteration") from error

    return asyncio.get_running_loop().run_in_executor(threads, work)


async def wait_uncancelled(future: asyncio.Future[Any], deferred_cancel: list[asyncio.CancelledError]) -> None:
    """Wait for the future, also through cancels, which are added to ``deferred_cancel``."""
    while not future.done():
        try:
            await asyncio.shield(asyncio.wait([future]))
        except asyncio.CancelledError as error:
            deferred_cancel.append(error)


async def _block(durable: Durable, until: int) -> None:
    """Wait until every branch of the handler waits; then all of them are unwound."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    durable.blocked[waiter] = until
    durable.attempt.active -= 1
    try:
        _suspend_if_idle(durable, _IDLE_ITERATIONS)
        await waiter
    finally:
        durable.blocked.pop(waiter, None)
        durable.attempt.active += 1


def _suspend_if_idle(durable: Durable, iterations: int) -> None:
    if durable.attempt.active or not durable.blocked:
        return  # the last branch to become inactive checks again
    if iterations:
        asyncio.get_running_loop().call_soon(_suspend_if_idle, durable, iterations - 1)
        return
    for waiter, until in list(durable.blocked.items()):
        error = suspend(durable.attempt, until)
        if not waiter.done():
            waiter.set_exception(error)


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Register each asyncio task on this loop with the attempt whose handler starts it."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        returned = asyncio.Task(coroutine, loop=loop, **options)
        attempt = current_attempt.get()
        if attempt is not None:
            attempt.started_tasks()[returned] = asyncio.current_task(loop)
        return returned

    loop.set_task_factory(factory)
    loop.set_exception_handler(_on_loop_error)


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log unretrieved errors, except Interrupted, which every branch gets."""
    if not isinstance(context.get("exception"), Interrupted):
        loop.default_exception_handler(context)

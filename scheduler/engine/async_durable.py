"""Durable calls of coroutines: several may be under way at once, and the handler is unwound when all of them wait."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.engine.durable import Ask, Block, Call, Durable, Load, Plan, suspend
from scheduler.engine.logs import current_attempt

if TYPE_CHECKING:
    from scheduler.engine.attempt import Attempt

T = TypeVar("T")
_ROUNDS = 20  # of the event loop that all have to wait: who was answered a moment ago may be about to do something


async def drive_async(durable: Durable, plan: Plan[T]) -> T:
    """Carry out a call for an asynchronous handler."""
    durable.active += 1
    try:
        effect = next(plan)
        while True:
            try:
                answer = await _perform(durable, effect)
            except BaseException as error:
                effect = plan.throw(error)
            else:
                effect = plan.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        durable.active -= 1
        if durable.blocked:
            _look(durable, _ROUNDS)


async def _perform(durable: Durable, effect: Ask | Load | Call | Block) -> Any:
    attempt, runtime = durable.attempt, durable.runtime
    if isinstance(effect, Ask):
        return await asyncio.wrap_future(runtime.request(attempt, effect.what, effect.args))
    if isinstance(effect, Load):
        return await asyncio.to_thread(runtime.load, attempt, effect.what, effect.args)
    if isinstance(effect, Call):
        return await _call(effect)
    return await _block(durable, effect.until)


async def _call(effect: Call) -> Any:
    if inspect.iscoroutinefunction(effect.function):
        return await effect.function(*effect.args, **effect.kwargs)
    made = await in_thread(effect.function, *effect.args, **effect.kwargs)
    return await made if inspect.isawaitable(made) else made


async def in_thread(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``asyncio.to_thread``, but cancelled only once the thread has ended: nothing of an attempt may outlive it."""
    return await in_thread_of(None, function, *args, **kwargs)


async def in_thread_of(threads: Executor | None, function: Any, *args: Any, **kwargs: Any) -> Any:
    """The same in one of these threads; None: the event loop's own."""
    context = contextvars.copy_context()

    def work() -> Any:
        try:
            return context.run(function, *args, **kwargs)
        except StopIteration as error:  # which no future can carry
            raise RuntimeError("the function raised StopIteration") from error

    running = asyncio.get_running_loop().run_in_executor(threads, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.shield(asyncio.wait([running]))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # looked at, so that nobody says that it was not
        raise cancelled
    return running.result()


async def _block(durable: Durable, until: int) -> None:
    """Wait for the others to wait, too; then all of them are unwound."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    durable.blocked[waiter] = until
    durable.active -= 1
    try:
        _look(durable, _ROUNDS)
        await waiter
    finally:
        durable.blocked.pop(waiter, None)
        durable.active += 1


def _look(durable: Durable, rounds: int) -> None:
    if durable.active or not durable.blocked:
        return  # who ends last looks again
    if rounds:
        asyncio.get_running_loop().call_soon(_look, durable, rounds - 1)
        return
    for waiter, until in list(durable.blocked.items()):
        error = suspend(durable.attempt, until)
        if not waiter.done():
            waiter.set_exception(error)


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let every attempt on this loop know the tasks that its handler starts."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        made = asyncio.Task(coroutine, loop=loop, **options)
        attempt = current_attempt.get()
        if attempt is not None:
            attempt.started_tasks()[made] = asyncio.current_task(loop)
        return made

    loop.set_task_factory(factory)


async def end_tasks(attempt: Attempt) -> None:
    """End what a handler left running."""
    while True:
        own = asyncio.current_task()
        left = [task for task in list(attempt.started_tasks()) if not task.done() and task is not own]
        if not left:
            return
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError:
            pass  # whoever wants the attempt to end: it does so once these have ended

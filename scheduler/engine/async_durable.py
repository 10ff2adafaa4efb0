"""Durable calls of coroutines: several may be under way at once, and the handler is unwound when all of them wait."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from scheduler.engine.durable import Durable, suspend
from scheduler.engine.durable_plan import Ask, Block, Call, Load, Plan
from scheduler.engine.logs import current_attempt
from scheduler.errors import Interrupted

if TYPE_CHECKING:
    from scheduler.engine.attempt import Attempt

T = TypeVar("T")
_ROUNDS = 20  # of the event loop that all have to wait: who was answered a moment ago may be about to do something


async def drive_async(durable: Durable, plan: Plan[T]) -> T:
    """Carry out a call for an asynchronous handler. If it is cancelled when a step's function has returned, it is so
    once that is recorded: what is done must not be done again."""
    late: list[asyncio.CancelledError] = []
    with busy(durable.attempt):
        try:
            effect = next(plan)
            while True:
                try:
                    answer = await _perform(durable, effect, late)
                except BaseException as error:
                    effect = plan.throw(error)
                else:
                    effect = plan.send(answer)
        except StopIteration as done:
            if late:
                raise late[-1] from None
            value: T = done.value
            return value


@contextmanager
def busy(attempt: Attempt) -> Iterator[None]:
    """One of the handler's branches does something with its context: the handler is not unwound meanwhile."""
    attempt.active += 1
    try:
        yield
    finally:
        attempt.active -= 1
        if attempt.durable is not None and attempt.durable.blocked:
            _look(attempt.durable, _ROUNDS)


async def _perform(durable: Durable, effect: Ask | Load | Call | Block, late: list[asyncio.CancelledError]) -> Any:
    attempt, runtime = durable.attempt, durable.runtime
    if isinstance(effect, Ask):
        answer = asyncio.wrap_future(runtime.request(attempt, effect.what, effect.args))
        if effect.what == "record":
            await outlast(answer, late)
        return await answer
    if isinstance(effect, Load):
        return await asyncio.to_thread(runtime.load, attempt, effect.what, effect.args)
    if isinstance(effect, Call):
        return await _call(effect, late)
    return await _block(durable, effect.until)


async def _call(effect: Call, late: list[asyncio.CancelledError]) -> Any:
    if inspect.iscoroutinefunction(effect.function):
        return await effect.function(*effect.args, **effect.kwargs)
    running = _begin(None, effect.function, effect.args, effect.kwargs)
    await outlast(running, late)
    if late and running.exception() is not None:
        raise late[-1]
    made = running.result()
    if not inspect.isawaitable(made):
        return made
    if late:
        if inspect.iscoroutine(made):
            made.close()
        raise late[-1]
    return await made


async def in_thread(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``asyncio.to_thread``, but cancelled only once the thread has ended: nothing of an attempt may outlive it."""
    return await in_thread_of(None, function, *args, **kwargs)


async def in_thread_of(threads: Executor | None, function: Any, *args: Any, **kwargs: Any) -> Any:
    """The same in one of these threads; None: the event loop's own."""
    running = _begin(threads, function, args, kwargs)
    late: list[asyncio.CancelledError] = []
    await outlast(running, late)
    if late:
        running.exception()  # looked at, so that nobody says that it was not
        raise late[-1]
    return running.result()


def _begin(
    threads: Executor | None, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> asyncio.Future[Any]:
    """Call the function in a thread."""
    context = contextvars.copy_context()

    def work() -> Any:
        try:
            return context.run(function, *args, **kwargs)
        except StopIteration as error:  # which no future can carry
            raise RuntimeError("the function raised StopIteration") from error

    return asyncio.get_running_loop().run_in_executor(threads, work)


async def outlast(future: asyncio.Future[Any], late: list[asyncio.CancelledError]) -> None:
    """Wait for it, also when cancelled meanwhile: that is noted."""
    while not future.done():
        try:
            await asyncio.shield(asyncio.wait([future]))
        except asyncio.CancelledError as error:
            late.append(error)


async def _block(durable: Durable, until: int) -> None:
    """Wait for the others to wait, too; then all of them are unwound."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    durable.blocked[waiter] = until
    durable.attempt.active -= 1
    try:
        _look(durable, _ROUNDS)
        await waiter
    finally:
        durable.blocked.pop(waiter, None)
        durable.attempt.active += 1


def _look(durable: Durable, rounds: int) -> None:
    if durable.attempt.active or not durable.blocked:
        return  # who ends last looks again
    if rounds:
        asyncio.get_running_loop().call_soon(_look, durable, rounds - 1)
        return
    for waiter, until in list(durable.blocked.items()):
        error = suspend(durable.attempt, until)
        if not waiter.done():
            waiter.set_exception(error)


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let every attempt on this loop know the tasks that its handler starts, and asyncio that some have not failed."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        made = asyncio.Task(coroutine, loop=loop, **options)
        attempt = current_attempt.get()
        if attempt is not None:
            attempt.started_tasks()[made] = asyncio.current_task(loop)
        return made

    loop.set_task_factory(factory)
    loop.set_exception_handler(_told)


def keep_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Let no handler take from all the threads in which they do what would block."""

    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("handlers share this event loop, and its default executor: give your own to run_in_executor")

    for name in ("set_default_executor", "shutdown_default_executor"):
        with suppress(AttributeError):  # of a loop that is not Python's own
            setattr(loop, name, refuse)


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody has looked at, but for what unwinds a handler: each branch gets it, and one is enough to end."""
    if not isinstance(context.get("exception"), Interrupted):
        loop.default_exception_handler(context)


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

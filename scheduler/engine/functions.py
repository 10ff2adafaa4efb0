"""Functions of ``ctx.cpu``, seen from those who wait for them: nobody leaves before the function has ended.

Its attempt would end, and the next one begin beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from scheduler.engine.async_durable import outlast

LOOK_EVERY = 0.05  # seconds between looks for a cancel while a function runs in another process
T = TypeVar("T")


class Answer(Future[T]):
    """What a function returns or raises: there when nothing of it is left, nor of what it has started.

    ``withdraw``: nobody wants it any more, so it is to end; that is an answer, too. From any thread.
    """

    withdraw: Callable[[], None] = staticmethod(lambda: None)


def wait_for(answer: Answer[T], look: Callable[[], None]) -> T:
    """In a thread. ``look`` raises what ends the wait."""
    try:
        while not wait([answer], timeout=LOOK_EVERY).done:
            look()
    except BaseException:
        answer.withdraw()
        wait([answer])
        raise
    return answer.result()


async def wait_for_async(answer: Answer[T]) -> T:
    """In a coroutine, which is cancelled."""
    running: asyncio.Future[Any] = asyncio.wrap_future(answer)
    try:
        value: T = await asyncio.shield(running)
    except asyncio.CancelledError as error:
        late = [error]
        answer.withdraw()
        await outlast(running, late)
        running.exception()  # looked at, so that nobody says that it was not
        raise late[-1] from None
    return value

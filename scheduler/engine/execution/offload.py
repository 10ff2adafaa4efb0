"""Waits for a function of ``ctx.cpu`` until it has ended, also when its attempt is cancelled.

Otherwise the attempt could end, and the next one run at the same time as the function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any, TypeVar

from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.durable.async_driver import wait_uncancelled

CANCEL_POLL_S = 0.05  # seconds between checks for a cancel while the function runs
T = TypeVar("T")


def wait_for(future: CpuFuture[T], check: Callable[[], None]) -> T:
    """Wait in a thread. ``check`` raises to end the wait."""
    try:
        while not wait([future], timeout=CANCEL_POLL_S).done:
            check()
    except BaseException:
        future.cancel_remote()
        wait([future])
        raise
    return future.result()


async def wait_for_async(future: CpuFuture[T]) -> T:
    """Wait in a coroutine."""
    running: asyncio.Future[Any] = asyncio.wrap_future(future)
    try:
        value: T = await asyncio.shield(running)
    except asyncio.CancelledError as error:
        deferred_cancel = [error]
        future.cancel_remote()
        await wait_uncancelled(running, deferred_cancel)
        running.exception()  # retrieved, or asyncio would log it
        raise deferred_cancel[-1] from None
    return value

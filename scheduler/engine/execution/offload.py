"""Waits for a function of ``ctx.cpu`` until it has ended, also when its attempt is cancelled.

Otherwise the attempt could end, and the next one run at the same time as the function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from scheduler.engine.attempt.loop_threads import end_of
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
    try:
        return future.result()
    finally:
        del future  # its error has this frame, which would keep it


async def wait_for_async(future: CpuFuture[T]) -> T:
    """Wait in a coroutine."""
    ended = end_of(future)  # not its value: a future of asyncio takes no StopIteration, and CancelledError for a cancel
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError as error:
        deferred_cancel = [error]
        future.cancel_remote()
        await wait_uncancelled(ended, deferred_cancel)
        raise deferred_cancel[-1] from None
    try:
        return future.result()
    finally:
        del future

"""Who waits for a function of ``ctx.cpu`` leaves when it has ended, whatever else happens to them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.execution.offload import wait_for, wait_for_async
from scheduler.errors import Cancelled, LeaseLost, TaskTimeout


@pytest.mark.case(17, pure=True)
@pytest.mark.parametrize("error", [Cancelled, LeaseLost, TaskTimeout, SystemExit])
def test_a_thread_leaves_when_the_function_has_ended(error: type[BaseException]) -> None:
    answer: CpuFuture[int] = CpuFuture()
    withdrawn = threading.Event()
    answer.cancel_remote = withdrawn.set
    left: list[BaseException] = []

    def look() -> None:
        raise error

    def body() -> None:
        try:
            wait_for(answer, look)
        except BaseException as raised:
            left.append(raised)

    thread = threading.Thread(target=body)
    thread.start()
    assert withdrawn.wait(10)
    assert not left
    answer.set_result(7)
    thread.join(10)
    assert [type(one) for one in left] == [error]


@pytest.mark.case(17, pure=True)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_a_coroutine_leaves_when_the_function_has_ended(times: int, fails: bool) -> None:
    answer: CpuFuture[int] = CpuFuture()
    withdrawn: list[str] = []
    answer.cancel_remote = lambda: withdrawn.append("withdrawn")

    async def main() -> Any:
        body = asyncio.create_task(wait_for_async(answer))
        await asyncio.sleep(0)
        for _ in range(times):
            body.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
        assert withdrawn == ["withdrawn"]
        assert not body.done()
        if fails:
            answer.set_exception(LookupError())
        else:
            answer.set_result(7)
        with pytest.raises(asyncio.CancelledError):
            await body
        assert body.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
def test_what_a_function_raises_is_raised(error: type[BaseException]) -> None:
    answer: CpuFuture[int] = CpuFuture()
    answer.set_exception(error("such"))
    with pytest.raises(error, match="such"):
        wait_for(answer, lambda: None)
    with pytest.raises(error):
        asyncio.run(wait_for_async(answer))

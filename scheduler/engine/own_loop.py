"""An event loop for one attempt, in the thread that calls: in a child process, and where tests run tasks inline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from scheduler.engine.attempt import Attempt
from scheduler.model.outcome import Outcome

log = logging.getLogger("scheduler.engine")


def run_alone(attempt: Attempt, body: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run ``body``, which executes the attempt, to its end.

    SystemExit and KeyboardInterrupt in a task that the handler started leave the loop, where ``asyncio.run`` would give
    up. It goes on, as a pool's does, so that whoever awaits that task meets them, and the attempt fails as ever.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        made: list[Outcome] = []  # a task that was cancelled in its last moments would forget what it returns

        async def keep() -> None:
            made.append(await body)

        task = loop.create_task(keep())
        task.add_done_callback(lambda _: loop.stop())
        while not task.done():  # a handler may have stopped the loop, too
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                if isinstance(error, KeyboardInterrupt) and not _raised_beside(attempt, error):
                    raise  # SIGINT
                log.exception("a task that a handler started ended the event loop: it goes on")
        if not made:
            task.result()
        return made[0]


def _raised_beside(attempt: Attempt, error: BaseException) -> bool:
    """Whether a task that the handler started raised it."""
    ended = (task for task in attempt.started_tasks() if task.done() and not task.cancelled())
    return any(task.exception() is error for task in ended)

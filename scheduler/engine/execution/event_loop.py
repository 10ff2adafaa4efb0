"""An event loop of one attempt, in the calling thread, and a check from another thread whether a loop still runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.loop_threads import close_threads, install_threads
from scheduler.model.outcome import Outcome

log = logging.getLogger("scheduler.engine")


def run_in_new_loop(attempt: Attempt, execution: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run ``execution``, the coroutine that executes the attempt, to its end.

    SystemExit or KeyboardInterrupt in a task that the handler started would end ``asyncio.run``. This loop goes on, as
    a pool's does: the handler gets the error where it awaits that task, and the attempt fails as with any error.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        install_threads(loop)
        outcomes: list[Outcome] = []  # a task that is cancelled as it returns loses its result

        async def store_outcome() -> None:
            outcomes.append(await execution)

        task = loop.create_task(store_outcome())
        task.add_done_callback(lambda _: loop.stop())
        while not task.done():  # a handler may have stopped the loop
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                if isinstance(error, KeyboardInterrupt) and not _raised_in_child_task(attempt, error):
                    raise  # SIGINT
                log.exception("a task that a handler started ended the event loop: it goes on")
        close_threads(loop)
        if not outcomes:
            task.result()
        return outcomes[0]


def _raised_in_child_task(attempt: Attempt, error: BaseException) -> bool:
    """Whether a task that the handler started raised this error."""
    ended = (task for task in attempt.started_tasks() if task.done() and not task.cancelled())
    return any(task.exception() is error for task in ended)


class Pulse:
    """The check of one event loop. ``thread``: the ident of its thread, once it runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = 0
        self._asked_at: float | None = None  # monotonic; None: it has answered

    def ask(self, monotonic: float) -> float | None:
        """Since when (monotonic) the loop has not answered; None if it has."""
        if self._asked_at is None:
            self._asked_at = monotonic
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._on_answer)
            return None
        return self._asked_at

    def _on_answer(self) -> None:
        self._asked_at = None

"""Wait: one call's waiting for tasks to end, look by look, for callers that block and callers that await."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from scheduler.backoff import Backoff
from scheduler.errors import ConfigError, StoreUnavailableError, UnknownTaskError
from scheduler.model.running import current_attempt
from scheduler.model.spec import check_id
from scheduler.model.times import SECOND, span_us
from scheduler.store.db.database import Database
from scheduler.store.read import tasks
from scheduler.store.read.tasks import TaskRecord
from scheduler.store.read.why_chain import whole_why
from scheduler.store.unknown import unknown

_POLL_PAUSES = (0.005, 0.25)  # seconds between looks: first, most


class Wait:
    """Waits until all of these tasks have ended, or, with ``first``, one or more of them.

    ``timeout``: seconds or timedelta; None: for ever. Raises UnknownTaskError, ConfigError.
    """

    def __init__(
        self, database: Database, ids: int | Iterable[int], timeout: float | timedelta | str | None, first: bool = False
    ) -> None:
        self.wanted = [check_id(task_id) for task_id in (ids if isinstance(ids, Iterable) else [ids])]
        self.seconds = seconds_of(timeout)
        self._database = database
        self._first = first
        self._deadline = None if self.seconds is None else time.monotonic() + self.seconds
        self._backoff = Backoff(*_POLL_PAUSES, 1.5)
        self._done: dict[int, TaskRecord] = {}
        self._seen = False

    def look(self) -> bool:
        """Look which have ended; whether that is enough.

        Raises TimeoutError, which says what they wait for; ConfigError in a handler; UnknownTaskError;
        StoreUnavailableError if the database is away at the first look, or when the time is up.
        """
        trouble = None
        try:
            self._done |= self._ended([i for i in self.wanted if i not in self._done])
            self._seen = True
        except StoreUnavailableError as error:
            if not (self._seen and error.heals):
                raise
            trouble = error
        if len(self._done) == len(set(self.wanted)) or (self._first and self._done):
            return True
        if self.left() > 0:
            self._refuse_in_handler()
            return False
        if trouble is not None:
            raise trouble
        still = [i for i in self.wanted if i not in self._done]
        raise TimeoutError(f"still not ended: {', '.join(map(str, still[:10]))}{self._reason(still[0])}")

    def look_in_time(self) -> bool:
        """:meth:`look`, given up soon after the time is up, whatever the database does."""
        with self._database.within(None if self._deadline is None else max(0.0, self.left())):
            return self.look()

    def left(self) -> float:
        """Seconds until the time is up, below 0 after it."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def pause(self) -> float:
        """Seconds until the next look; longer each time, since there may be thousands of callers."""
        return max(0.0, min(self._backoff.next(), self.left()))

    def ended(self) -> dict[int, TaskRecord]:
        """Those that have ended, in the order in which they were asked for."""
        return {task_id: self._done[task_id] for task_id in self.wanted if task_id in self._done}

    def _refuse_in_handler(self) -> None:
        """Raise ConfigError where a handler would keep its slot: those that wait for others may come to fill them all.

        A handler of another store's task may wait.
        """
        running = current_attempt.get()
        if running is not None and running.is_of(self._database.url):
            task_id = next(i for i in self.wanted if i not in self._done)
            raise ConfigError(
                f"the handler of task {running.claimed.id} would wait for task {task_id} and keep its slot, which that "
                f"task may need: use ctx.await_task({task_id}), which frees the slot meanwhile"
            )

    def _ended(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """Those of these that have ended. Raises UnknownTaskError."""
        with self._database.read() as tx:
            # One statement for all tasks, and one for ended ones: there may be thousands.
            ended = [i for i, end in tasks.ends(tx, ids).items() if end is not None]
            found = {task.id: task for task in tasks.get_tasks(tx, ended)}
            for task_id in ended:
                if task_id not in found:
                    raise unknown(tx, task_id)  # its row has been removed
        return {task_id: task for task_id, task in found.items() if task.state.terminal}

    def _reason(self, task_id: int) -> str:
        """What keeps a task from running, for the timeout's error; empty for a caller that did not wait."""
        if not self.seconds:
            return ""
        with suppress(UnknownTaskError, StoreUnavailableError), self._database.read() as tx:
            reason = whole_why(tx, task_id)
            path = self._database.path
            where = "" if path is None else f"; the database is {path.absolute()}"
            return f"; task {task_id}: {reason or 'it is running'}{where}"
        return ""


def seconds_of(timeout: float | timedelta | str | None) -> float | None:
    """A timeout in seconds; None stays None. Raises ConfigError."""
    return None if timeout is None else span_us(timeout, "timeout") / SECOND

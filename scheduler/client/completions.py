"""``jobs.on_end`` and ``jobs.ends``: a program is called when tasks end, wherever they run, without asking for each."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeAlias, overload

from scheduler.backoff import Backoff, LogOnce
from scheduler.client.info import TaskInfo, task_info
from scheduler.client.threads import CallThreads
from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.operations.filter import check_filters
from scheduler.store.db.database import Database
from scheduler.store.db.ends_listener import EndsListener, listen_to_ends
from scheduler.store.read.recent_completions import EndsReader, Wanted
from scheduler.store.read.tasks import get_tasks

WOKEN_POLL = 1.0  # seconds between two looks at most, where engines wake the program
POLL = 0.25  # where they cannot
MIN_PAUSE = 0.02  # seconds between two looks at least
BATCH = 500  # tasks read at once
MAX_PAUSE = 5.0  # seconds between two tries while the database is away
CLOSE_TIMEOUT = 5.0  # seconds that close() waits for a callback
LOOP_POLL = 0.5  # seconds between checks whether an awaited call is still wanted
QUEUED = 100  # ends that wait for an `async for`

log = logging.getLogger("scheduler.ends")
Callback: TypeAlias = Callable[[TaskInfo], Any]


class Subscription:
    """A callback that is called for the ends of tasks, in a thread of its own, until :meth:`close`."""

    def __init__(
        self, database: Database, wanted: Wanted, callback: Callback, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self._database = database
        self._reader = EndsReader(wanted)
        self._callback = callback
        self._loop = loop
        self._loop_thread: int | None = None  # known once the loop has run a call
        self._finishing = False
        self._found: list[int] = []  # of the ends for which there was no call yet
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._logged = LogOnce()
        self._listener: EndsListener | None = None
        with database.read() as tx:
            self._reader.begin(tx)
        self._thread = threading.Thread(target=self._run, name="schedd-on-end", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether ends are still looked for."""
        return not self._stopping.is_set()

    def close(self) -> None:
        """Unsubscribe. Waits up to ``CLOSE_TIMEOUT`` seconds for a call that is under way, unless that closes it."""
        self._stopping.set()
        self._join()

    def finish(self) -> None:
        """As :meth:`close`, after one more look."""
        self._finishing = True
        self._join()
        self._stopping.set()

    def _join(self) -> None:
        self._woken.set()
        here = threading.current_thread()
        if here is not self._thread and (self._loop is None or here.ident != self._loop_thread):
            self._thread.join(CLOSE_TIMEOUT)  # not where a call waits for this very thread

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        backoff = Backoff(POLL, MAX_PAUSE)
        try:
            while not self._stopping.is_set():
                last, pause = self._finishing, POLL
                try:
                    if self._listener is None:
                        self._listener = listen_to_ends(self._database, self._woken.set)
                    self._look()
                    self._logged.clear()
                    backoff.reset()
                    pause = WOKEN_POLL if self._listener.works else POLL
                except StoreUnavailableError as error:
                    if self._logged.is_new(str(error)):
                        log.warning("ends of tasks are looked for again once the database is there: %s", error)
                    pause = backoff.next()
                except Exception:
                    log.exception("unexpected error while looking for ends of tasks")
                    pause = backoff.next()
                if last:
                    break
                self._stopping.wait(MIN_PAUSE)
                self._woken.wait(pause)
                self._woken.clear()
        finally:
            if self._listener is not None:
                self._listener.close()

    def _look(self) -> None:
        """Call for what has ended since the last look, which another look does not find again."""
        with self._database.read() as tx:
            self._found += [task_id for _, task_id in self._reader.look(tx)]
        while self._found:
            batch = self._found[:BATCH]
            for info in self._infos(batch):
                if self._stopping.is_set():
                    return
                copy_context().run(self._call, info)
            del self._found[: len(batch)]

    def _infos(self, ids: list[int]) -> list[TaskInfo]:
        """These tasks in this order, but for those that were removed, or have been reopened since."""
        backoff = Backoff(POLL, MAX_PAUSE)
        while True:
            try:
                with self._database.read() as tx:
                    found = {task.id: task for task in get_tasks(tx, ids)}
                return [task_info(found[i]) for i in ids if i in found and found[i].state.terminal]
            except StoreUnavailableError:  # they are not looked for again
                if self._finishing or self._stopping.wait(backoff.next()):
                    return []

    def _call(self, info: TaskInfo) -> None:
        try:
            if self._loop is None:
                self._callback(info)
            elif self._loop.is_closed():
                self._stopping.set()
            else:
                self._await(self._callback(info), self._loop)
        except Exception:
            log.exception("the callback for the end of task %d failed; it is not called again for it", info.id)

    def _note_thread(self) -> None:
        self._loop_thread = threading.get_ident()

    def _await(self, call: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop do it; given up at :meth:`close`."""
        if self._loop_thread is None:
            loop.call_soon_threadsafe(self._note_thread)
        done = asyncio.run_coroutine_threadsafe(call, loop)
        while True:
            try:
                done.result(LOOP_POLL)
                return
            except TimeoutError:
                if done.done():
                    raise
                if self._stopping.is_set() or loop.is_closed():
                    done.cancel()
                    return


class EndOperations:
    """The part of the Scheduler that tells of ends. Needs ``database`` and ``threads``."""

    database: Database
    threads: CallThreads
    _subscriptions: list[Subscription]

    @overload
    def on_end(self, callback: Callback, kind: str | None = None, correlation: str | None = None) -> Subscription: ...
    @overload
    def on_end(
        self, callback: None = None, kind: str | None = None, correlation: str | None = None
    ) -> Callable[[Callback], Callback]: ...
    def on_end(
        self, callback: Callback | None = None, kind: str | None = None, correlation: str | None = None
    ) -> Subscription | Callable[[Callback], Callback]:
        """Call ``callback(task_info)`` for each task that ends from now on, in any process; until it is closed.

        Also a decorator: ``@jobs.on_end(kind="Mail")``. ``kind``, ``correlation``: of such tasks only. It is called in
        a thread of the subscription's own, one end after the other, in the order of the ends as they were recorded; a
        coroutine function on the event loop that runs now. Each end is found once while the subscription lasts; a task
        that is retried and ends again is another end. An error of the callback is logged and changes nothing. Does not
        see a task that retention removes within a second or two of its end.

        Returns the subscription; ``close()`` ends it, as does :meth:`close`. Raises ConfigError, StoreUnavailableError.
        """
        if callback is None:

            def decorate(function: Callback) -> Callback:
                self._subscribe(function, kind, correlation)
                return function

            return decorate
        return self._subscribe(callback, kind, correlation)

    def _subscribe(self, callback: Callback, kind: str | None, correlation: str | None) -> Subscription:
        if not callable(callback):
            raise ConfigError(f"on_end needs a function of the task, not {callback!r:.80}")
        check_filters(kind=kind, correlation=correlation)
        loop = None
        if inspect.iscoroutinefunction(callback):
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                raise ConfigError(
                    "on_end takes a coroutine function where an event loop runs: call it inside of one"
                ) from None
        made = Subscription(self.database, Wanted(kind, correlation), callback, loop)
        self._add(made)
        return made

    def ends(self, kind: str | None = None, correlation: str | None = None) -> Ends:
        """The tasks that end from now on, for a program with an event loop::

            async with jobs.ends(kind="Mail") as ended:
                async for task in ended: ...

        It subscribes where the ``async with`` begins; else as :meth:`on_end`. Raises ConfigError, and there
        StoreUnavailableError.
        """
        check_filters(kind=kind, correlation=correlation)
        return Ends(self, Wanted(kind, correlation))

    def _add(self, made: Subscription) -> None:
        self._subscriptions[:] = [one for one in self._subscriptions if one.active]
        self._subscriptions.append(made)

    def _close_subscriptions(self) -> None:
        """Look once more, for what this program's own engine has ended, and end."""
        while self._subscriptions:
            self._subscriptions.pop().finish()


class Ends:
    """An asynchronous iterator over the tasks that end. See ``jobs.ends``."""

    def __init__(self, jobs: EndOperations, wanted: Wanted) -> None:
        self._jobs = jobs
        self._wanted = wanted
        self._queue: asyncio.Queue[TaskInfo] = asyncio.Queue(QUEUED)  # a full one holds the subscription back
        self._subscription: Subscription | None = None

    async def __aenter__(self) -> Ends:
        loop, jobs = asyncio.get_running_loop(), self._jobs
        self._subscription = await jobs.threads.call(Subscription, jobs.database, self._wanted, self._queue.put, loop)
        jobs._add(self._subscription)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._subscription is not None:
            self._subscription.close()

    def __aiter__(self) -> Ends:
        return self

    async def __anext__(self) -> TaskInfo:
        if self._subscription is None:
            raise ConfigError("use ends() with `async with`: async with jobs.ends() as ended: async for task in ended")
        return await self._queue.get()

"""Slots that run attempts: threads, asyncio tasks, or the caller's own thread (tests).

The slots of one pool draw from one shared deque, so one slow task never holds up those behind it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Protocol

from scheduler.engine.async_durable import keep_executor, track_tasks
from scheduler.engine.attempt import Attempt, execute, execute_async
from scheduler.engine.desk import Desk
from scheduler.engine.logs import current_attempt
from scheduler.engine.options import POOL_NAMES
from scheduler.engine.own_loop import run_alone
from scheduler.engine.processslots import ProcessSlots
from scheduler.engine.processspec import Spec
from scheduler.engine.procpool import ProcessPool
from scheduler.engine.runtime import Runtime
from scheduler.engine.verdict import gave_up
from scheduler.model.outcome import Outcome
from scheduler.model.registry import ASYNC, PROCESS, THREAD, SlotKey
from scheduler.ports import Spawner

Report = Callable[[Attempt, Outcome], None]
log = logging.getLogger("scheduler.engine")

HELD = 0.001  # seconds that threads wait for release() at most


class Slots(Protocol):
    """The slots of one sort (threads or asyncio) on one level."""

    @property
    def size(self) -> int: ...

    waiting: deque[Attempt]

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        """Queue attempts; ``wake``: how many idle slots to wake for them."""
        ...

    def nudge(self) -> None:
        """Wake every slot that could take what waits."""
        ...

    def interrupt(self, attempt: Attempt) -> None:
        """Let a running body know that it was cancelled or lost."""
        ...

    def abandon(self) -> None:
        """End what can be ended, at once: what runs is about to be handed back."""
        ...

    def close(self) -> None: ...


def waiting_since(slots: Slots) -> float:
    """When the first of what waits was handed over (monotonic); infinity if nothing waits."""
    try:
        return slots.waiting[0].handed_at  # a slot may take it away at any moment
    except IndexError:
        return float("inf")


def take_waiting(slots: Slots, older_than: float) -> list[Attempt]:
    """Take back attempts that nobody has started and that were handed over before ``older_than`` (monotonic)."""
    taken: list[Attempt] = []
    kept: list[Attempt] = []
    while True:
        try:
            attempt = slots.waiting.popleft()
        except IndexError:
            break
        if attempt.handed_at <= older_than:
            taken.append(attempt)
        else:
            kept.append(attempt)
            break  # the rest was handed over later still
    slots.waiting.extendleft(reversed(kept))
    return taken


class ThreadSlots:
    """Threads, started when first needed, that share one deque."""

    def __init__(self, name: str, size: int, runtime: Runtime, report: Report, spawn: Spawner) -> None:
        self.size = size
        self.waiting: deque[Attempt] = deque()
        self._name = name
        self._runtime = runtime
        self._report = report
        self._spawn = spawn
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._go = threading.Event()  # cleared: threads that were idle do not begin yet
        self._go.set()
        self._told = False  # that no more threads can be had

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)
        self._wake(min(wake, len(attempts)))

    def hold(self) -> None:
        """Threads that are woken from now on begin at :meth:`release`, or a millisecond later by themselves."""
        self._go.clear()

    def release(self) -> None:
        """See :meth:`hold`."""
        self._go.set()

    def nudge(self) -> None:
        self._go.set()
        self._wake(len(self.waiting))

    def _wake(self, count: int) -> None:
        # Tokens that nobody needed cost a thread one look at an empty deque, so a few too many do no harm.
        for _ in range(min(count, self.size)):
            if self._tokens.qsize() < self.size:
                self._tokens.put(True)
            if self._idle == 0 and self._threads < self.size:
                try:
                    self._spawn(self._work, f"schedd-{self._name}-{self._threads + 1}")
                except RuntimeError as error:  # the system's limit: those that there are go on, and it is tried again
                    if not self._threads:
                        raise
                    if not self._told:
                        self._told = True
                        log.warning("the %s pool has %d threads: %s", self._name, self._threads, error)
                    return
                self._threads += 1

    def _work(self) -> None:
        waiting, report, runtime, pid = self.waiting, self._report, self._runtime, os.getpid()
        while True:
            try:
                attempt = waiting.popleft()
            except IndexError:
                self._idle += 1
                going_on = self._tokens.get()
                self._idle -= 1
                if not going_on:
                    return
                self._go.wait(HELD)
                continue
            try:
                outcome = execute(attempt, runtime)
            except BaseException as error:  # of what surrounds the body: the slot must survive it, and be free again
                outcome = gave_up(attempt, runtime, error)
            if os.getpid() != pid:
                os._exit(0)  # the body forked, and this is its copy of us
            report(attempt, outcome)

    def interrupt(self, attempt: Attempt) -> None:
        """A thread cannot be interrupted from outside; its next context call raises."""

    def abandon(self) -> None:
        """It cannot be ended either."""

    def close(self) -> None:
        for _ in range(self._threads):
            self._tokens.put(False)


class _Body(asyncio.Task[None]):
    """An attempt on the event loop, which handlers share: some of them cancel all that is there."""

    attempt: Attempt | None = None  # once it has begun

    def cancel(self, msg: Any = None) -> bool:
        """Not before it has begun: then it would end without a line of it having run, and nobody would know. Nor for
        another attempt, whose handler cannot mean it."""
        caller = current_attempt.get()
        return self.attempt is not None and caller in (None, self.attempt) and super().cancel(msg)


class AsyncSlots:
    """One event loop in a thread of its own; up to ``size`` attempts at a time as asyncio Tasks."""

    def __init__(self, name: str, size: int, runtime: Runtime, report: Report, spawn: Spawner) -> None:
        self.size = size
        self.waiting: deque[Attempt] = deque()
        self._name = name
        self._runtime = runtime
        self._report = report
        self._spawn = spawn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[_Body] = set()
        self._pid = 0
        self._closed = False

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)
        self.nudge()

    def nudge(self) -> None:
        if self.waiting:
            self._started().call_soon_threadsafe(self._fill)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            track_tasks(loop)
            keep_executor(loop)
            try:
                self._spawn(self._serve, f"schedd-{self._name}-async")
            except RuntimeError:
                self._loop = None
                loop.close()
                raise
        return self._loop

    def _serve(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        self._pid = os.getpid()
        while not self._closed:
            try:
                loop.run_forever()
            except BaseException:  # SystemExit in a task that a handler started breaks the loop; the others go on
                log.exception("a task that a handler started ended the event loop: it goes on")
        if not asyncio.all_tasks(loop):
            loop.close()

    def _fill(self) -> None:
        loop = self._loop
        assert loop is not None
        while len(self._running) < self.size:
            try:
                attempt = self.waiting.popleft()
            except IndexError:
                return
            # Its context is new: here may be what another handler has left in its own.
            self._running.add(_Body(self._run(attempt), loop=loop, context=Context()))

    async def _run(self, attempt: Attempt) -> None:
        body = asyncio.current_task()
        assert self._loop is not None
        assert isinstance(body, _Body)
        body.attempt = attempt
        attempt.asyncio_task = body
        timer = None
        if attempt.claimed.timeout is not None:
            timer = self._loop.call_later(attempt.claimed.timeout / 1e6, self._time_out, attempt)
        try:
            outcome = await execute_async(attempt, self._runtime)
        except BaseException as error:  # as in threads
            outcome = gave_up(attempt, self._runtime, error)
        finally:
            attempt.asyncio_task = None
            if timer is not None:
                timer.cancel()
        if os.getpid() != self._pid:
            os._exit(0)  # as in threads
        try:
            self._report(attempt, outcome)
        finally:  # and not in a callback, which would be a task's tenth
            self._running.discard(body)
            if self.waiting:
                self._fill()

    @staticmethod
    def _time_out(attempt: Attempt) -> None:
        attempt.timed_out = True
        if attempt.asyncio_task is not None:
            attempt.asyncio_task.cancel()

    def interrupt(self, attempt: Attempt) -> None:
        def cancel() -> None:
            if attempt.asyncio_task is not None:
                attempt.asyncio_task.cancel()

        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(cancel)

    def abandon(self) -> None:
        """What it does not await cannot be ended, so the process has to be."""

    def close(self) -> None:
        if self._loop is not None and not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)


class InlineSlots:
    """Runs what waits in the caller's own thread, when told to: deterministic."""

    def __init__(self, size: int, runtime: Runtime, report: Report) -> None:
        self.size = size
        self.waiting: deque[Attempt] = deque()
        self._runtime = runtime
        self._report = report

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)

    def nudge(self) -> None:
        """Nothing sleeps here."""

    def run_one(self) -> bool:
        """Run the next attempt to its end. False if none waits."""
        if not self.waiting:
            return False
        attempt = self.waiting.popleft()
        if attempt.kind.is_async:
            outcome = run_alone(attempt, self._run_async(attempt))
        else:
            outcome = execute(attempt, self._runtime)
        self._report(attempt, outcome)
        return True

    async def _run_async(self, attempt: Attempt) -> Outcome:
        attempt.asyncio_task = asyncio.current_task()
        track_tasks(asyncio.get_running_loop())
        try:
            return await execute_async(attempt, self._runtime)
        finally:
            attempt.asyncio_task = None

    def interrupt(self, attempt: Attempt) -> None:
        """The body runs in the thread that would interrupt it."""

    def abandon(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self.waiting.clear()


def all_waiting(slots: Iterable[Slots]) -> list[Attempt]:
    """Take back everything that nobody has started."""
    taken: list[Attempt] = []
    for one in slots:
        while True:
            try:
                taken.append(one.waiting.popleft())
            except IndexError:
                break
    return taken


def make_slots(desk: Desk, spawn: Spawner, *, inline: bool) -> dict[SlotKey, Slots]:
    """The slots of every pool, by level and sort."""
    made: dict[SlotKey, Slots] = {}
    processes = desk.options.processes
    if processes.children and not inline:
        desk.processes = ProcessPool(processes, Spec(desk, processes, spawn), desk, desk.report, spawn, desk.means)
    for pool, name in enumerate(POOL_NAMES):
        threads, tasks = desk.options.pools.get(name, (0, 0))
        for sort, size in ((THREAD, threads), (ASYNC, tasks), (PROCESS, processes.children if threads + tasks else 0)):
            if size <= 0:
                continue
            if inline:
                made[pool, sort] = InlineSlots(size, desk, desk.report)
            elif sort == ASYNC:
                made[pool, sort] = AsyncSlots(name, size, desk, desk.report, spawn)
            elif sort == THREAD:
                made[pool, sort] = ThreadSlots(name, size, desk, desk.report, spawn)
            else:
                assert desk.processes is not None
                made[pool, sort] = ProcessSlots(desk.processes, pool, size)
    return made

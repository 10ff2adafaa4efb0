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
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple, Protocol

from scheduler.backoff import LogOnce
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.capture import current_attempt
from scheduler.engine.attempt.loop_threads import close_threads, install_threads
from scheduler.engine.attempt.outcomes import internal_failure
from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.durable.async_driver import track_tasks
from scheduler.engine.execution.event_loop import Pulse, run_in_new_loop
from scheduler.engine.execution.run import execute, execute_async, is_abandoned
from scheduler.engine.processes.host import ChildHost
from scheduler.engine.processes.pool import ProcessPool, ProcessSlots
from scheduler.engine.state import EngineState
from scheduler.forking import after_fork
from scheduler.model.capacity import ASYNC, PROCESS, THREAD, SlotKey
from scheduler.model.defaults import POOLS
from scheduler.model.outcome import Outcome
from scheduler.ports import Spawner
from scheduler.system import LINUX

Report = Callable[[Attempt, Outcome], None]
log = logging.getLogger("scheduler.engine")

MAX_HOLD_S = 0.001  # that threads wait for release()


class Slots(Protocol):
    """The slots of one type (threads, asyncio, processes) and priority."""

    @property
    def size(self) -> int: ...

    waiting: deque[Attempt]

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        """Queue attempts; ``wake``: how many idle slots to wake for them."""
        ...

    def nudge(self) -> None:
        """Wake every slot that could take a waiting attempt."""
        ...

    def interrupt(self, attempt: Attempt) -> None:
        """Tell a running attempt that it was cancelled or lost."""
        ...

    def abandon(self) -> None:
        """End at once what can be ended: running attempts are about to be released."""
        ...

    def close(self) -> None: ...


def waiting_since(slots: Slots) -> float:
    """When the first waiting attempt was submitted (monotonic); infinity if none waits."""
    try:
        return slots.waiting[0].submitted_at  # a slot may take it away at any moment
    except IndexError:
        return float("inf")


def take_waiting(slots: Slots, older_than: float) -> list[Attempt]:
    """Take back waiting attempts that were submitted before ``older_than`` (monotonic)."""
    taken: list[Attempt] = []
    kept: list[Attempt] = []
    while True:
        try:
            attempt = slots.waiting.popleft()
        except IndexError:
            break
        if attempt.submitted_at <= older_than:
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
        self.runtime = runtime
        self._report = report
        self._spawn = spawn
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._threads = 0
        self._starting = threading.Lock()  # the loop and callers submit
        self._idle = 0
        self._may_begin = threading.Event()  # cleared: threads that were idle do not begin yet
        self._may_begin.set()
        self._logged = LogOnce()  # that no more threads can be had
        self._forked = False  # this process is a copy that a handler made
        self._leaving: deque[None] = deque()  # one for each thread that is to end
        after_fork(self, ThreadSlots._on_fork)

    def resize(self, size: int) -> None:
        """Have so many threads from now on; those that are too many end after their present attempt."""
        self.size = size
        with self._starting:
            while self._threads > size:
                self._threads -= 1
                self._leaving.append(None)
                self._tokens.put(True)
        self.nudge()

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)
        self._wake(min(wake, len(attempts)))

    def _on_fork(self) -> None:
        self._forked = True

    def hold(self) -> None:
        """Threads that are woken from now on begin at :meth:`release`, or a millisecond later by themselves."""
        self._may_begin.clear()

    def release(self) -> None:
        """Let the threads begin that :meth:`hold` keeps back."""
        self._may_begin.set()

    def nudge(self) -> None:
        self._may_begin.set()
        self._wake(len(self.waiting))

    def _wake(self, count: int) -> None:
        # A surplus token costs a thread one read of an empty deque, so a few too many do no harm.
        for _ in range(min(count, self.size)):
            no_idle = self._idle == 0  # looked up before the token, which makes an idle one busy
            if self._tokens.qsize() < self.size:
                self._tokens.put(True)
            if no_idle and self._threads < self.size and not self._one_more():
                return

    def _one_more(self) -> bool:
        """Start a thread, if that is not too many. False: none can be had."""
        with self._starting:
            if self._threads >= self.size:
                return True
            try:
                self._spawn(self._work, f"schedd-{self._name}-{self._threads + 1}")
            except RuntimeError as error:  # the system's limit: go on with the threads that there are
                if not self._threads:
                    raise
                if self._logged.is_new():
                    log.warning("the %s pool has %d threads: %s", self._name, self._threads, error)
                return False
            self._threads += 1
            return True

    def _work(self) -> None:
        waiting, report, runtime = self.waiting, self._report, self.runtime
        ident = threading.get_ident()
        while True:
            if self._leaving and self._leaves():
                return
            try:
                attempt = waiting.popleft()
            except IndexError:
                self._idle += 1
                going_on = self._tokens.get()
                self._idle -= 1
                if not going_on:
                    return
                self._may_begin.wait(MAX_HOLD_S)
                continue
            attempt.thread = ident
            try:
                outcome = Context().run(execute, attempt, runtime)  # the next one finds none of its variables
            except BaseException as error:  # an error around the handler must not end the slot
                outcome = internal_failure(attempt, runtime, error)
            if self._forked:
                os._exit(0)  # the handler forked, and this is the copy
            report(attempt, outcome)

    def _leaves(self) -> bool:
        try:
            self._leaving.pop()
        except IndexError:
            return False
        self._tokens.put(True)  # the token that this thread took may have been for an attempt
        return True

    def interrupt(self, attempt: Attempt) -> None:
        """A thread cannot be interrupted from outside; its next context call raises."""

    def abandon(self) -> None:
        """A thread cannot be ended from outside."""

    def close(self) -> None:
        for _ in range(self._threads):
            self._tokens.put(False)


class _AttemptTask(asyncio.Task[None]):
    """An attempt on the event loop, which handlers share: some of them cancel all that is there."""

    attempt: Attempt | None = None  # once it has begun

    def cancel(self, msg: Any = None) -> bool:
        """Cancel, unless it has not begun or another attempt asks: both would lose the outcome."""
        caller = current_attempt.get()
        return self.attempt is not None and caller in (None, self.attempt) and super().cancel(msg)


class Blocked(NamedTuple):
    """An event loop that does not go round. ``since``: monotonic; ``attempt``: whose handler blocks it, None if it is
    no attempt's; ``behind``: those that stand still with it; ``thread``: the ident of its thread."""

    since: float
    attempt: Attempt | None
    behind: list[Attempt]
    thread: int


class AsyncSlots:
    """One event loop in a thread of its own; up to ``size`` attempts at a time as asyncio Tasks.

    A loop that a handler blocks keeps what has begun on it; what begins later does so on another one.
    """

    def __init__(self, name: str, size: int, runtime: Runtime, report: Report, spawn: Spawner) -> None:
        self.size = size
        self.waiting: deque[Attempt] = deque()
        self._name = name
        self.runtime = runtime
        self._report = report
        self._spawn = spawn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()  # the loop and callers submit
        self._pulses: list[Pulse] = []  # of the loops that there are
        self._running: set[_AttemptTask] = set()
        self._closed = False
        self._forked = False  # this process is a copy that a handler made
        after_fork(self, AsyncSlots._on_fork)

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)
        self.nudge()

    def nudge(self) -> None:
        if self.waiting:
            self._started().call_soon_threadsafe(self._fill)

    def _on_fork(self) -> None:
        self._forked = True

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            with self._starting:
                loop = self._loop = self._loop or self._new_loop()
        return loop

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        track_tasks(loop)
        install_threads(loop, self.size, shared=True)
        pulse = Pulse(loop)
        try:
            self._spawn(partial(self._serve, pulse), f"schedd-{self._name}-async")
        except RuntimeError:
            loop.close()
            raise
        self._pulses.append(pulse)
        return loop

    def resize(self, size: int) -> None:
        """Run up to so many attempts at a time from now on."""
        self.size = size
        self.nudge()

    def blocked(self, monotonic: float, after: float) -> list[Blocked]:
        """The loops that have not gone round for ``after`` seconds. Each call asks them anew."""
        found, well = [], []
        for pulse in list(self._pulses):
            since = pulse.ask(monotonic)
            if since is None or monotonic - since < after:
                well.append(pulse.loop)
            else:
                found.append(self._blocked(pulse, since))
        if found and self._loop not in well:
            self._loop = well[0] if well else None
            self.nudge()
        return found

    def _blocked(self, pulse: Pulse, since: float) -> Blocked:
        here = [body.attempt for body in list(self._running) if body.get_loop() is pulse.loop]
        there = [attempt for attempt in here if attempt is not None]
        task: Any = asyncio.current_task(pulse.loop)
        culprit = next((a for a in there if a.asyncio_task is task or task in (a.tasks or ())), None)
        return Blocked(since, culprit, [a for a in there if a is not culprit], pulse.thread)

    def _serve(self, pulse: Pulse) -> None:
        loop = pulse.loop
        asyncio.set_event_loop(loop)
        pulse.thread = threading.get_ident()
        while not self._closed:
            try:
                loop.run_forever()
            except BaseException:  # SystemExit in a task that a handler started breaks the loop; the others go on
                log.exception("a task that a handler started ended the event loop: it goes on")
        self._pulses.remove(pulse)
        left: set[Any] = asyncio.all_tasks(loop)
        if not left:
            loop.close()
        for one in left:
            one._log_destroy_pending = False  # a stop at once leaves them, and says so by itself
        close_threads(loop)

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.nudge()  # this loop was blocked, and another one has replaced it
            return
        while len(self._running) < self.size:
            try:
                attempt = self.waiting.popleft()
            except IndexError:
                return
            # Its context is new: here may be what another handler has left in its own.
            self._running.add(_AttemptTask(self._run(attempt), loop=loop, context=Context()))

    async def _run(self, attempt: Attempt) -> None:
        body = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert isinstance(body, _AttemptTask)
        body.attempt = attempt
        attempt.asyncio_task = body
        timer = None
        if attempt.claimed.timeout is not None:
            timer = loop.call_later(attempt.claimed.timeout / 1e6, self._time_out, attempt)
        try:
            outcome = await execute_async(attempt, self.runtime)
        except BaseException as error:  # as in threads
            if is_abandoned(attempt):
                raise
            outcome = internal_failure(attempt, self.runtime, error)
        finally:
            attempt.asyncio_task = None
            if timer is not None:
                timer.cancel()
        if self._forked:
            os._exit(0)  # as in threads
        try:
            self._report(attempt, outcome)
        finally:  # not in a callback, which costs a tenth of a task
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

        body = attempt.asyncio_task
        loop = self._loop if body is None else body.get_loop()
        if loop is not None and not self._closed:
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(cancel)

    def abandon(self) -> None:
        """What it does not await cannot be ended, so the process has to be."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for pulse in list(self._pulses):
                with suppress(RuntimeError):  # it has ended by itself
                    pulse.loop.call_soon_threadsafe(pulse.loop.stop)


class InlineSlots:
    """Runs waiting attempts in the caller's thread, one at a time (tests)."""

    def __init__(self, size: int, runtime: Runtime, report: Report) -> None:
        self.size = size
        self.waiting: deque[Attempt] = deque()
        self.runtime = runtime
        self._report = report

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)

    def resize(self, size: int) -> None:
        """Let the planner claim for so many attempts at a time."""
        self.size = size

    def nudge(self) -> None:
        """Nothing sleeps here."""

    def run_one(self) -> bool:
        """Run the next attempt to its end. False if none waits."""
        if not self.waiting:
            return False
        attempt = self.waiting.popleft()
        if attempt.kind.is_async:
            outcome = _apart(lambda: run_in_new_loop(attempt, self._run_async(attempt)))
        else:
            attempt.thread = threading.get_ident()
            outcome = copy_context().run(execute, attempt, self.runtime)
        self._report(attempt, outcome)
        return True

    async def _run_async(self, attempt: Attempt) -> Outcome:
        attempt.asyncio_task = asyncio.current_task()
        track_tasks(asyncio.get_running_loop())
        try:
            return await execute_async(attempt, self.runtime)
        finally:
            attempt.asyncio_task = None

    def interrupt(self, attempt: Attempt) -> None:
        """The handler runs in the thread that would interrupt it."""

    def abandon(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self.waiting.clear()


def _apart(run: Callable[[], Outcome]) -> Outcome:
    """Call it: in a thread of its own where this one has a running event loop, as in an asynchronous test."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1, "schedd-inline") as threads:
        return threads.submit(copy_context().run, run).result()


def all_waiting(slots: Iterable[Slots]) -> list[Attempt]:
    """Take back every waiting attempt."""
    taken: list[Attempt] = []
    for one in slots:
        while True:
            try:
                taken.append(one.waiting.popleft())
            except IndexError:
                break
    return taken


def make_slots(engine_state: EngineState, spawn: Spawner, *, inline: bool) -> dict[SlotKey, Slots]:
    """The slots of every pool, by priority and slot type."""
    made: dict[SlotKey, Slots] = {}
    processes, child_pool = engine_state.options.processes, None
    if processes.children and not inline and LINUX:
        engine_state.processes = child_pool = ProcessPool(ChildHost(engine_state, processes, spawn))
    resize_slots(made, engine_state, spawn, engine_state.options.pools, child_pool, inline=inline)
    return made


def resize_slots(
    made: dict[SlotKey, Slots],
    engine_state: EngineState,
    spawn: Spawner,
    pools: Mapping[str, tuple[int, int]],
    child_pool: ProcessPool | None = None,
    *,
    inline: bool,
) -> None:
    """Let the pools have these slots (threads, async slots). What runs goes on, also in slots that are too many."""
    child_pool = child_pool or next((one.pool for one in made.values() if isinstance(one, ProcessSlots)), None)
    children = engine_state.options.processes.children
    for pool, name in enumerate(POOLS):
        threads, tasks = pools.get(name, (0, 0))
        for slot_type, size in ((THREAD, threads), (ASYNC, tasks), (PROCESS, children if threads + tasks else 0)):
            present = made.get((pool, slot_type))
            if isinstance(present, (ThreadSlots, AsyncSlots, InlineSlots)):
                if present.size != size:
                    present.resize(size)
            elif present is None and size > 0:
                if inline:
                    made[pool, slot_type] = InlineSlots(size, engine_state, engine_state.report)
                elif slot_type == ASYNC:
                    made[pool, slot_type] = AsyncSlots(name, size, engine_state, engine_state.report, spawn)
                elif slot_type == THREAD:
                    made[pool, slot_type] = ThreadSlots(name, size, engine_state, engine_state.report, spawn)
                elif child_pool is not None:
                    made[pool, slot_type] = ProcessSlots(child_pool, pool, size)

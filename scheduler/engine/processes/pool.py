"""The pool of child processes: attempts of kinds with ``isolation="process"``, poison tasks, functions of ``ctx.cpu``.

One thread looks after all children. It takes orders from other threads (orders.py), gives the children work
(queue.py), reads what they send and ends them (monitor.py), and keeps their timeouts (timeouts.py).

The priorities share the children: the highest one that waits gets the next free child, but every fourth time a lower
one does, in turn; and high tasks get one child more when lower ones have taken them all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from scheduler.backoff import Backoff, LogOnce
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.child.pickling import packed_call
from scheduler.engine.processes.child_handle import ChildJob
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.host import ChildHost, resolve
from scheduler.engine.processes.monitor import ChildMonitor
from scheduler.engine.processes.orders import CancelOrder, Interrupt, LookOrder, Order, ReplyOrder, SubmitOrder
from scheduler.engine.processes.queue import JobQueue
from scheduler.engine.processes.timeouts import ChildTimeouts
from scheduler.errors import ProcessDied
from scheduler.forking import after_fork

if TYPE_CHECKING:
    from scheduler.model.registry import Kind

log = logging.getLogger("scheduler.engine")

FAILED_PAUSE_S = (0.05, 1.0)  # after a round that failed: first, longest


class ProcessPool:
    """See the module. Its thread, the fork server and the children start when there is something to do."""

    def __init__(self, host: ChildHost) -> None:
        self.host = host
        self.options = host.options
        self.orders = host.orders
        self.children = ChildRegistry()
        self.queue = JobQueue(self.children, host)
        self.monitor = ChildMonitor(self.children, self.queue, host)
        self.timeouts = ChildTimeouts(self.children, self.queue, self.monitor, host)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._backoff = Backoff(*FAILED_PAUSE_S)
        self._logged = LogOnce()  # what has failed, by part of a round
        after_fork(self, ProcessPool._on_fork)

    # from other threads

    @property
    def ready_count(self) -> int:
        """How many children can work at a time; only the present ones while no more can be started."""
        if self.children.backing_off:
            return min(self.children.ready_count, self.options.children)
        return self.options.children

    @property
    def backing_off(self) -> bool:
        """Whether there is no child, and none is started for a while, since the last ones could not get ready."""
        return not self.ready_count

    def wake(self) -> None:
        """There may be something to do. Raises RuntimeError if the thread cannot be started."""
        if self._closed:
            return
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._closed:
                    if self.orders.wakeup < 0:
                        self.orders.open()
                    self._thread = self.host.spawn(self._serve, "schedd-processes")
        self.orders.wake()

    def interrupt(self, attempt: Attempt) -> None:
        self.orders.post(Interrupt(attempt))

    def submit_function(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> CpuFuture[Any]:
        """Run ``function(*args)`` in a child. The future's ``cancel_remote`` ends it there.

        Raises TypeError for what cannot be sent to another process.
        """
        job = ChildJob(attempt.pool, ("cpu", *packed_call(function, args)), attempt)
        job.future = future = CpuFuture[Any]()
        future.cancel_remote = partial(self.orders.post, CancelOrder(job))
        self.wake()  # first: without a thread the future would never be set
        with self._starting:
            closed = self._closed
            if not closed:
                self.orders.post(SubmitOrder(job))  # before the pool is closed, so its thread finds it
        if closed:
            future.set_exception(ProcessDied("the engine has stopped"))
        return future

    def look(self, attempt: Attempt) -> None:
        """Have its child say where it stands; the answer comes to the attempt."""
        self.orders.post(LookOrder(attempt))

    def can_run(self, kind: Kind) -> bool:
        """Whether a child can run this kind, which was not made for it."""
        return not self._closed and self.host.can_run(kind)

    def close(self) -> None:
        """Kill every child, with everything that it started, and wait for their end.

        What they had sent by then is handled and reported before this returns; nothing is after it.
        """
        with self._starting:
            closed, self._closed = self._closed, True
            thread = self._thread
        if closed or thread is None:
            return
        self.orders.wake()
        if thread is not threading.current_thread():
            thread.join(10.0)
        self.host.close()

    def _on_fork(self) -> None:
        """In a forked process the pool is closed, and nothing is left to wait for."""
        self._closed = True
        self._starting = threading.Lock()
        self.orders.forget()
        self.children.close_in_fork()

    # the thread

    def _serve(self) -> None:
        self.children.open(self.orders.wakeup)
        self.monitor.begin()
        try:
            while not self._closed:
                self._round()
        finally:  # who waits for a child hears of its end, whatever ended this thread
            self._end()

    def _round(self) -> None:
        """What has to be done once, each part of it also when another one fails."""
        failed = False
        for part in (
            *(self._hear, self._obey_orders, self.timeouts.check),
            *(self.queue.start_children, self.queue.feed, self.timeouts.send_lease),
        ):
            try:
                part()
            except Exception as error:
                failed = True
                if self._logged.is_new(repr(error), part.__name__):
                    log.exception("looking after the child processes failed; going on")
        if failed:
            time.sleep(self._backoff.next())
        elif self._backoff.current:
            self._backoff.reset()

    def _hear(self) -> None:
        for event in self.children.wait(0.0 if self.orders else self.timeouts.wait()):
            self.monitor.handle(event)

    def _obey_orders(self) -> None:
        for order in self.orders.take():
            self._obey(order)

    def _end(self) -> None:
        self.children.drop_fork_server()
        gone = ProcessDied("the engine has stopped")
        for child in self.children.children.values():
            self.monitor.read_last(child)
            for job in child.jobs.values():
                resolve(job, error=gone)
            child.close()
        for job in self.queue.functions():
            resolve(job, error=gone)
        for order in self.orders.take():
            if isinstance(order, SubmitOrder):
                resolve(order.job, error=gone)
        self.children.close()

    def _obey(self, order: Order) -> None:
        match order:
            case SubmitOrder(job):
                self.queue.add(job)
            case CancelOrder(job):
                self._cancel(job)
            case Interrupt(attempt):
                found = self.queue.find(attempt)
                if found is not None:  # else it waits, or has ended
                    self.monitor.stop(*found, "lost" if attempt.lost else "cancelled")
            case LookOrder(attempt):
                self.monitor.look(attempt)
            case ReplyOrder(to, fine, value):
                if to.child in self.children.children:
                    self.children.say(self.children.children[to.child], "answer", to.request, fine, value)

    def _cancel(self, job: ChildJob) -> None:
        job.cancelled = True
        child = next((c for c in self.children.children.values() if job.number in c.jobs), None)
        if child is not None:
            self.monitor.stop(child, job, "cancelled")
        else:
            self.queue.drop(job)


class ProcessSlots:
    """The slots of one priority; all priorities share one :class:`ProcessPool`."""

    def __init__(self, pool: ProcessPool, priority: int, size: int) -> None:
        self.pool = pool
        self.priority = priority
        self._size = size
        self.waiting: deque[Attempt] = deque()
        pool.queue.priorities[priority] = self.waiting

    @property
    def size(self) -> int:
        """0 while there is no child, and none can be started: then nothing is claimed."""
        return min(self._size, self.pool.ready_count)

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)
        self.pool.wake()

    def nudge(self) -> None:
        self.pool.wake()

    def interrupt(self, attempt: Attempt) -> None:
        self.pool.interrupt(attempt)

    def abandon(self) -> None:
        self.pool.close()

    def close(self) -> None:
        self.pool.close()

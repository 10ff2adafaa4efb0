"""The pool of child processes: attempts of kinds with ``isolation="process"``, suspects, and functions of ``ctx.cpu``.

One thread looks after all children: it gives them work (feeding.py), reads what they send (monitor.py), ends them
and keeps their timeouts (timeouts.py). Here are the commands that other threads post to it.

The levels share the children: the highest level that waits gets the next free child, but every fourth time a lower one
does, in turn; and high tasks get one child more when lower ones have taken them all.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.execution.offload import CpuFuture
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processes.child_handle import Job
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.endings import resolve
from scheduler.engine.processes.feeding import JobFeeder
from scheduler.engine.processes.host import ChildHost
from scheduler.engine.processes.monitor import ChildMonitor
from scheduler.engine.processes.parting import ChildStopper
from scheduler.engine.processes.queue import JobQueue, Report
from scheduler.engine.processes.timeouts import ChildTimeouts
from scheduler.errors import ProcessDied
from scheduler.model.reference import reference_of
from scheduler.ports import Spawner

if TYPE_CHECKING:
    from scheduler.model.registry import Kind

log = logging.getLogger("scheduler.engine")


class ProcessPool:
    """See the module. Its thread, the fork server and the children start when there is something to do.

    ``means``: seconds that attempts take, by kind.
    """

    def __init__(
        self,
        options: ProcessOptions,
        spec: ChildHost,
        runtime: Runtime,
        report: Report,
        spawn: Spawner,
        means: Mapping[str, float],
    ) -> None:
        self.options = options
        self.spec = spec
        self.children = children = ChildRegistry()
        self._waiting = waiting = JobQueue(spec, runtime, report)
        self.feeder = feeder = JobFeeder(children, waiting, options, spec, means)
        self.stopper = stopper = ChildStopper(children, feeder, options)
        self.monitor = ChildMonitor(children, feeder, stopper, spec, runtime, report, self.post, waiting.add)
        self.timeouts = ChildTimeouts(children, waiting, feeder, stopper, self.monitor, options, runtime)
        children.set_handlers(self.monitor.listen, self.monitor.read, self.monitor.on_exit)
        self.levels = waiting.levels
        self._spawn = spawn
        self._orders: deque[tuple[Any, ...]] = deque()
        self._bell = -1
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    # from other threads

    @property
    def ready_count(self) -> int:
        """How many children can work at a time: those that there are, while no more can be started."""
        return (
            min(self.children.ready_count, self.options.children)
            if self.children.backing_off
            else self.options.children
        )

    @property
    def backing_off(self) -> bool:
        """Whether there is no child, and none is tried for a while, since the last ones could not get ready."""
        return not self.ready_count

    def wake(self) -> None:
        """There may be something to do."""
        if self._closed or self._pid != os.getpid():
            return
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._closed:
                    self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                    try:
                        self._thread = self._spawn(self._serve, "schedd-processes")
                    except RuntimeError:
                        os.close(self._bell)
                        raise
                    # Not with the pool: whoever wakes it at that moment would write into somebody else's file.
                    weakref.finalize(self, os.close, self._bell).atexit = False
                    os.register_at_fork(after_in_child=_forgetter(self))
        os.eventfd_write(self._bell, 1)

    def post(self, *order: Any) -> None:
        self._orders.append(order)
        if self._thread is not None:
            self.wake()

    def submit_function(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> CpuFuture[Any]:
        """Run ``function(*args)`` in a child. Withdrawing the answer ends it there.

        Raises ConfigError for a function that cannot be imported, TypeError or PicklingError for such arguments.
        """
        name = reference_of(function)
        try:
            data = pickle.dumps(args)
        except Exception as error:
            raise TypeError(f"ctx.cpu: the arguments of {name} cannot be sent to another process: {error}") from error
        job = Job(0, attempt.pool, ("cpu", name, data), attempt)
        job.answer = answer = CpuFuture[Any]()
        answer.cancel_remote = partial(self.post, "cancel", job)
        self.wake()  # first: if there can be no thread, nobody would ever answer
        with self._starting:
            closed = self._closed
            if not closed:
                self._orders.append(("submit", job))  # before the pool is closed, so its thread finds it
        if closed:
            answer.set_exception(ProcessDied("the engine has stopped"))
        else:
            self.wake()
        return answer

    def can_run(self, kind: Kind) -> bool:
        """Whether a child can run this kind, which was not made for it."""
        return not self._closed and self.spec.can_run(kind)

    def close(self) -> None:
        """Kill every child, with everything that it started, and wait for their end.

        What they had said by then is dealt with and reported before this returns; nothing is after it.
        """
        if self._pid != os.getpid():
            return
        with self._starting:
            closed, self._closed = self._closed, True
            thread = self._thread
        if closed or thread is None:
            return
        os.eventfd_write(self._bell, 1)
        if thread is not threading.current_thread():
            thread.join(10.0)
        self.spec.close()

    # the thread

    def _serve(self) -> None:
        self.children.open(self._bell, self._rung)
        self.monitor.begin()
        while not self._closed:
            try:
                self.children.wait(0.0 if self._orders else self.timeouts.wait())
                self._handle_commands()
                self.timeouts.look()
                self.feeder.grow()
                self.feeder.feed()
                self.timeouts.tell_lease()
            except Exception:
                log.exception("looking after the child processes failed; going on")
                time.sleep(0.05)
        self._end()

    def _rung(self) -> None:
        os.eventfd_read(self._bell)

    def _end(self) -> None:
        self.children.drop_fork_server()
        gone = ProcessDied("the engine has stopped")
        for child in self.children.children.values():
            self.monitor.read_last(child)
            for job in child.jobs.values():
                resolve(job, error=gone)
            child.close()
        for job in self._waiting.functions():
            resolve(job, error=gone)
        while self._orders:
            what, *values = self._orders.popleft()
            if what == "submit":
                resolve(values[0], error=gone)
        self.children.close()

    def _handle_commands(self) -> None:
        while self._orders:
            what, *values = self._orders.popleft()
            if what == "interrupt":
                self._interrupt(values[0])
            elif what == "submit":
                self._waiting.add(values[0])
            elif what == "cancel":
                self._withdraw(values[0])
            elif what == "answer":
                tag, asked, fine, value = values
                if tag in self.children.children:
                    self.children.say(self.children.children[tag], "answer", asked, fine, value)

    def _interrupt(self, attempt: Attempt) -> None:
        """It was cancelled, or its worker lost it."""
        found = self.feeder.find(attempt)
        if found is None:
            return  # it waits, or has ended
        child, job = found
        self.stopper.stop(child, job, "lost" if attempt.lost else "cancelled")

    def _withdraw(self, job: Job) -> None:
        """Whoever asked for this function waits for its end, not for its value."""
        job.withdrawn = True
        child = next((c for c in self.children.children.values() if job.number in c.jobs), None)
        if child is not None:
            self.stopper.stop(child, job, "cancelled")
        else:
            self._waiting.drop(job)


def _forgetter(pool: ProcessPool) -> Callable[[], None]:
    known = weakref.ref(pool)

    def forget() -> None:
        found = known()
        if found is not None:
            found.children.close_in_fork()

    return forget

"""The pool of child processes: attempts of kinds with ``isolation="process"``, suspects, and functions of ``ctx.cpu``.

One thread looks after all children: it starts and feeds them (feeding.py), hears what they say (hearing.py), ends them
(parting.py) and loses patience with them (patience.py). Here are its orders, which come from other threads.

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

from scheduler.engine.attempt import Attempt
from scheduler.engine.brood import Brood
from scheduler.engine.children import Job
from scheduler.engine.endings import answer_to
from scheduler.engine.feeding import Feeding
from scheduler.engine.functions import Answer
from scheduler.engine.hearing import Hearing
from scheduler.engine.options import ProcessOptions
from scheduler.engine.parting import Parting
from scheduler.engine.patience import Patience
from scheduler.engine.processspec import Spec
from scheduler.engine.runtime import Runtime
from scheduler.engine.waiting import Report, Waiting
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
        spec: Spec,
        runtime: Runtime,
        report: Report,
        spawn: Spawner,
        means: Mapping[str, float],
    ) -> None:
        self.options = options
        self.spec = spec
        self.brood = brood = Brood()
        self._waiting = waiting = Waiting(spec, runtime, report)
        self.feeding = feeding = Feeding(brood, waiting, options, spec, means)
        self.parting = parting = Parting(brood, feeding, options)
        self.hearing = Hearing(brood, feeding, parting, spec, runtime, report, self.tell, waiting.add)
        self.patience = Patience(brood, waiting, feeding, parting, self.hearing, options, runtime)
        brood.listen_with(self.hearing.listen, self.hearing.read, self.hearing.bury)
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
    def able(self) -> int:
        """How many children can work at a time: those that there are, while no more can be started."""
        return min(self.brood.able, self.options.children) if self.brood.out_of_order else self.options.children

    @property
    def out_of_order(self) -> bool:
        """Whether there is no child, and none is tried for a while, since the last ones could not get ready."""
        return not self.able

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

    def tell(self, *order: Any) -> None:
        self._orders.append(order)
        if self._thread is not None:
            self.wake()

    def compute(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> Answer[Any]:
        """Run ``function(*args)`` in a child. Withdrawing the answer ends it there.

        Raises ConfigError for a function that cannot be imported, TypeError or PicklingError for such arguments.
        """
        name = reference_of(function)
        try:
            data = pickle.dumps(args)
        except Exception as error:
            raise TypeError(f"ctx.cpu: the arguments of {name} cannot be sent to another process: {error}") from error
        job = Job(0, attempt.pool, ("cpu", name, data), attempt)
        job.answer = answer = Answer[Any]()
        answer.withdraw = partial(self.tell, "withdrawn", job)
        self.wake()  # first: if there can be no thread, nobody would ever answer
        with self._starting:
            closed = self._closed
            if not closed:
                self._orders.append(("errand", job))  # before the pool is closed, so its thread finds it
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
        self.brood.open(self._bell, self._rung)
        self.hearing.begin()
        while not self._closed:
            try:
                self.brood.wait(0.0 if self._orders else self.patience.wait())
                self._obey()
                self.patience.look()
                self.feeding.grow()
                self.feeding.feed()
                self.patience.tell_lease()
            except Exception:
                log.exception("looking after the child processes failed; going on")
                time.sleep(0.05)
        self._end()

    def _rung(self) -> None:
        os.eventfd_read(self._bell)

    def _end(self) -> None:
        self.brood.drop_nursery()
        gone = ProcessDied("the engine has stopped")
        for child in self.brood.children.values():
            self.hearing.hear_last(child)
            for job in child.jobs.values():
                answer_to(job, error=gone)
            child.close()
        for job in self._waiting.errands():
            answer_to(job, error=gone)
        while self._orders:
            what, *values = self._orders.popleft()
            if what == "errand":
                answer_to(values[0], error=gone)
        self.brood.close()

    def _obey(self) -> None:
        while self._orders:
            what, *values = self._orders.popleft()
            if what == "interrupt":
                self._interrupt(values[0])
            elif what == "errand":
                self._waiting.add(values[0])
            elif what == "withdrawn":
                self._withdraw(values[0])
            elif what == "answer":
                tag, asked, fine, value = values
                if tag in self.brood.children:
                    self.brood.say(self.brood.children[tag], "answer", asked, fine, value)

    def _interrupt(self, attempt: Attempt) -> None:
        """It was cancelled, or its worker lost it."""
        found = self.feeding.find(attempt)
        if found is None:
            return  # it waits, or has ended
        child, job = found
        self.parting.stop(child, job, "lost" if attempt.lost else "cancelled")

    def _withdraw(self, job: Job) -> None:
        """Whoever asked for this function waits for its end, not for its value."""
        job.withdrawn = True
        child = next((c for c in self.brood.children.values() if job.number in c.jobs), None)
        if child is not None:
            self.parting.stop(child, job, "cancelled")
        else:
            self._waiting.drop(job)


def _forgetter(pool: ProcessPool) -> Callable[[], None]:
    known = weakref.ref(pool)

    def forget() -> None:
        found = known()
        if found is not None:
            found.brood.close_in_fork()

    return forget

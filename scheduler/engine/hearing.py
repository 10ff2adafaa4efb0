"""What children say and write, and how they die: each end of an attempt, a function or a hook is told from here.

Used by the pool's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from scheduler.engine import cgroups
from scheduler.engine.brood import Brood
from scheduler.engine.children import Child, Job, out_of_memory_kills, told_end
from scheduler.engine.endings import computed, died, log_again, outcome_of
from scheduler.engine.feeding import Feeding
from scheduler.engine.parting import Parting
from scheduler.engine.processspec import Spec
from scheduler.engine.runtime import Runtime
from scheduler.engine.verdict import with_log
from scheduler.engine.waiting import Report
from scheduler.model.checkpoint import failure_of

log = logging.getLogger("scheduler.engine")

MOST_CHUNKS = 100_000  # that a dead child may have left
LAST_CHUNKS = 64  # that a body may have left
GARBLED = "its process was killed: something in it had written into the socket through which it talks with the engine"


class Hearing:
    """See the module. ``tell``: an order for the pool's thread, from any thread; ``hook``: a job that another child has
    to do."""

    def __init__(
        self,
        brood: Brood,
        feeding: Feeding,
        parting: Parting,
        spec: Spec,
        runtime: Runtime,
        report: Report,
        tell: Callable[..., None],
        hook: Callable[[Job], None],
    ) -> None:
        self._brood = brood
        self._feeding = feeding
        self._parting = parting
        self._spec = spec
        self._runtime = runtime
        self._report = report
        self._tell = tell
        self._hook = hook
        self._oom_kills = 0
        self._last = False  # all children are gone: what they ask is not answered

    def begin(self) -> None:
        """The first child is about to come."""
        self._oom_kills = out_of_memory_kills()

    def listen(self, child: Child) -> None:
        if child.has_to_say:
            child.flush()
            self._brood.watch(child)
        self._read_output(child)  # first, while the one that wrote it is the current one
        self.take_all(child, child.heard())
        if child.talk_over:
            self._brood.unwatch(child.talk)
            self._brood.kill(child)  # it has died, or a body closed what it talks with
            self._feeding.take_back(child)  # that end may be told late: what it has not begun need not wait

    def read(self, child: Child) -> None:
        self._read_output(child)
        if child.output_over:
            self._brood.unwatch(child.output)

    def _read_output(self, child: Child) -> bool:
        """What was written past Python belongs to the job under way, as far as anybody can tell."""
        data = child.written()
        job = child.current or next(iter(child.jobs.values()), None)
        if data and job is not None:
            job.attempt.capture(data.decode("utf-8", "replace"))
        return bool(data)

    def _read_rest(self, child: Child) -> None:
        for _ in range(LAST_CHUNKS):
            if not self._read_output(child):
                return

    def take_all(self, child: Child, messages: Iterable[list[Any]]) -> None:
        for message in messages:
            try:
                self._take(child, *message)
            except Exception:  # of one message: the others tell how attempts have ended
                log.exception("a message of a child process could not be dealt with")

    def _take(self, child: Child, what: str, *values: Any) -> None:
        if what == "ready":
            self._brood.is_ready(child)
        elif what == "unfit":
            child.unfit = values[0]
        elif what == "ask":
            self._ask(child, *values)
        else:
            job = child.jobs.get(values[0])
            if job is not None:
                self._heard_of(child, job, what, *values[1:])

    def _heard_of(self, child: Child, job: Job, what: str, *values: Any) -> None:
        attempt = job.attempt
        if what == "start":
            child.current, job.started = job, True
            child.current_since = time.monotonic()
            if job.slots is not None:
                attempt.started_mono = child.current_since
                attempt.started_at = values[0]
        elif what == "said":
            attempt.capture(values[0])
        elif what == "log":
            log_again(attempt, values[0])
        else:
            # What it wrote is here before what it said; but not what a program that it left behind goes on to write.
            self._read_rest(child)
            del child.jobs[job.number]
            self._feeding.forget(attempt)
            child.current, child.idle_since = None, time.monotonic()
            child.done += 1
            leaving = values[0]
            if leaving is None:
                child.kill_at = None  # if it was to be stopped, it has ended before it knew
            self._ended(child, job, leaving, values[1:])
            if leaving is not None:
                self._parting.leave(child, leaving)
            else:
                self._parting.recycle(child)

    def _ended(self, child: Child, job: Job, leaving: str | None, values: tuple[Any, ...]) -> None:
        if job.answer is not None:
            tell = partial(computed, job, *values)
        elif job.slots is not None:
            tell = partial(self._report, job.attempt, with_log(job.attempt, outcome_of(values[0])))
        else:
            return
        if leaving is None:
            tell()
        else:
            child.held.append(tell)

    def _ask(self, child: Child, number: int, asked: int, method: str, args: list[Any]) -> None:
        if self._last:
            return  # nobody hears the answer
        tag = child.tag

        def answer(fine: bool, value: Any) -> None:
            self._tell("answer", tag, asked, fine, value)

        job = child.jobs.get(number)
        try:
            self._spec.answer(job.attempt if job is not None else None, method, args, answer)
        except Exception as error:  # such as no thread to be had: whoever asked must not wait for ever
            answer(False, failure_of(error))
            raise

    def hear_last(self, child: Child) -> None:
        """What has ended is not handed back to run again, and what has begun is in the history: even if it told us so
        while nobody listened any more."""
        self._last = True
        self.take_all(child, child.heard(most=MOST_CHUNKS))
        for tell in child.held:
            tell()

    def bury(self, child: Child, status: int | None) -> None:
        """A child has ended, with all that it started. Only what had begun is blamed for it."""
        self.take_all(child, child.heard(most=MOST_CHUNKS))
        self._read_rest(child)
        self._brood.remove(child)
        begun = [job for job in child.jobs.values() if job.started]
        self._feeding.take_back(child)
        self._feeding.put_back([job for job in child.jobs.values() if not job.started])
        kills, self._oom_kills = self._oom_kills, out_of_memory_kills()
        memory = cgroups.killed_for_memory(child.place)
        for job in begun:
            if child.lapsed and job.slots is not None:
                job.attempt.lost = job.attempt.told_lost = True
            limits = job.attempt.kind.options.limits if job.slots is not None else None
            over = memory == "limit"
            out = self._oom_kills > kills if child.place is None else memory == "system"
            how = told_end(status, limits, out_of_memory=out, over_memory=over)
            self._died(job, GARBLED if child.frames.broken else how)
        for tell in child.held:
            tell()
        self._brood.forget(child, status)

    def _died(self, job: Job, how: str) -> None:
        self._feeding.forget(job.attempt)
        hook = died(job, how, self._runtime, self._spec, self._report)
        if hook is not None:
            self._hook(hook)

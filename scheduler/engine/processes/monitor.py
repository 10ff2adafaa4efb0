"""What children say and write, and how they die: each end of an attempt, a function or a hook is told from here.

Used by the pool's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from scheduler.engine.attempt.outcomes import with_log
from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.child import cgroups
from scheduler.engine.processes.child_handle import ChildHandle, Job, describe_exit, out_of_memory_kills
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.endings import computed, died, replay_record
from scheduler.engine.processes.feeding import JobFeeder
from scheduler.engine.processes.host import ChildHost
from scheduler.engine.processes.messages import (
    Ask,
    Computed,
    Decided,
    Done,
    GarbledError,
    Hooked,
    Log,
    Message,
    Over,
    Ready,
    Said,
    Start,
    Unfit,
    checked,
)
from scheduler.engine.processes.parting import ChildStopper
from scheduler.engine.processes.queue import Report
from scheduler.model.checkpoint import failure_of

log = logging.getLogger("scheduler.engine")

MAX_MESSAGE_CHUNKS = 100_000  # that a dead child may have left
MAX_OUTPUT_CHUNKS = 64  # that a body may have left
GARBLED_TEXT = (
    "its process was killed: something in it had written into the socket through which it talks with the engine"
)


class ChildMonitor:
    """See the module. ``tell``: an order for the pool's thread, from any thread; ``hook``: a job that another child has
    to do."""

    def __init__(
        self,
        children: ChildRegistry,
        feeder: JobFeeder,
        stopper: ChildStopper,
        spec: ChildHost,
        runtime: Runtime,
        report: Report,
        tell: Callable[..., None],
        hook: Callable[[Job], None],
    ) -> None:
        self._children = children
        self._feeder = feeder
        self._stopper = stopper
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

    def listen(self, child: ChildHandle) -> None:
        if child.has_output:
            child.flush()
            self._children.watch(child)
        self._read_output(child)  # first, while the one that wrote it is the current one
        self.hear(child)

    def hear(self, child: ChildHandle) -> None:
        """Take what it says. One that speaks no more, or garbled, is ended."""
        self.take_all(child, child.heard())
        if child.talk_over:
            self._children.unwatch(child.talk)
            self._children.kill(child)  # it has died, or a body closed what it talks with
            self._feeder.take_back(child)  # that end may be told late: what it has not begun need not wait

    def read(self, child: ChildHandle) -> None:
        self._read_output(child)
        if child.output_over:
            self._children.unwatch(child.output)

    def _read_output(self, child: ChildHandle) -> bool:
        """What was written past Python belongs to the job under way, as far as anybody can tell."""
        data = child.written()
        job = child.current or next(iter(child.jobs.values()), None)
        if data and job is not None:
            job.attempt.capture(data.decode("utf-8", "replace"))
        return bool(data)

    def _read_rest(self, child: ChildHandle) -> None:
        for _ in range(MAX_OUTPUT_CHUNKS):
            if not self._read_output(child):
                return

    def take_all(self, child: ChildHandle, messages: Iterable[Message]) -> None:
        for message in messages:
            try:
                self._take(child, message)
            except GarbledError as error:
                log.warning("child process %d is ended: %s", child.pid, error)
                child.break_off()
                return
            except Exception:  # of one message: the others tell how attempts have ended
                log.exception("a message of a child process could not be dealt with")

    def _take(self, child: ChildHandle, message: Message) -> None:
        if isinstance(message, Ready):
            self._children.is_ready(child)
        elif isinstance(message, Unfit):
            child.init_error = message.why
        elif isinstance(message, Ask):
            self._ask(child, message.job, message.asked, message.method, message.args)
        else:
            assert isinstance(message, Start | Said | Log | Decided | Over)
            job = child.jobs.get(message.job)
            if job is not None:
                self._heard_of(child, job, message)

    def _heard_of(self, child: ChildHandle, job: Job, message: Start | Said | Log | Decided | Over) -> None:
        attempt = job.attempt
        if isinstance(message, Start):
            child.current, job.started = job, True
            child.current_since = time.monotonic()
            if job.slots is not None:
                attempt.started_mono = child.current_since
                attempt.started_at = message.at
                self._runtime.began(attempt.claimed.id, attempt.claimed.claim)
        elif isinstance(message, Said):
            attempt.capture(message.text)
        elif isinstance(message, Log):
            replay_record(attempt, message.fields)
        elif isinstance(message, Decided):
            if job.slots is None or not job.started:
                raise GarbledError("it told the end of what it does not do")
            attempt.decided = checked(message.outcome, attempt.claimed)
            child.decided_at = time.monotonic()
        else:
            tell = self._end_of(job, message)
            # What it wrote is here before what it said; but not what a program that it left behind goes on to write.
            self._read_rest(child)
            del child.jobs[job.number]
            self._feeder.forget(attempt)
            child.current, child.idle_since, child.decided_at = None, time.monotonic(), None
            child.done += 1
            if message.leaving is None:
                child.kill_at = None  # if it was to be stopped, it has ended before it knew
                tell()
                self._stopper.recycle(child)
            else:
                child.held.append(tell)
                self._stopper.leave(child, message.leaving)

    def _end_of(self, job: Job, message: Over) -> Callable[[], None]:
        """What tells of it. Raises GarbledError for an end that is not this job's."""
        if job.started and isinstance(message, Computed) and job.answer is not None:
            return partial(computed, job, message.fine, message.value)
        if job.started and isinstance(message, Done) and job.slots is not None:
            outcome = checked(message.outcome, job.attempt.claimed)
            return lambda: self._report(job.attempt, with_log(job.attempt, outcome))
        if job.started and isinstance(message, Hooked) and job.answer is None and job.slots is None:
            return lambda: None
        raise GarbledError("it told the end of what it does not do")

    def _ask(self, child: ChildHandle, number: int, asked: int, method: str, args: list[Any]) -> None:
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

    def read_last(self, child: ChildHandle) -> None:
        """What has ended is not handed back to run again, and what has begun is in the history: even if it told us so
        while nobody listened any more."""
        self._last = True
        self.take_all(child, child.heard(most=MAX_MESSAGE_CHUNKS))
        for tell in child.held:
            tell()

    def on_exit(self, child: ChildHandle, status: int | None) -> None:
        """A child has ended, with all that it started. Only what had begun is blamed for it."""
        self.take_all(child, child.heard(most=MAX_MESSAGE_CHUNKS))
        self._read_rest(child)
        self._children.remove(child)
        begun = [job for job in child.jobs.values() if job.started]
        self._feeder.take_back(child)
        self._feeder.put_back([job for job in child.jobs.values() if not job.started])
        kills, self._oom_kills = self._oom_kills, out_of_memory_kills()
        memory = cgroups.killed_for_memory(child.place)
        for job in begun:
            if child.lapsed and job.slots is not None:
                job.attempt.lost = job.attempt.loss_delivered = True
            limits = job.attempt.kind.options.limits if job.slots is not None else None
            over = memory == "limit"
            out = self._oom_kills > kills if child.place is None else memory == "system"
            how = describe_exit(status, limits, out_of_memory=out, over_memory=over)
            self._died(job, GARBLED_TEXT if child.frames.broken else how)
        for tell in child.held:
            tell()
        self._children.forget(child, status)

    def _died(self, job: Job, how: str) -> None:
        self._feeder.forget(job.attempt)
        hook = died(job, how, self._runtime, self._spec, self._report)
        if hook is not None:
            self._hook(hook)

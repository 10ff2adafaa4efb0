"""Reads what children send and write, notes their deaths, and ends them. Used by the pool's thread.

Each end of an attempt, a function or a hook is reported from here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.outcomes import with_log
from scheduler.engine.attempt.place import MAX_STACK_CHARS, spent
from scheduler.engine.child import cgroups
from scheduler.engine.processes.child_handle import ChildHandle, ChildJob, describe_exit, out_of_memory_kills
from scheduler.engine.processes.children import ChildRegistry, Event, Exited, Readable, Written
from scheduler.engine.processes.host import ChildHost, replay_record, resolve_pickled
from scheduler.engine.processes.messages import (
    Ask,
    ChildMessage,
    Computed,
    Decided,
    DoneMessage,
    GarbledError,
    Hooked,
    LogMessage,
    OutputMessage,
    Over,
    Ready,
    Stands,
    StartMessage,
    TracedMessage,
    UnfitMessage,
    checked,
)
from scheduler.engine.processes.orders import Asker
from scheduler.engine.processes.queue import JobQueue

log = logging.getLogger("scheduler.engine")

MAX_MESSAGE_CHUNKS = 100_000  # that a dead child may have left
MAX_PLACE_CHARS = 1000
MAX_OUTPUT_CHUNKS = 64  # that a handler may have left
GARBLED_TEXT = (
    "its process was killed: something in it had written into the socket through which it talks with the engine"
)


class ChildMonitor:
    """See the module."""

    def __init__(self, children: ChildRegistry, queue: JobQueue, host: ChildHost) -> None:
        self._children = children
        self._queue = queue
        self._host = host
        self._oom_kills = 0
        self._last = False  # all children are gone: their requests are not answered

    def begin(self) -> None:
        """Call it before the first child is started."""
        self._oom_kills = out_of_memory_kills()

    def handle(self, event: Event) -> None:
        match event:
            case Readable(child):
                self._on_readable(child)
            case Written(child):
                self._read_output(child)
                if child.output_over:
                    self._children.unwatch(child.output)
            case Exited(child, status):
                self.on_exit(child, status)

    # what a child sends and writes

    def _on_readable(self, child: ChildHandle) -> None:
        if child.has_output:
            child.flush()
            self._children.watch(child)
        self._read_output(child)  # first, while the job that wrote it is the current one
        self.receive(child)

    def receive(self, child: ChildHandle) -> None:
        """Handle what it has sent. A child that closed its socket, or sent garbage, is killed."""
        self.handle_all(child, child.received())
        if child.talk_over:
            self._children.unwatch(child.talk)
            self._children.kill(child)  # it has died, or a handler closed its socket
            self._queue.take_back(child)  # its exit may come late: what it has not begun need not wait

    def _read_output(self, child: ChildHandle) -> bool:
        """Add what was written past Python to the output of the job under way, to which it most likely belongs."""
        data = child.written()
        job = child.current or next(iter(child.jobs.values()), None)
        if data and job is not None:
            job.attempt.capture(data.decode("utf-8", "replace"))
        return bool(data)

    def _read_rest(self, child: ChildHandle) -> None:
        for _ in range(MAX_OUTPUT_CHUNKS):
            if not self._read_output(child):
                return

    def handle_all(self, child: ChildHandle, messages: Iterable[ChildMessage]) -> None:
        for message in messages:
            try:
                self._handle_message(child, message)
            except GarbledError as error:
                log.warning("child process %d is ended: %s", child.pid, error)
                child.break_off()
                return
            except Exception:  # of one message: the others report how attempts have ended
                log.exception("a message of a child process could not be dealt with")

    def _handle_message(self, child: ChildHandle, message: ChildMessage) -> None:
        match message:
            case Ready():
                self._children.is_ready(child)
            case UnfitMessage():
                child.init_error = message.why
            case Ask():
                self._ask(child, message)
            case StartMessage() | OutputMessage() | LogMessage() | Stands() | TracedMessage() | Decided() | Over():
                job = child.jobs.get(message.job)
                if job is not None:
                    self._handle_job(child, job, message)

    def _handle_job(
        self,
        child: ChildHandle,
        job: ChildJob,
        message: StartMessage | OutputMessage | LogMessage | Stands | TracedMessage | Decided | Over,
    ) -> None:
        attempt = job.attempt
        match message:
            case StartMessage():
                child.current, job.started = job, True
                child.current_since = time.monotonic()
                if job.is_attempt:
                    attempt.started_mono = child.current_since
                    attempt.started_at = message.at
                    self._host.runtime.began(attempt.claimed.id, attempt.claimed.claim)
            case OutputMessage():
                attempt.capture(message.text)
            case LogMessage():
                replay_record(attempt, message.fields)
            case Stands():
                attempt.child_moved |= message.moved
                attempt.child_place = message.where[:MAX_PLACE_CHARS], message.stack[-MAX_STACK_CHARS:]
                child.asked = False
                if "\0" in message.where + message.stack:
                    raise GarbledError("it said where it stands in what cannot be stored")
            case TracedMessage():
                if attempt.trace is not None:
                    attempt.trace.receive(message.note)
            case Decided():
                if not job.is_attempt or not job.started:
                    raise GarbledError("it reported the end of what it does not do")
                attempt.decided = checked(message.outcome, attempt.claimed)
                child.decided_at = time.monotonic()
            case Over():
                self._job_over(child, job, message)

    def _job_over(self, child: ChildHandle, job: ChildJob, message: Over) -> None:
        _check_end(job, message)
        # Its output was written before it sent this; a program that it left behind may go on to write.
        self._read_rest(child)
        del child.jobs[job.number]
        self._queue.forget(job.attempt)
        child.current, child.idle_since, child.decided_at = None, time.monotonic(), None
        child.completed += 1
        if message.leaving is None:
            child.kill_at = None  # if it was to be stopped, it has ended before it knew
            self._conclude(job, message)
            if 0 < self._host.options.recycle_tasks <= child.completed:
                self.retire(child, "tasks")
        else:
            child.deferred_reports.append((job, message))
            self._leave(child, message.leaving)

    def _conclude(self, job: ChildJob, message: Over) -> None:
        """Report the end of a job."""
        match message:
            case Computed():
                resolve_pickled(job, message.fine, message.value)
            case DoneMessage():
                self._host.report(job.attempt, with_log(job.attempt, message.outcome))

    def _ask(self, child: ChildHandle, message: Ask) -> None:
        if self._last:
            return  # the child is gone
        asker, job = Asker(child.tag, message.asked), child.jobs.get(message.job)
        try:
            self._host.answer(job.attempt if job is not None else None, message.method, message.args, asker)
        except Exception as error:  # such as no thread to be had: the attempt must not wait for ever
            self._host.reply_error(asker, error)
            raise

    # how it ended

    def read_last(self, child: ChildHandle) -> None:
        """Report what the child sent while the pool was closing: what has ended must not run again, and what has begun
        is in the history."""
        self._last = True
        self.handle_all(child, child.received(max_chunks=MAX_MESSAGE_CHUNKS))
        self._report_deferred(child)

    def _report_deferred(self, child: ChildHandle) -> None:
        for job, message in child.deferred_reports:
            self._conclude(job, message)

    def on_exit(self, child: ChildHandle, status: int | None) -> None:
        """A child has ended, with all that it started. Only jobs that had begun are blamed for it."""
        self.handle_all(child, child.received(max_chunks=MAX_MESSAGE_CHUNKS))
        self._read_rest(child)
        self._children.remove(child)
        begun = [job for job in child.jobs.values() if job.started]
        self._queue.take_back(child)
        self._queue.put_back([job for job in child.jobs.values() if not job.started])
        kills, self._oom_kills = self._oom_kills, out_of_memory_kills()
        memory = cgroups.killed_for_memory(child.place)
        for job in begun:
            if child.lease_expired and job.is_attempt:
                job.attempt.lost = job.attempt.loss_delivered = True
            limits = job.attempt.kind.options.limits if job.is_attempt else None
            over = memory == "limit"
            out = self._oom_kills > kills if child.place is None else memory == "system"
            how = describe_exit(status, limits, out_of_memory=out, over_memory=over)
            self._died(job, GARBLED_TEXT if child.frames.broken else how)
        self._report_deferred(child)
        self._children.forget(child, status)

    def _died(self, job: ChildJob, how: str) -> None:
        self._queue.forget(job.attempt)
        try:
            hook = self._host.died(job, how)
        except Exception as error:  # of one job: the others are still to be reported
            self._host.failed(job, error)
            return
        if hook is not None:
            self._queue.add(hook)

    def look(self, attempt: Attempt) -> None:
        """Ask where an attempt, or a function that it waits for, stands."""
        for child in self._children.children.values():
            job = child.current
            if job is None or job.attempt is not attempt:
                continue
            used = spent(f"/proc/{child.pid}/schedstat")
            if child.asked:  # and has not answered: its code keeps the interpreter
                attempt.child_moved |= used != child.spent
                attempt.child_place = "code outside Python, which keeps the interpreter", ""
            child.spent, child.asked = used, True
            self._children.say(child, "look", job.number)

    # ending it

    def stop(self, child: ChildHandle, job: ChildJob, why: str) -> None:
        """End a job: the child is asked to, and its group gets SIGTERM; after the grace period, SIGKILL."""
        self._queue.take_back(child)
        if job.number not in child.jobs or child.kill_at is not None:
            return  # it had not begun, or is being stopped already
        child.kill_at = time.monotonic() + self._host.options.grace
        self._children.say(child, "stop", job.number, why)

    def retire(self, child: ChildHandle, why: str) -> None:
        """Have a child end in good order once it has nothing to do: it may have begun the next job."""
        self._queue.take_back(child)
        child.stopping = why
        if not child.jobs:
            child.close_work()
            child.kill_at = time.monotonic() + self._host.options.grace

    def _leave(self, child: ChildHandle, why: str) -> None:
        """The child has sent word that it takes nothing more."""
        self._queue.take_back(child)
        child.stopping = why
        if why in ("stopped", "processes"):
            self._children.kill(child)
        else:
            child.kill_at = time.monotonic() + self._host.options.grace


def _check_end(job: ChildJob, message: Over) -> None:
    """Raises GarbledError for an end that is not this job's."""
    if job.started and isinstance(message, Computed) and job.future is not None:
        return
    if job.started and isinstance(message, DoneMessage) and job.is_attempt:
        checked(message.outcome, job.attempt.claimed)
        return
    if job.started and isinstance(message, Hooked) and job.future is None and not job.is_attempt:
        return
    raise GarbledError("it reported the end of what it does not do")

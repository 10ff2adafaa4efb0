"""The pool of child processes: attempts of kinds with ``isolation="process"``, suspects, and functions of ``ctx.cpu``.

One thread looks after all children. The levels share them: the highest level that waits gets the next free child, but
every fourth time a lower one does, in turn; and high tasks get one child more when lower ones have taken them all.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from scheduler.engine import cgroups
from scheduler.engine.attempt import Attempt
from scheduler.engine.brood import Brood
from scheduler.engine.children import Child, Job, out_of_memory_kills, told_end
from scheduler.engine.endings import answer_to, computed, died, log_again, outcome_of
from scheduler.engine.functions import Answer
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processspec import Spec
from scheduler.engine.runtime import Runtime
from scheduler.engine.verdict import with_log
from scheduler.engine.waiting import Report, Waiting
from scheduler.errors import ProcessDied
from scheduler.model.checkpoint import failure_of
from scheduler.model.reference import reference_of
from scheduler.ports import SECOND, Spawner

if TYPE_CHECKING:
    from scheduler.model.registry import Kind

log = logging.getLogger("scheduler.engine")

QUICK = 0.002  # seconds: kinds that take less on average are given to a child several at a time
AHEAD = 0.02  # seconds of work that a child may have waiting
MOST_AHEAD = 64
STUCK = 0.02  # seconds that a body may run before what waits behind it is taken back
MOST_CHUNKS = 100_000  # that a dead child may have left
LAST_CHUNKS = 64  # that a body may have left
START_PATIENCE = 120.0  # seconds that a child may take to import the tasks' modules
DEAF = 10.0  # seconds that a child may take to begin what it was given, while it does nothing else
LEASE_LOOK = 0.1  # seconds between looks whether the lease was extended, at least
IDLE = 300.0  # seconds after which a child that has nothing to do is ended
HOOK_PATIENCE = 60.0  # seconds that a hook may take
GARBLED = "its process was killed: something in it had written into the socket through which it talks with the engine"
HIGH = 0


class ProcessPool:
    """See the module. Its thread, the fork server and the children start when there is something to do."""

    def __init__(self, options: ProcessOptions, spec: Spec, runtime: Runtime, report: Report, spawn: Spawner) -> None:
        self.options = options
        self.spec = spec
        self.means: dict[str, float] = {}
        self.brood = Brood(self._listen, self._read, self._bury)
        self._waiting = Waiting(spec, runtime, report)
        self.levels = self._waiting.levels
        self._runtime = runtime
        self._report = report
        self._spawn = spawn
        self._orders: deque[tuple[Any, ...]] = deque()
        self._where: dict[int, tuple[Child, Job]] = {}  # attempts, by their id() here
        self._bell = -1
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._oom_kills = 0
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
        self._oom_kills = out_of_memory_kills()
        while not self._closed:
            try:
                self.brood.wait(self._wait())
                self._obey()
                self._look_at_time()
                self._grow()
                self._feed()
                self._tell_lease()
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
            self._hear_last(child)
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

    def _hear_last(self, child: Child) -> None:
        """What has ended is not handed back to run again, and what has begun is in the history: even if it told us so
        while nobody listened any more."""
        self._take_all(child, child.heard(most=MOST_CHUNKS))
        for tell in child.held:
            tell()

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
        found = self._where.get(id(attempt))
        if found is None:
            return  # it waits, or has ended
        child, job = found
        self._stop(child, job, "lost" if attempt.lost else "cancelled")

    def _withdraw(self, job: Job) -> None:
        """Whoever asked for this function waits for its end, not for its value."""
        job.withdrawn = True
        child = next((c for c in self.brood.children.values() if job.number in c.jobs), None)
        if child is not None:
            self._stop(child, job, "cancelled")
        else:
            self._waiting.drop(job)

    def _stop(self, child: Child, job: Job, why: str) -> None:
        """End what a job does: at first it is asked to, and its group gets SIGTERM; after the grace period, SIGKILL."""
        self._take_back(child)
        if job.number not in child.jobs or child.kill_at is not None:
            return  # it had not begun, or is being stopped already
        child.kill_at = time.monotonic() + self.options.grace
        self.brood.say(child, "stop", job.number, why)

    # time

    def _wait(self) -> float | None:
        """Seconds until there is something to do, if nothing happens."""
        if self._orders:
            return 0.0
        now = time.monotonic()
        moments = []
        for child in self.brood.children.values():
            if child.kill_at is not None:
                moments.append(child.kill_at)
            if not child.ready:
                moments.append(now + 0.2)  # those who wait for it are told that it goes on
            elif child.current is None:
                if not child.on_its_way_out:
                    moments.append(child.idle_since + (DEAF if child.jobs else IDLE))
            else:
                if child.waiting:
                    moments.append(child.current_since + STUCK)
                deadline = _deadline(child)
                if deadline is not None and child.kill_at is None:
                    moments.append(deadline)
        left = self._runtime.lapses_at - now
        if 0 < left < float("inf") and self.brood.children:
            moments.append(now + max(LEASE_LOOK, left / 4))
        if self.brood.again_at > now:
            moments.append(self.brood.again_at)
        if not self.brood.children and self.brood.nursery is not None:
            moments.append(self.brood.empty_since + IDLE)
        return max(0.0, min(moments) - now) if moments else None

    def _look_at_time(self) -> None:
        now = time.monotonic()
        if self.brood.children and not any(child.ready for child in self.brood.children.values()):
            # Importing the tasks' modules may take longer than the engine lets tasks wait: they are about to start.
            for attempt in self._waiting.attempts():
                attempt.handed_at = now
        for child in list(self.brood.children.values()):
            job = child.current
            if child.kill_at is not None and now >= child.kill_at:
                child.kill_at = None
                self.brood.kill(child)
            elif not child.ready:
                if now > child.began + START_PATIENCE and child.unfit is None:
                    child.unfit = f"not ready after {START_PATIENCE:g} s"
                    self.brood.kill(child)
            elif job is None:
                if child.on_its_way_out:
                    continue
                if child.jobs and now > child.idle_since + DEAF:
                    self._take_all(child, child.heard())  # it may have begun while this process stood still
                    if child.jobs and child.current is None and not child.on_its_way_out:
                        # Somebody has stopped it, or what a body left there never lets Python run.
                        log.warning("child process %d does not begin what it was given: it is ended", child.pid)
                        self._take_back(child)
                        self.brood.kill(child)
                elif not child.jobs and now > child.idle_since + IDLE:
                    self._retire(child, "idle")
            else:
                if child.waiting and now > child.current_since + STUCK:
                    self._take_back(child)
                deadline = _deadline(child)
                if deadline is not None and now >= deadline and child.kill_at is None and not child.killed:
                    job.attempt.timed_out = True
                    self._stop(child, job, "timed_out")
        if not self.brood.children and self.brood.nursery is not None and now > self.brood.empty_since + IDLE:
            self.brood.drop_nursery()

    def _tell_lease(self) -> None:
        """Should this process stand still when its lease runs out, what others may begin then ends without it."""
        until = self._runtime.lapses_at
        if not self.brood.children or until <= time.monotonic():
            return
        for child in self.brood.children.values():
            if child.told_until != until:
                child.told_until = until
                self.brood.say(child, "lease", until)
        self.brood.kill_at(until + self.options.grace)

    # children come

    def _grow(self) -> None:
        """Start children while more work waits than there are that could take it."""
        if self.brood.out_of_order:
            return
        waits = [self._waiting.count(level) for level in (0, 1, 2)]
        if not any(waits):
            return
        living = [c for c in self.brood.children.values() if c.stopping is None and not c.killed]
        common = [c for c in living if c.only is None]
        free = sum(1 for c in common if not c.jobs)
        missing = self.options.children - len(common)
        for _ in range(min(sum(waits) - free, missing)):
            if not self.brood.start(None, self.spec.message()):
                return
        taken = missing <= 0 and all(c.current is not None for c in common)
        lower = any(c.current is not None and c.current.level != HIGH for c in common)
        if waits[HIGH] and taken and lower and all(c.only is None for c in living):
            self.brood.start(HIGH, self.spec.message())

    # work goes out

    def _feed(self) -> None:
        takers = [c for c in self.brood.children.values() if c.ready and not c.on_its_way_out]
        takers.sort(key=lambda c: len(c.jobs))
        while takers:
            for child in list(takers):
                if not self._give(child):
                    takers.remove(child)

    def _give(self, child: Child) -> bool:
        """Give one job to a child, if it has room for one that waits."""
        if child.jobs and (child.by_itself or len(child.jobs) >= MOST_AHEAD):
            return False
        job = self._waiting.next(child.only)
        if job is None:
            return False
        mean = self.means.get(job.attempt.kind.name, 1.0) if job.slots is not None and not job.alone else 1.0
        too_long = child.jobs and (mean > QUICK or len(child.jobs) * mean > AHEAD)
        if too_long or not child.give(job):
            self._put_back([job])
            return False
        child.by_itself = mean > QUICK
        if len(child.jobs) == 1:
            child.idle_since = time.monotonic()
        self.brood.watch(child)
        if job.slots is not None:
            self._where[id(job.attempt)] = (child, job)
        return True

    def _put_back(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._where.pop(id(job.attempt), None)
        self._waiting.put_back(jobs)

    def _take_back(self, child: Child) -> None:
        self._put_back(child.take_back())

    # what children say

    def _listen(self, child: Child) -> None:
        if child.has_to_say:
            child.flush()
            self.brood.watch(child)
        self._read_output(child)  # first, while the one that wrote it is the current one
        self._take_all(child, child.heard())
        if child.talk_over:
            self.brood.unwatch(child.talk)
            self.brood.kill(child)  # it has died, or a body closed what it talks with

    def _read(self, child: Child) -> None:
        self._read_output(child)
        if child.output_over:
            self.brood.unwatch(child.output)

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

    def _take_all(self, child: Child, messages: Iterable[list[Any]]) -> None:
        for message in messages:
            try:
                self._take(child, *message)
            except Exception:  # of one message: the others tell how attempts have ended
                log.exception("a message of a child process could not be dealt with")

    def _take(self, child: Child, what: str, *values: Any) -> None:
        if what == "ready":
            self.brood.is_ready(child)
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
            self._where.pop(id(attempt), None)
            child.current, child.idle_since = None, time.monotonic()
            child.done += 1
            leaving = values[0]
            if leaving is None:
                child.kill_at = None  # if it was to be stopped, it has ended before it knew
            self._ended(child, job, leaving, values[1:])
            if leaving is not None:
                self._leave(child, leaving)
            elif 0 < self.options.recycle_tasks <= child.done:
                self._retire(child, "tasks")

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
        if self._closed:
            return  # it is to be killed: nobody hears the answer
        tag = child.tag

        def answer(fine: bool, value: Any) -> None:
            self.tell("answer", tag, asked, fine, value)

        job = child.jobs.get(number)
        try:
            self.spec.answer(job.attempt if job is not None else None, method, args, answer)
        except Exception as error:  # such as no thread to be had: whoever asked must not wait for ever
            answer(False, failure_of(error))
            raise

    # children go

    def _leave(self, child: Child, why: str) -> None:
        """It takes nothing more, by its own account."""
        self._take_back(child)
        child.stopping = why
        if why in ("stopped", "processes"):
            self.brood.kill(child)
        else:
            child.kill_at = time.monotonic() + self.options.grace

    def _retire(self, child: Child, why: str) -> None:
        """It is to end in good order, when it has nothing to do: it may have begun what waited behind the last."""
        self._take_back(child)
        child.stopping = why
        if not child.jobs:
            child.close_work()
            child.kill_at = time.monotonic() + self.options.grace

    def _bury(self, child: Child, status: int | None) -> None:
        """A child has ended, with all that it started. Only what had begun is blamed for it."""
        self._take_all(child, child.heard(most=MOST_CHUNKS))
        self._read_rest(child)
        self.brood.remove(child)
        begun = [job for job in child.jobs.values() if job.started]
        self._take_back(child)
        self._put_back([job for job in child.jobs.values() if not job.started])
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
        self.brood.forget(child, status)

    def _died(self, job: Job, how: str) -> None:
        self._where.pop(id(job.attempt), None)
        hook = died(job, how, self._runtime, self.spec, self._report)
        if hook is not None:
            self._waiting.add(hook)


def _forgetter(pool: ProcessPool) -> Callable[[], None]:
    known = weakref.ref(pool)

    def forget() -> None:
        found = known()
        if found is not None:
            found.brood.close_in_fork()

    return forget


def _deadline(child: Child) -> float | None:
    """Until when what the child does may take."""
    job = child.current
    if job is None or job.answer is not None:
        return None
    if job.slots is None:
        return child.current_since + HOOK_PATIENCE
    timeout = job.attempt.claimed.timeout
    if timeout is None or job.attempt.timed_out:
        return None
    return child.current_since + timeout / SECOND

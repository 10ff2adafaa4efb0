"""The pool of child processes: attempts of kinds with ``isolation="process"``, suspects, and functions of ``ctx.cpu``.

One thread looks after all children. The levels share them: the highest level that waits gets the next free child, but
every fourth time the lowest does; and high tasks get one child more when lower ones have taken them all.
"""

from __future__ import annotations

import logging
import os
import pickle
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from scheduler.engine.attempt import Attempt, Runtime, died_alone, ended_by, hand_back, with_log
from scheduler.engine.children import Child, Job, out_of_memory_kills, told_end
from scheduler.engine.logs import current_attempt
from scheduler.engine.nursery import Nursery
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processspec import Spec
from scheduler.errors import Cancelled, ProcessDied, SchedulerError
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.reference import reference_of
from scheduler.ports import SECOND, Spawner

if TYPE_CHECKING:
    from scheduler.model.registry import Kind

Report = Callable[[Attempt, Outcome], None]
log = logging.getLogger("scheduler.engine")

QUICK = 0.002  # seconds: kinds that take less on average are given to a child several at a time
AHEAD = 0.02  # seconds of work that a child may have waiting
MOST_AHEAD = 64
STUCK = 0.02  # seconds that a body may run before what waits behind it is taken back
LOWEST_EVERY = 4  # every so many picks the lowest level that waits goes first
MOST_CHUNKS = 100_000  # that a dead child may have left
START_PATIENCE = 120.0  # seconds that a child may take to import the tasks' modules
BACK_OFF = (1.0, 30.0)  # seconds until children are tried again when none got ready: first, most
IDLE = 300.0  # seconds after which a child that has nothing to do is ended
HOOK_PATIENCE = 60.0  # seconds that a hook may take
HIGH = 0


class ProcessSlots:
    """The slots of one level; all levels share one :class:`ProcessPool`."""

    def __init__(self, pool: ProcessPool, level: int, size: int) -> None:
        self.pool = pool
        self.level = level
        self._size = size
        self.waiting: deque[Attempt] = deque()
        pool.levels[level] = self

    @property
    def size(self) -> int:
        """0 while no child can be started: then nothing is claimed."""
        return 0 if self.pool.out_of_order else self._size

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)
        self.pool.wake()

    def nudge(self) -> None:
        self.pool.wake()

    def interrupt(self, attempt: Attempt) -> None:
        self.pool.tell("interrupt", attempt)

    def abandon(self) -> None:
        self.pool.close()

    def close(self) -> None:
        self.pool.close()


class ProcessPool:
    """See the module. Its thread, the fork server and the children start when there is something to do."""

    def __init__(self, options: ProcessOptions, spec: Spec, runtime: Runtime, report: Report, spawn: Spawner) -> None:
        self.options = options
        self.spec = spec
        self.levels: dict[int, ProcessSlots] = {}
        self.means: dict[str, float] = {}
        self._runtime = runtime
        self._report = report
        self._spawn = spawn
        self._orders: deque[tuple[Any, ...]] = deque()
        self._errands: dict[int, deque[Job]] = {}  # of the pool's own making, by level: functions and hooks
        self._children: dict[int, Child] = {}  # by tag
        self._by_pid: dict[int, Child] = {}
        self._where: dict[int, tuple[Child, Job]] = {}  # attempts, by their id() here
        self._nursery: Nursery | None = None
        self._nursery_idle = 0.0
        self._selector: selectors.BaseSelector | None = None
        self._bell = -1
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._numbers = 0
        self._picks = 0
        self._again_at = 0.0
        self._pause = 0.0
        self._oom_kills = 0
        self._told = ""
        self._pid = os.getpid()

    # from other threads

    @property
    def out_of_order(self) -> bool:
        """Whether the last children could not get ready and none is tried for a while."""
        return time.monotonic() < self._again_at

    def wake(self) -> None:
        """There may be something to do."""
        if self._closed or self._pid != os.getpid():
            return
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._closed:
                    self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                    os.register_at_fork(after_in_child=_forgetter(self))
                    self._thread = self._spawn(self._serve, "schedd-processes")
        os.eventfd_write(self._bell, 1)

    def tell(self, *order: Any) -> None:
        self._orders.append(order)
        if self._thread is not None:
            self.wake()

    def compute(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        """Run ``function(*args)`` in a child. Cancelling the future ends it there.

        Raises ConfigError for a function that cannot be imported, TypeError or PicklingError for such arguments.
        """
        name = reference_of(function)
        try:
            data = pickle.dumps(args)
        except Exception as error:
            raise TypeError(f"ctx.cpu: the arguments of {name} cannot be sent to another process: {error}") from error
        answer: Future[Any] = Future()
        job = Job(0, attempt.pool, ("cpu", name, data), attempt)
        job.answer = answer
        if self._closed:
            answer.set_exception(ProcessDied("the engine has stopped"))
            return answer
        answer.add_done_callback(lambda done: self.tell("withdrawn", job) if done.cancelled() else None)
        self._orders.append(("errand", job))
        self.wake()
        return answer

    def can_run(self, kind: Kind) -> bool:
        """Whether a child can run this kind, which was not made for it."""
        return not self._closed and self.spec.can_run(kind)

    def close(self) -> None:
        """Kill every child, with everything that it started, and wait for their end. Nothing is reported any more."""
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

    # the thread

    def _serve(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ, self._rung)
        self._oom_kills = out_of_memory_kills()
        while not self._closed:
            try:
                for key, _ in self._selector.select(self._wait()):
                    key.data()
                self._obey()
                self._look_at_time()
                self._grow()
                self._feed()
            except Exception:
                log.exception("looking after the child processes failed; going on")
                time.sleep(0.05)
        self._end()

    def _rung(self) -> None:
        os.eventfd_read(self._bell)

    def _end(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
        gone = ProcessDied("the engine has stopped")
        for child in self._children.values():
            for job in child.jobs.values():
                _answer(job, error=gone)
            child.close()
        for errands in self._errands.values():
            for job in errands:
                _answer(job, error=gone)
        while self._orders:
            what, *values = self._orders.popleft()
            if what == "errand":
                _answer(values[0], error=gone)
        assert self._selector is not None
        self._selector.close()

    def _obey(self) -> None:
        while self._orders:
            what, *values = self._orders.popleft()
            if what == "interrupt":
                self._interrupt(values[0])
            elif what == "errand":
                self._errands.setdefault(values[0].level, deque()).append(values[0])
            elif what == "withdrawn":
                self._withdraw(values[0])
            elif what == "answer":
                tag, asked, fine, value = values
                if tag in self._children:
                    self._say(self._children[tag], "answer", asked, fine, value)

    def _interrupt(self, attempt: Attempt) -> None:
        """It was cancelled, or its worker lost it."""
        found = self._where.get(id(attempt))
        if found is None:
            return  # it waits, or has ended
        child, job = found
        self._stop(child, job, "lost" if attempt.lost else "cancelled")

    def _withdraw(self, job: Job) -> None:
        child = next((c for c in self._children.values() if job.number in c.jobs), None)
        if child is not None:
            self._stop(child, job, "cancelled")
            return
        for errands in self._errands.values():
            if job in errands:
                errands.remove(job)

    def _stop(self, child: Child, job: Job, why: str) -> None:
        """End what a job does: at first it is asked to, and its group gets SIGTERM; after the grace period, SIGKILL."""
        self._take_back(child)
        if job.number not in child.jobs or child.kill_at is not None:
            return  # it had not begun, or is being stopped already
        child.kill_at = time.monotonic() + self.options.grace
        self._say(child, "stop", job.number, why)

    def _say(self, child: Child, *message: Any) -> None:
        child.say(*message)
        self._watch(child)

    def _watch(self, child: Child) -> None:
        assert self._selector is not None
        if child.talk_over:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_to_say else 0)
        if self._selector.get_key(child.talk).events != events:
            self._selector.modify(child.talk, events, self._listener(child))

    # time

    def _wait(self) -> float | None:
        """Seconds until there is something to do, if nothing happens."""
        if self._orders:
            return 0.0
        now = time.monotonic()
        moments = []
        for child in self._children.values():
            if child.kill_at is not None:
                moments.append(child.kill_at)
            if not child.ready:
                moments.append(now + 0.2)  # those who wait for it are told that it goes on
            elif child.current is None:
                moments.append(child.idle_since + IDLE)
            else:
                if child.waiting:
                    moments.append(child.current_since + STUCK)
                deadline = _deadline(child)
                if deadline is not None and child.kill_at is None:
                    moments.append(deadline)
        if self._again_at > now:
            moments.append(self._again_at)
        if not self._children and self._nursery is not None:
            moments.append(self._nursery_idle + IDLE)
        return max(0.0, min(moments) - now) if moments else None

    def _look_at_time(self) -> None:
        now = time.monotonic()
        if self._children and not any(child.ready for child in self._children.values()):
            # Importing the tasks' modules may take longer than the engine lets tasks wait: they are about to start.
            for slots in self.levels.values():
                for attempt in list(slots.waiting):
                    attempt.handed_at = now
        for child in list(self._children.values()):
            job = child.current
            if child.kill_at is not None and now >= child.kill_at:
                child.kill_at = None
                self._kill(child)
            elif not child.ready:
                if now > child.began + START_PATIENCE and child.unfit is None:
                    child.unfit = f"not ready after {START_PATIENCE:g} s"
                    self._kill(child)
            elif job is None:
                if not child.jobs and now > child.idle_since + IDLE and child.stopping is None:
                    self._retire(child, "idle")
            else:
                if child.waiting and now > child.current_since + STUCK:
                    self._take_back(child)
                deadline = _deadline(child)
                if deadline is not None and now >= deadline and child.kill_at is None and not child.killed:
                    job.attempt.timed_out = True
                    self._stop(child, job, "timed_out")
        if not self._children and self._nursery is not None and now > self._nursery_idle + IDLE:
            self._drop_nursery()

    # children come

    def _waits(self, level: int) -> int:
        return len(self.levels[level].waiting if level in self.levels else ()) + len(self._errands.get(level, ()))

    def _grow(self) -> None:
        """Start children while more work waits than there are that could take it."""
        if self.out_of_order:
            return
        waits = [self._waits(level) for level in (0, 1, 2)]
        if not any(waits):
            return
        living = [c for c in self._children.values() if c.stopping is None and not c.killed]
        common = [c for c in living if c.only is None]
        free = sum(1 for c in common if not c.jobs)
        missing = self.options.children - len(common)
        for _ in range(min(sum(waits) - free, missing)):
            self._start(None)
        taken = missing <= 0 and all(c.current is not None for c in common)
        lower = any(c.current is not None and c.current.level != HIGH for c in common)
        if waits[HIGH] and taken and lower and all(c.only is None for c in living):
            self._start(HIGH)

    def _start(self, only: int | None) -> None:
        assert self._selector is not None
        if self._nursery is None:
            self._nursery = Nursery()
            self._selector.register(self._nursery.control, selectors.EVENT_READ, self._hear_nursery)
        self._numbers += 1
        child = Child(self._numbers, only)
        child.began = time.monotonic()
        self._children[child.tag] = child
        try:
            self._nursery.start(child.tag, child.given)
        except OSError:
            self._hear_nursery()  # it has died
            return
        finally:
            child.given_away()
        self._selector.register(child.talk, selectors.EVENT_READ, self._listener(child))
        self._selector.register(child.output, selectors.EVENT_READ, self._reader(child))
        child.say("spec", self.spec.message())
        self._watch(child)

    def _hear_nursery(self) -> None:
        if self._nursery is None:
            return
        try:
            for what, *values in self._nursery.events():
                if what == "started":
                    child = self._children[values[0]]
                    child.pid = values[1]
                    self._by_pid[child.pid] = child
                    if child.killed:
                        self._nursery.kill(child.pid)
                elif what == "ended":
                    self._bury(self._by_pid[values[0]], values[1])
                else:
                    child = self._children[values[0]]
                    child.unfit = values[1]
                    self._bury(child, None)
        except EOFError:
            log.error("the process that forks child processes has died, and they with it")
            self._drop_nursery()
            for child in list(self._children.values()):
                self._bury(child, None)

    def _drop_nursery(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            assert self._selector is not None
            self._selector.unregister(nursery.control)
            nursery.close()

    # work goes out

    def _feed(self) -> None:
        takers = [c for c in self._children.values() if c.ready and not c.on_its_way_out]
        takers.sort(key=lambda c: len(c.jobs))
        while takers:
            for child in list(takers):
                if not self._give(child):
                    takers.remove(child)

    def _give(self, child: Child) -> bool:
        """Give one job to a child, if it has room for one that waits."""
        if child.jobs and (child.by_itself or len(child.jobs) >= MOST_AHEAD):
            return False
        job = self._next(child.only)
        if job is None:
            return False
        mean = self.means.get(job.attempt.kind.name, 1.0) if job.slots is not None and not job.alone else 1.0
        too_long = child.jobs and (mean > QUICK or len(child.jobs) * mean > AHEAD)
        if too_long or not child.give(job):
            self._put_back([job])
            return False
        child.by_itself = mean > QUICK
        self._watch(child)
        if job.slots is not None:
            self._where[id(job.attempt)] = (child, job)
        return True

    def _next(self, only: int | None) -> Job | None:
        levels = [level for level in ((0, 1, 2) if only is None else (only,)) if self._waits(level)]
        if not levels:
            return None
        self._picks += 1
        for level in levels if self._picks % LOWEST_EVERY else reversed(levels):
            errands = self._errands.get(level)
            while errands:
                errand = errands.popleft()
                if errand.answer is None or not errand.answer.done():
                    return self._numbered(errand)
            slots = self.levels.get(level)
            while slots is not None and slots.waiting:
                try:
                    attempt = slots.waiting.popleft()
                except IndexError:
                    break  # the engine has just taken it back
                if attempt.lost or self._runtime.monotonic() >= self._runtime.lapses_at:
                    self._report(attempt, hand_back(attempt, self._runtime.now()))
                    continue
                if attempt.cancelled:
                    self._report(attempt, ended_by(attempt, self._runtime, Cancelled("cancelled"))[0])
                    continue
                kind = attempt.kind
                about = (
                    kind.name,
                    *self.spec.reference(kind),
                    tuple(attempt.claimed),
                    attempt.start_by,
                    self._offset(),
                )
                job = Job(0, level, ("run", *about), attempt)
                job.slots = slots
                job.alone = attempt.apart
                return self._numbered(job)
        return None

    def _numbered(self, job: Job) -> Job:
        self._numbers += 1
        job.number = self._numbers
        return job

    def _offset(self) -> int:
        return self._runtime.now() - time.time_ns() // 1000

    def _put_back(self, jobs: list[Job]) -> None:
        for job in reversed(jobs):
            self._where.pop(id(job.attempt), None)
            if job.slots is not None:
                job.slots.waiting.appendleft(job.attempt)
            elif job.answer is None or not job.answer.done():
                self._errands.setdefault(job.level, deque()).appendleft(job)

    def _take_back(self, child: Child) -> None:
        self._put_back(child.take_back())

    # what children say

    def _listener(self, child: Child) -> Callable[[], None]:
        def listen() -> None:
            if child.has_to_say:
                child.flush()
                self._watch(child)
            self._read_output(child)  # first, while the one that wrote it is the current one
            self._take_all(child, child.heard())
            if child.talk_over:
                assert self._selector is not None
                self._selector.unregister(child.talk)
                self._kill(child)  # it has died, or a body closed what it talks with

        return listen

    def _reader(self, child: Child) -> Callable[[], None]:
        def read() -> None:
            self._read_output(child)
            if child.output_over:
                assert self._selector is not None
                self._selector.unregister(child.output)

        return read

    def _read_output(self, child: Child) -> bool:
        """What was written past Python belongs to the job under way, as far as anybody can tell."""
        data = child.written()
        job = child.current or next(iter(child.jobs.values()), None)
        if data and job is not None:
            job.attempt.capture(data.decode("utf-8", "replace"))
        return bool(data)

    def _take_all(self, child: Child, messages: Iterable[list[Any]]) -> None:
        for message in messages:
            try:
                self._take(child, *message)
            except Exception:  # of one message: the others tell how attempts have ended
                log.exception("a message of a child process could not be dealt with")

    def _take(self, child: Child, what: str, *values: Any) -> None:
        if what == "ready":
            child.ready = True
            child.idle_since = time.monotonic()
            self._pause, self._told = 0.0, ""
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
            _log_again(attempt, values[0])
        else:
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
            elif 0 < self.options.recycle_tasks <= child.done and child.stopping is None:
                self._retire(child, "tasks")

    def _ended(self, child: Child, job: Job, leaving: str | None, values: tuple[Any, ...]) -> None:
        if job.answer is not None:
            fine, data = values
            try:
                told = pickle.loads(data)
            except Exception as error:  # a class that cannot be made here
                fine, told = False, error
            _answer(job, told) if fine else _answer(job, error=told)
        elif job.slots is not None:
            outcome = with_log(job.attempt, _outcome(values[0]))
            if leaving is None:
                self._report(job.attempt, outcome)
            else:
                child.held.append((job.attempt, outcome))

    def _ask(self, child: Child, number: int, asked: int, method: str, args: list[Any]) -> None:
        tag = child.tag

        def answer(fine: bool, value: Any) -> None:
            self.tell("answer", tag, asked, fine, value)

        job = child.jobs.get(number)
        self.spec.answer(job.attempt if job is not None else None, method, args, answer)

    # children go

    def _leave(self, child: Child, why: str) -> None:
        """It takes nothing more, by its own account."""
        self._take_back(child)
        child.stopping = why
        if why in ("stopped", "processes"):
            self._kill(child)
        else:
            child.kill_at = time.monotonic() + self.options.grace

    def _retire(self, child: Child, why: str) -> None:
        """It is to end in good order, when it has nothing to do."""
        self._take_back(child)
        child.stopping = why
        child.close_work()
        child.kill_at = time.monotonic() + self.options.grace

    def _kill(self, child: Child) -> None:
        child.killed = True
        if self._nursery is not None and child.pid:
            self._nursery.kill(child.pid)

    def _bury(self, child: Child, status: int | None) -> None:
        """A child has ended, with all that it started. Only what had begun is blamed for it."""
        assert self._selector is not None
        self._take_all(child, child.heard(most=MOST_CHUNKS))
        while self._read_output(child):
            pass
        del self._children[child.tag]
        self._by_pid.pop(child.pid, None)
        for one in (child.talk, child.output):
            try:
                self._selector.unregister(one)
            except KeyError:
                pass
        begun = [job for job in child.jobs.values() if job.started]
        self._take_back(child)
        self._put_back([job for job in child.jobs.values() if not job.started])
        kills, self._oom_kills = self._oom_kills, out_of_memory_kills()
        for job in begun:
            limits = job.attempt.kind.options.limits if job.slots is not None else None
            self._died(child, job, told_end(status, limits, out_of_memory=self._oom_kills > kills))
        for attempt, outcome in child.held:
            self._report(attempt, outcome)
        child.close()
        if not child.ready:
            self._no_child(child.unfit or told_end(status, None, out_of_memory=False))
        if not self._children:
            self._nursery_idle = time.monotonic()

    def _no_child(self, why: str) -> None:
        self._pause = min(BACK_OFF[1], max(BACK_OFF[0], self._pause * 2))
        self._again_at = time.monotonic() + self._pause
        if self._told != why:
            log.error("no child process could be started, trying again every %g s at most: %s", BACK_OFF[1], why)
        self._told = why

    def _died(self, child: Child, job: Job, how: str) -> None:
        attempt = job.attempt
        self._where.pop(id(attempt), None)
        if job.answer is not None:
            _answer(job, error=ProcessDied(how))
            return
        if job.slots is None:
            log.error("a hook of %s ended its process: %s", attempt.kind.name, how)
            return
        if job.alone and not (attempt.cancelled or attempt.timed_out):
            self._report(attempt, died_alone(attempt, self._runtime, how))
            return
        error: SchedulerError = ProcessDied(how)
        if attempt.timed_out:
            error = attempt.timeout_error("; its process was killed")
        outcome, hook = ended_by(attempt, self._runtime, error)
        self._report(attempt, outcome)
        if hook is not None:
            name = "on_attempt_failed" if outcome.end is AttemptEnd.RETRIED else "on_failed"
            about = (type(error).__name__, str(error))
            where = (attempt.kind.name, *self.spec.reference(attempt.kind))
            message = ("hook", *where, tuple(attempt.claimed), name, attempt.started_at, *about)
            self._errands.setdefault(job.level, deque()).append(Job(0, job.level, message, attempt))

    def close_in_fork(self) -> None:
        """In a process that the application forked: let go of what must end with the engine's own process."""
        if self._nursery is not None:
            self._nursery.close_in_fork()
        for child in self._children.values():
            child.close_in_fork()


def _forgetter(pool: ProcessPool) -> Callable[[], None]:
    known = weakref.ref(pool)

    def forget() -> None:
        found = known()
        if found is not None:
            found.close_in_fork()

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


def _answer(job: Job, value: Any = None, *, error: BaseException | None = None) -> None:
    answer = job.answer
    if answer is None or not answer.set_running_or_notify_cancel():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def _outcome(fields: list[Any]) -> Outcome:
    """As the child sent it."""
    made = Outcome._make(fields)
    failure = None if made.failure is None else Failure._make(made.failure)
    return made._replace(end=AttemptEnd(made.end), failure=failure)


def _log_again(attempt: Attempt, fields: dict[str, Any]) -> None:
    """Hand a record of a child to this process's loggers, as if it had been made here inside the attempt."""
    logger = logging.getLogger(fields["name"])
    if not logger.isEnabledFor(fields["levelno"]):
        return
    token = current_attempt.set(attempt)
    try:
        logger.handle(logging.makeLogRecord(fields))
    finally:
        current_attempt.reset(token)

"""What a child process does: run the attempts that come, one at a time, in its main thread.

It has no database. What its attempts ask of the engine goes over a socket, and so does how they end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import importlib
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from typing import Any, NoReturn

from scheduler import ports
from scheduler.engine import cgroups
from scheduler.engine.async_durable import track_tasks
from scheduler.engine.attempt import Attempt, execute, execute_async
from scheduler.engine.context import AsyncContext, Context
from scheduler.engine.frames import message_of, number_of
from scheduler.engine.imports import import_main, main_is, resolve
from scheduler.engine.link import Guard, Link
from scheduler.engine.logs import TASK_LOGGER, current_attempt
from scheduler.engine.output import Output, Records, write_past_python
from scheduler.engine.own_loop import run_alone
from scheduler.engine.remote import Remote, RemoteAttempt
from scheduler.engine.rlimits import limited, memory
from scheduler.engine.verdict import ended_by, gave_up
from scheduler.errors import ConfigError, ProcessDied, TaskTimeout
from scheduler.model.fingerprint import describe
from scheduler.model.outcome import Outcome
from scheduler.model.reference import MAIN
from scheduler.model.registry import Kind, Registry
from scheduler.model.texts import storable

MAX_ORDER = 256 * 1024
LONGEST = 3600.0  # seconds between two looks at the lease: a wait of weeks would be refused
_KILLED: dict[str, type[Exception]] = {"ProcessDied": ProcessDied, "TaskTimeout": TaskTimeout}


class Child:
    """One child process. Everything here happens in its main thread, but for :meth:`stop`."""

    def __init__(self, work: socket.socket, talk: socket.socket, place: str | None = None) -> None:
        self.work = work
        self.place = place  # its control group
        self.pid = os.getpid()
        self.guard = Guard()
        self.link = Link(talk, self.guard)
        self.link.on_stop = self.stop
        self.link.watch = self.watch
        self.registry = Registry()
        self.unfit: dict[str, str] = {}  # kinds that cannot be run here, and why
        self.remote = Remote(self.link)
        self.link.on_lease = self.remote.extend
        self.spec: dict[str, Any] = {}
        self.number = 0  # of the job under way; 0 between them
        self.attempt: RemoteAttempt | None = None
        self.leaving: str | None = None  # why no more is taken
        self.why: str | None = None  # the attempt was stopped: cancelled, lost or timed_out
        self._leased = False  # what is under way is an attempt, which others may begin once the engine's lease runs out
        self._look = threading.Lock()  # over number, attempt and leaving
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outputs: list[Output] = []
        self._own = frozenset[int]()  # processes that were there before the first attempt

    # getting ready

    def prepare(self) -> None:
        """Become what the first message says. Raises whatever the users' modules raise."""
        _, spec = self.link.first()
        self.spec = spec
        self._take_signals()
        self._take_output()
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self.link.listen, name="schedd-link", daemon=True).start()
        sys.path[:] = spec["path"]
        ports.IN_CHILD = True
        main_is(spec["main"])
        for name, source, build in spec["kinds"]:
            self._learn(name, source, build)
        self.remote.settings = spec["settings"]
        self.remote.around_run = self._around
        self.remote.make_state(spec["state"], spec["has_state"])
        self._users_around = resolve(spec["around_run"]) if spec["around_run"] is not None else None
        self._claimed = namedtuple("Claimed", spec["claimed"])  # type: ignore[misc]
        self._own = frozenset[int]().union(*_children())

    def _learn(self, name: str, source: str, build: str | None) -> Kind | None:
        """Import a kind; one that fails keeps no other from being run here."""
        try:
            kind = self.registry.add(resolve(source), name, None if build is None else resolve(build))
        except (Exception, SystemExit) as error:
            self.unfit[name] = f"task type {name} cannot be imported in a child process: {describe(error).text}"
            return None
        return kind

    def _kind(self, name: str, source: str, build: str | None) -> Kind:
        """Raises ConfigError if it cannot be had here."""
        kind = self.registry.get(name)
        # It came later than this process; or its import failed, and what it lacked may be there now. But the parent's
        # program, where it has no main guard, would do again what it does.
        if kind is None and (name not in self.unfit or source.partition(":")[0] != MAIN):
            path = self.link.ask(0, "path").result()
            sys.path[:0] = [entry for entry in path if entry not in sys.path]
            importlib.invalidate_caches()
            kind = self._learn(name, source, build)
        if kind is None:
            raise ConfigError(self.unfit[name])
        return kind

    def _take_signals(self) -> None:
        signal.signal(signal.SIGTERM, self.guard.signalled)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2, all_threads=True)
        try:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write("500")  # if somebody has to go, then the task that took the memory, not the engine
        except OSError:
            pass

    def _take_output(self) -> None:
        for number, name in ((1, "stdout"), (2, "stderr")):
            raw = open(number, "wb", closefd=False)  # noqa: SIM115
            output = Output(name, raw, self._say)
            setattr(sys, name, output)
            self._outputs.append(output)
        root = logging.getLogger()
        root.handlers[:] = [Records(self._record)]
        root.setLevel(self.spec["root_level"])
        logging.getLogger(TASK_LOGGER).setLevel(self.spec["task_level"])
        if self.spec["structlog"]:
            from scheduler.engine.tasklog import through_logging

            through_logging()

    def _say(self, text: str) -> None:
        self.link.put("said", self.number, storable(text))

    def _record(self, fields: dict[str, Any]) -> None:
        self.link.put("log", self.number, fields)

    def _forked(self) -> None:
        """In a process that a body forked: it must not speak in this one's name, and ends when it is told to."""
        self.link.close_in_fork()
        self.work.close()
        write_past_python()
        if signal.getsignal(signal.SIGTERM) == self.guard.signalled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # working

    def serve(self) -> None:
        """Take and run what comes, until there is no more or it is told to leave."""
        while self.leaving is None:
            data = self._next()
            if not data:
                return
            number = number_of(data)
            with self._look:
                self.number = number
            if signal.getsignal(signal.SIGTERM) != self.guard.signalled:
                signal.signal(signal.SIGTERM, self.guard.signalled)  # a body took it
            what, *values = message_of(data)
            if what == "big":
                what, *values = self.link.body(number)
            if what == "run":
                self._run(number, *values)
            elif what == "cpu":
                self._compute(number, *values)
            else:
                self._hook(number, *values)

    def _next(self) -> bytes:
        """What comes next. How the last one ended goes with the start of this one, if that is here already."""
        try:
            data = self.work.recv(MAX_ORDER, socket.MSG_DONTWAIT)
            if data:
                return data
        except OSError:
            pass
        self.link.flush()
        try:
            return self.work.recv(MAX_ORDER)
        except OSError:
            return b""

    def _run(
        self,
        number: int,
        kind: str,
        source: str,
        build: str | None,
        claimed: list[Any],
        start_by: int | None,
        offset: int,
        lapses_at: float,
    ) -> None:
        self.remote.offset = offset
        self.remote.extend(lapses_at)
        self._leased = True
        self.link.put("start", number, self.remote.now())
        attempt = RemoteAttempt(self._claimed(*claimed), number, self._say)
        attempt.start_by = start_by
        outcome: Outcome
        try:
            attempt.kind = self._kind(kind, source, build)
        except ConfigError as error:
            attempt.started_at = self.remote.now()
            outcome, _ = ended_by(attempt, self.remote, error)
        else:
            outcome = self._execute(attempt)
        if os.getpid() != self.pid:
            os._exit(0)  # the body forked, and this is not the one that was asked
        self._over("done", outcome)

    def _execute(self, attempt: RemoteAttempt) -> Outcome:
        with self._look:
            self.attempt = attempt
            if self.why is not None:
                setattr(attempt, self.why, True)
        try:
            if attempt.kind.is_async:
                return run_alone(attempt, self._execute_async(attempt))
            return execute(attempt, self.remote)
        except BaseException as error:  # of what surrounds the body
            return gave_up(attempt, self.remote, error)
        finally:
            self._loop = None

    async def _execute_async(self, attempt: RemoteAttempt) -> Outcome:
        with self._look:
            attempt.asyncio_task = asyncio.current_task()
            self._loop = asyncio.get_running_loop()
        track_tasks(self._loop)
        if self.leaving is not None:
            attempt.asyncio_task.cancel()
        return await execute_async(attempt, self.remote)

    @contextlib.contextmanager
    def _around(self, ctx: Context | AsyncContext) -> Iterator[None]:
        """Surrounds a body: what the Scheduler was given for that, the kind's limits, and what may interrupt it."""
        assert self.attempt is not None
        kind = self.attempt.kind
        users = self._users_around(ctx) if self._users_around is not None else contextlib.nullcontext()
        with users, cgroups.bounded(self.place, kind.options.limits), limited(kind.options.limits):
            if kind.is_async:
                yield
                return
            self.guard.arm()
            try:
                yield
            finally:
                self.guard.disarm()

    def _compute(self, number: int, function: str, arguments: bytes) -> None:
        """A function for ``ctx.cpu`` of an attempt in the engine's own process, which pickled the arguments."""
        self.link.put("start", number, 0)
        try:
            called = resolve(function)
            if b"__main__" in arguments:
                import_main()
            args = pickle.loads(arguments)
            self.guard.arm()
            try:
                result = called(*args)
            finally:
                self.guard.disarm()
            fine, value = True, pickle.dumps(result)
        except BaseException as error:
            fine, value = False, pickled_error(error)
        if os.getpid() != self.pid:
            os._exit(0)
        self._over("computed", fine, value)

    def _hook(
        self,
        number: int,
        kind: str,
        source: str,
        build: str | None,
        claimed: list[Any],
        hook: str,
        started: int,
        name: str,
        text: str,
    ) -> None:
        """A hook of an attempt whose own process has died."""
        self.link.put("start", number, 0)
        try:
            attempt = RemoteAttempt(self._claimed(*claimed), number, self._say)
            attempt.kind = found = self._kind(kind, source, build)
            attempt.started_at = started
            self.attempt = attempt
            call = getattr(found, hook)
            value = found.decode(attempt.claimed.payload or "", attempt.claimed.schema_version, attempt.claimed.id)
            token = current_attempt.set(attempt)
            try:
                if found.is_async:
                    pending = call(value, AsyncContext(attempt, self.remote), _KILLED[name](text))
                    if pending is not None:
                        asyncio.run(_awaited(pending))
                else:
                    call(value, Context(attempt, self.remote), _KILLED[name](text))
            finally:
                current_attempt.reset(token)
        except BaseException:
            logging.getLogger("scheduler.engine").exception("hook of %s raised", kind)
        if os.getpid() != self.pid:
            os._exit(0)
        self._over("hooked")

    def _over(self, what: str, *values: Any) -> None:
        """Tell how a job ended, and whether this process goes on."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # an alarm that it has left would end the next one
        for output in self._outputs:
            output.end()
        with self._look:
            number, self.number, self.attempt, self._leased = self.number, 0, None, False
        if self.leaving is None:
            self.leaving = self._reason_to_leave()
        self.link.put(what, number, self.leaving, *values, flush=self.leaving is not None)

    def _reason_to_leave(self) -> str | None:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            pass  # nothing was started, or all of it has ended
        else:
            living, ended = _children()
            if living - self._own:
                return "processes"
            for pid in ended - self._own:  # nobody waits for them any more
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
        most = self.spec["recycle_memory"]
        # The peak costs next to nothing to read, and only who has been over it can be over it now.
        if most and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > most and memory()[1] > most:
            return "memory"
        return None

    # being stopped: in the thread that listens

    def watch(self) -> float | None:
        """End the attempt under way when the engine has not said that it has its lease any longer: it stands still, and
        others may begin the task. Returns in how many seconds to look again; None: when it says something."""
        left = self.remote.lapses_at - time.monotonic()
        if left > 0:
            return None if left == float("inf") else min(left, LONGEST)
        with self._look:
            number, leased = self.number, self._leased
        if leased and self.why is None:
            self.stop(number, "lost")  # and after the grace period the fork server kills it
        return None

    def stop(self, number: int, why: str) -> None:
        """End the job under way, if it is this one still, and everything that it started."""
        with self._look:
            if number != self.number:
                return  # it has ended meanwhile
            self.leaving, self.why = "stopped", why
            attempt, loop = self.attempt, self._loop
            if attempt is not None:
                setattr(attempt, why, True)
        if attempt is not None and attempt.kind.is_async:
            if loop is not None and attempt.asyncio_task is not None:
                with contextlib.suppress(RuntimeError):  # the loop has just been closed
                    loop.call_soon_threadsafe(attempt.asyncio_task.cancel)
        else:
            self.guard.interrupt()
        os.killpg(0, signal.SIGTERM)


async def _awaited(pending: Any) -> None:
    await pending


def _children() -> tuple[set[int], set[int]]:
    """Processes that this one started, or that lost their parent below it: living ones, and those that have ended."""
    living: set[int] = set()
    ended: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                pids = [int(pid) for pid in file.read().split()]
        except OSError:
            continue
        for pid in pids:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
                over = file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
                (ended if over else living).add(pid)
    return living, ended


def pickled_error(error: BaseException) -> bytes:
    """The error as the one who waits for it gets it; one that cannot be pickled as a RuntimeError with its text."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(RuntimeError(describe(error).text))
    return data


def run(work: socket.socket, talk: socket.socket, place: str | None = None) -> NoReturn:
    """The whole life of a child process. ``place``: its control group, if it has one."""
    child = Child(work, talk, place)
    try:
        if place is not None:
            cgroups.enter(place)
        child.prepare()
    except BaseException as error:
        child.link.put("unfit", describe(error).text)
        os._exit(1)
    child.link.put("ready")
    child.serve()
    if child.leaving in ("stopped", "processes"):
        threading.Event().wait()  # the engine ends this process, and all that it started
    atexit._run_exitfuncs()
    os._exit(0)


__all__ = ["Attempt", "Child", "run"]

"""The main loop of a child process: runs jobs, one at a time, in its main thread.

Requests of attempts, and their outcomes, go to the engine over a socket.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import importlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from scheduler import ports
from scheduler.config import user_modules
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.capture import TASK_LOGGER, current_attempt
from scheduler.engine.attempt.outcomes import internal_failure, outcome_of_external_end
from scheduler.engine.attempt.place import Look, Threads, look, stack_of, where
from scheduler.engine.child import cgroups
from scheduler.engine.child.output import ChildOutput, Records, write_past_python
from scheduler.engine.child.pickling import called, packed_error, packed_result, resolve, set_main
from scheduler.engine.child.protocol import message_of, number_of
from scheduler.engine.child.rlimits import limited, memory
from scheduler.engine.child.runtime import EngineLink, Interrupter, RemoteAttempt, RemoteRuntime
from scheduler.engine.child.surroundings import Surroundings
from scheduler.engine.durable.async_driver import track_tasks
from scheduler.engine.execution.context import AsyncContext, Context
from scheduler.engine.execution.event_loop import run_in_new_loop
from scheduler.engine.execution.run import execute, execute_async
from scheduler.errors import ConfigError, ProcessDied, TaskTimeout
from scheduler.forking import after_fork
from scheduler.model.fingerprint import describe
from scheduler.model.outcome import Outcome
from scheduler.model.parent_names import has_names
from scheduler.model.reference import MAIN
from scheduler.model.registry import Kind, Registry
from scheduler.model.texts import storable

if TYPE_CHECKING:
    from scheduler.telemetry.child import ChildTracing

MAX_JOB_BYTES = 256 * 1024
MAX_LEASE_POLL_S = 3600.0  # poll() refuses a wait of weeks
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_KILLED: dict[str, type[Exception]] = {"ProcessDied": ProcessDied, "TaskTimeout": TaskTimeout}


class ChildProcess:
    """A child process. All runs in its main thread, except :meth:`check_lease` and :meth:`stop`."""

    def __init__(self, work: socket.socket, talk: socket.socket, cgroup: str | None = None) -> None:
        self.work = work
        self.cgroup = cgroup  # its control group
        self.forked = False  # this process is a copy that a handler made
        self.interrupter = Interrupter()
        self.link = EngineLink(talk, self.interrupter)
        self.link.on_stop = self.stop
        self.link.check_lease = self.check_lease
        self.link.on_look = self.look
        self._seen: tuple[int, Look] | None = None  # the last look, and the job
        self.registry = Registry()
        self.import_errors: dict[str, str] = {}  # kind -> why it cannot run here
        self.remote = RemoteRuntime(self.link)
        self.link.on_lease = self.remote.extend
        self.spec: dict[str, Any] = {}
        self.number = 0  # of the running job; 0 between jobs
        self.attempt: RemoteAttempt | None = None
        self.leave_reason: str | None = None  # why it takes no more jobs
        self.stop_reason: str | None = None  # of the attempt: cancelled, lost or timed_out
        self._leased = False  # the job is an attempt: another worker may claim it once the lease has run out
        self._lock = threading.Lock()  # guards number, attempt and leave_reason
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outputs: list[ChildOutput] = []
        self._tracing: ChildTracing | None = None  # None: no attempt is traced
        self._initial_processes = frozenset[int]()  # that run before the first attempt

    # getting ready

    def prepare(self) -> None:
        """Set up from the first message. Raises what the users' modules raise."""
        _, spec = self.link.first()
        self.spec = spec
        self._install_signal_handlers()
        self._redirect_output()
        after_fork(self, ChildProcess._on_fork)
        threading.Thread(target=self.link.listen, name="schedd-link", daemon=True).start()
        user_modules.guard(spec["users_places"])
        sys.path[:] = spec["path"]
        ports.IN_CHILD = True
        set_main(spec["main"])
        for name, source, build in spec["kinds"]:
            self._import_kind(name, source, build)
        self.remote.settings = spec["settings"]
        self.remote.around_run = self._around
        self.remote.make_state(spec["state"], spec["has_state"])
        if spec["otel"] is not None:
            from scheduler.telemetry.child import ChildTracing

            self._tracing = ChildTracing(spec["otel"])
        self._users_around = resolve(spec["around_run"]) if spec["around_run"] is not None else None
        self._claimed = namedtuple("Claimed", spec["claimed"])  # type: ignore[misc]
        self._initial_processes = frozenset[int]().union(*_children())
        self._surroundings = Surroundings()

    def _import_kind(self, name: str, source: str, build: str | None) -> Kind | None:
        """Import a kind, or note its error: the other kinds can still run here."""
        try:
            kind = self.registry.add(resolve(source), name, None if build is None else resolve(build))
        except (Exception, SystemExit) as error:
            self.import_errors[name] = f"task type {name} cannot be imported in a child process: {describe(error).text}"
            return None
        return kind

    def _kind(self, name: str, source: str, build: str | None) -> Kind:
        """The kind, imported if needed. Raises ConfigError if that fails."""
        kind = self.registry.get(name)
        # A new kind, or one whose import failed and may work now. Not one of the parent's program: without a main guard
        # the import would run the program again.
        if kind is None and (name not in self.import_errors or source.partition(":")[0] != MAIN):
            path, places = self.link.ask(0, "path").result()
            user_modules.guard(places)
            sys.path[:0] = [entry for entry in path if entry not in sys.path]
            importlib.invalidate_caches()
            kind = self._import_kind(name, source, build)
            self._surroundings.close()
            self._surroundings = Surroundings()
        if kind is None:
            raise ConfigError(self.import_errors[name])
        return kind

    def _install_signal_handlers(self) -> None:
        signal.signal(signal.SIGTERM, self.interrupter.signalled)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2, all_threads=True)
        try:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write("500")  # the kernel kills the task that took the memory, not the engine
        except OSError:
            pass

    def _redirect_output(self) -> None:
        for number, name in ((1, "stdout"), (2, "stderr")):
            raw = open(number, "wb", closefd=False)  # noqa: SIM115
            output = ChildOutput(name, raw, self._send_output)
            setattr(sys, name, output)
            self._outputs.append(output)
        root = logging.getLogger()
        root.handlers[:] = [Records(self._record)]
        root.setLevel(self.spec["root_level"])
        logging.getLogger(TASK_LOGGER).setLevel(self.spec["task_level"])
        if self.spec["structlog"]:
            from scheduler.engine.attempt.capture import through_logging

            through_logging()

    def _send_output(self, text: str) -> None:
        self.link.put("output", self.number, storable(text))

    def _record(self, fields: dict[str, Any]) -> None:
        self.link.put("log", self.number, fields)

    def _on_fork(self) -> None:
        """In a process that a handler forked: close the sockets, and let SIGTERM end it."""
        self.forked = True
        self.link.close_in_fork()
        self.work.close()
        write_past_python()
        if signal.getsignal(signal.SIGTERM) == self.interrupter.signalled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # working

    def serve(self) -> None:
        """Run jobs until the engine closes the socket or there is a reason to leave."""
        while self.leave_reason is None:
            data = self._next()
            if not data:
                return
            number = number_of(data)
            with self._lock:
                self.number = number
            if signal.getsignal(signal.SIGTERM) != self.interrupter.signalled:
                signal.signal(signal.SIGTERM, self.interrupter.signalled)  # a handler replaced it
            what, *values = message_of(data)
            if what == "big":
                what, *values = self.link.long_message(number)
            do = self._run if what == "run" else self._call_function if what == "cpu" else self._call_hook
            copy_context().run(self._do, do, number, *values)

    @staticmethod
    def _do(do: Callable[..., None], *about: Any) -> None:
        """Do a job in a context of its own, with a decimal context, which copies share, of its own, too."""
        if (decimal := sys.modules.get("decimal")) is not None:
            decimal.setcontext(decimal.getcontext().copy())
        do(*about)

    def _next(self) -> bytes:
        """The next job. If it is there already, its start is sent with the last one's result."""
        try:
            data = self.work.recv(MAX_JOB_BYTES, socket.MSG_DONTWAIT)
            if data:
                return data
        except OSError:
            pass
        self.link.flush()
        try:
            return self.work.recv(MAX_JOB_BYTES)
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
        trace: str | None,
        offset: int,
        lease_expires_at: float,
    ) -> None:
        self.remote.offset = offset
        self.remote.extend(lease_expires_at)
        self._leased = True
        self.link.put("start", number, self.remote.now())
        attempt = RemoteAttempt(self._claimed(*claimed), number, self._send_output)
        attempt.start_by = start_by
        if trace is not None and self._tracing is not None:
            attempt.trace = self._tracing.adopt(trace, partial(self.link.put, "traced", number), self.remote.now)
        outcome: Outcome
        try:
            attempt.kind = self._kind(kind, source, build)
        except ConfigError as error:
            attempt.started_at = self.remote.now()
            outcome, _ = outcome_of_external_end(attempt, self.remote, error)
        else:
            outcome = self._execute(attempt)
        if self.forked:
            os._exit(0)  # the handler forked, and this is the fork
        self._finish_job("done", outcome)

    def _execute(self, attempt: RemoteAttempt) -> Outcome:
        with self._lock:
            self.attempt = attempt
            if self.stop_reason is not None:
                setattr(attempt, self.stop_reason, True)
        try:
            if attempt.kind.is_async:
                return run_in_new_loop(attempt, self._execute_async(attempt))
            return execute(attempt, self.remote)
        except BaseException as error:  # raised around the handler
            return internal_failure(attempt, self.remote, error)
        finally:
            self._loop = None

    async def _execute_async(self, attempt: RemoteAttempt) -> Outcome:
        with self._lock:
            attempt.asyncio_task = asyncio.current_task()
            self._loop = asyncio.get_running_loop()
        track_tasks(self._loop)
        if self.leave_reason is not None:
            attempt.asyncio_task.cancel()
        return await execute_async(attempt, self.remote)

    @contextlib.contextmanager
    def _around(self, ctx: Context | AsyncContext) -> Iterator[None]:
        """Surrounds a handler: the Scheduler's ``around_run``, the kind's limits, the interrupter."""
        assert self.attempt is not None
        kind = self.attempt.kind
        users = self._users_around(ctx) if self._users_around is not None else contextlib.nullcontext()
        with users, cgroups.bounded(self.cgroup, kind.options.limits), limited(kind.options.limits):
            if kind.is_async:
                yield
                return
            self.interrupter.arm()
            try:
                yield
            finally:
                self.interrupter.disarm()

    def _call_function(self, number: int, reference: str, data: bytes) -> None:
        """Run a function of ``ctx.cpu`` for an attempt in the engine's process."""
        self.link.put("start", number, 0)
        try:
            function, args = called(reference, data)
            self.interrupter.arm()
            try:
                result = function(*args)
            finally:
                self.interrupter.disarm()
            fine, value = True, packed_result(function, result)
        except BaseException as error:
            fine, value = False, packed_error(error)
        if self.forked:
            os._exit(0)
        self._finish_job("computed", fine, value)

    def _call_hook(
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
        """Run a hook of an attempt whose own process has died."""
        self.link.put("start", number, 0)
        try:
            attempt = RemoteAttempt(self._claimed(*claimed), number, self._send_output)
            attempt.kind = found = self._kind(kind, source, build)
            attempt.started_at = started
            self.attempt = attempt
            call = getattr(found, hook)
            c = attempt.claimed
            results: dict[str, Any] = {}
            if has_names(c.headers):
                ctx: Context[Any] = Context(attempt, self.remote)
                results = ctx._by_name(ctx.results())
            value = found.decode_with(c.payload or "", c.schema_version, c.id, results)
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
        if self.forked:
            os._exit(0)
        self._finish_job("hooked")

    def _finish_job(self, what: str, *values: Any) -> None:
        """Report how a job ended, and whether this process takes more."""
        for timer in _TIMERS:
            signal.setitimer(timer, 0.0)  # an alarm that the job left would end the next job
        faulthandler.cancel_dump_traceback_later()
        for output in self._outputs:
            output.end()
        with self._lock:
            number, self.number, self.attempt, self._leased = self.number, 0, None, False
        if not self._surroundings.put_back() and self.leave_reason is None:
            self.leave_reason = "changed"
        if self.leave_reason is None:
            self.leave_reason = self._reason_to_leave()
        self.link.put(what, number, self.leave_reason, *values, flush=self.leave_reason is not None)

    def _reason_to_leave(self) -> str | None:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            pass  # nothing was started, or all of it has ended
        else:
            living, ended = _children()
            if living - self._initial_processes:
                return "processes"
            for pid in ended - self._initial_processes:  # the handler did not wait for them
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
        most = self.spec["recycle_memory"]
        # The peak is cheap to read; only a process that has been over the limit can be over it now.
        if most and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > most and memory()[1] > most:
            return "memory"
        return None

    # looked at and stopped: in the listening thread

    def look(self, number: int) -> None:
        """Say where job ``number`` stands, if it still runs."""
        with self._lock:
            if number != self.number:
                return
            attempt = self.attempt
        if attempt is None:
            attempt = RemoteAttempt(None, number, self._send_output)  # a function: only its thread is looked at
        threads, main = Threads(), threading.main_thread().ident or 0
        seen = look(attempt, threads, main)
        moved = self._seen is not None and self._seen[0] == number and seen.moved_since(self._seen[1])
        self._seen = number, seen
        thread = main if attempt.asyncio_task is None else 0
        at, stack = where(attempt, threads, thread), stack_of(attempt, threads, thread)
        self.link.put("stands", number, moved, storable(at), storable(stack))

    def check_lease(self) -> float | None:
        """Stop the attempt once the lease has run out: another worker may claim its task.

        Returns the seconds until the next check; None: at the engine's next message.
        """
        left = self.remote.lease_expires_at - time.monotonic()
        if left > 0:
            return None if left == float("inf") else min(left, MAX_LEASE_POLL_S)
        with self._lock:
            number, leased = self.number, self._leased
        if leased and self.stop_reason is None:
            self.stop(number, "lost")  # and after the grace period the fork server kills it
        return None

    def stop(self, number: int, why: str) -> None:
        """Stop job ``number``, if it still runs, and everything that it started."""
        with self._lock:
            if number != self.number:
                return  # the job has ended
            self.leave_reason, self.stop_reason = "stopped", why
            attempt, loop = self.attempt, self._loop
            if attempt is not None:
                setattr(attempt, why, True)
        if attempt is not None and attempt.kind.is_async:
            if loop is not None and attempt.asyncio_task is not None:
                with contextlib.suppress(RuntimeError):  # the loop has just been closed
                    loop.call_soon_threadsafe(attempt.asyncio_task.cancel)
        else:
            self.interrupter.interrupt()
        os.killpg(0, signal.SIGTERM)


async def _awaited(pending: Any) -> None:
    await pending


def _children() -> tuple[set[int], set[int]]:
    """This process's children, adopted ones included: the living, and the ended."""
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
                has_ended = file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
                (ended if has_ended else living).add(pid)
    return living, ended


def run(work: socket.socket, talk: socket.socket, cgroup: str | None = None) -> NoReturn:
    """Run a child process to its end. ``cgroup``: its control group, if it has one."""
    child = ChildProcess(work, talk, cgroup)
    try:
        if cgroup is not None:
            cgroups.enter(cgroup)
        child.prepare()
    except BaseException as error:
        child.link.put("unfit", describe(error).text)
        os._exit(1)
    child.link.put("ready")
    child.serve()
    if child.leave_reason in ("stopped", "processes"):
        threading.Event().wait()  # the engine ends this process, and all that it started
    atexit._run_exitfuncs()
    os._exit(0)


__all__ = ["Attempt", "ChildProcess", "run"]

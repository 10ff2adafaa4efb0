"""The Runtime of attempts in a child process, its link to the engine, and the interrupt that ends a handler there."""

from __future__ import annotations

import math
import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.child.pickling import resolve
from scheduler.engine.child.protocol import FrameDecoder, frame
from scheduler.errors import ConfigError, Interrupted
from scheduler.model.checkpoint import revived
from scheduler.model.outcome import Lifetimes, Outcome
from scheduler.model.registry import Kind, bind, make_kind, parts_of
from scheduler.model.spec import Draft, TaskSpec
from scheduler.model.task import Task, TaskFunction
from scheduler.ports import SystemClock

if TYPE_CHECKING:
    from scheduler.store.db.database import Database


RECV_BYTES = 256 * 1024


class Interrupter:
    """Raises Interrupted in the main thread, within a handler only, never while it sends."""

    def __init__(self) -> None:
        self.requested = False
        self._armed = False
        self._shields = 0
        self._main = threading.main_thread().ident

    def arm(self) -> None:
        """The handler begins: from here on it may be interrupted."""
        self._armed = True
        self._raise_if_due()

    def disarm(self) -> None:
        """The handler has ended: from here on nothing is raised."""
        self._armed = False

    def shield(self) -> bool:
        """Raise nothing until :meth:`unshield`, which the caller calls if this returns True."""
        if threading.get_ident() != self._main:
            return False
        self._shields += 1
        return True

    def unshield(self) -> None:
        self._shields -= 1
        self._raise_if_due()

    def signalled(self, *_: Any) -> None:
        """The signal handler: Python runs it in the main thread, between any two instructions."""
        self._raise_if_due()

    def interrupt(self) -> None:
        """Interrupt the handler. Called from another thread."""
        self.requested = True
        assert self._main is not None
        signal.pthread_kill(self._main, signal.SIGTERM)

    def _raise_if_due(self) -> None:
        if self.requested and self._armed and not self._shields:
            self._armed = False
            raise Interrupted("the attempt is to end")


class EngineLink:
    """Sends messages to the engine, from any thread, and receives its answers.

    A message without ``flush`` is sent with the next flushed one, in order.
    """

    def __init__(self, talk: socket.socket, interrupter: Interrupter) -> None:
        self._talk = talk
        self._interrupter = interrupter
        self._lock = threading.Lock()
        self._out = bytearray()
        self._frames = FrameDecoder()
        self._unread: list[list[Any]] = []  # received with the first message
        self._answers: dict[int, Future[Any]] = {}
        self._last_request = 0
        self._long_messages: dict[int, Future[list[Any]]] = {}
        self.on_stop: Callable[[int, str], None] = lambda number, why: None
        self.on_look: Callable[[int], None] = lambda number: None
        self.on_lease: Callable[[float], None] = lambda until: None
        self.check_lease: Callable[[], float | None] = lambda: None  # returns the seconds until its next call

    def put(self, *message: Any, flush: bool = True) -> None:
        data = frame(*message)
        shielded = self._interrupter.shield()
        try:
            with self._lock:
                self._out += data
                if flush:
                    self._send()
        finally:
            if shielded:
                self._interrupter.unshield()

    def flush(self) -> None:
        with self._lock:
            self._send()

    def _send(self) -> None:
        if not self._out:
            return
        data, self._out = self._out, bytearray()
        try:
            self._talk.sendall(data)
        except OSError:
            pass  # the engine has ended: the listening thread ends this process

    def ask(self, number: int, method: str, *args: Any) -> Future[Any]:
        """Send the engine a request on behalf of job ``number``."""
        answer: Future[Any] = Future()
        with self._lock:
            self._last_request += 1
            request = self._last_request
            self._answers[request] = answer
        self.put("ask", number, request, method, args)
        return answer

    def long_message(self, number: int) -> list[Any]:
        """Wait for the message of a job that was too long for the socket of jobs."""
        with self._lock:
            future = self._long_messages.setdefault(number, Future())
        message = future.result()
        del self._long_messages[number]
        return message

    def first(self) -> list[Any]:
        """Receive the first message. Raises EOFError."""
        while not self._unread:
            data = self._talk.recv(RECV_BYTES)
            if not data:
                raise EOFError("the engine has gone")
            self._unread += self._frames.feed(data)
        return self._unread.pop(0)

    def listen(self) -> None:
        """The listening thread: handle messages; kill the process group when the engine has ended."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        for message in self._unread:
            self._take(message)
        poll = select.poll()
        poll.register(self._talk, select.POLLIN)
        while True:
            pause = self.check_lease()
            if not poll.poll(None if pause is None else math.ceil(pause * 1000)):
                continue
            try:
                data = self._talk.recv(RECV_BYTES)
            except OSError:
                data = b""
            if not data:
                os.killpg(0, signal.SIGKILL)
            for message in self._frames.feed(data):
                self._take(message)

    def _take(self, message: list[Any]) -> None:
        what, *values = message
        if what == "answer":
            request, fine, value = values
            with self._lock:
                answer = self._answers.pop(request, None)
            if answer is None or not answer.set_running_or_notify_cancel():
                return
            if fine:
                answer.set_result(value)
            else:
                answer.set_exception(revived(value))
        elif what == "body":
            with self._lock:
                future = self._long_messages.setdefault(values[0], Future())
            future.set_result(values[1])
        elif what == "stop":
            self.on_stop(*values)
        elif what == "look":
            self.on_look(*values)
        elif what == "lease":
            self.on_lease(*values)

    def close_in_fork(self) -> None:
        """Close the socket in a process that a handler forked: it must not send for this child."""
        self._talk.close()
        self._lock = threading.Lock()


class _Unknown(Task):
    """A placeholder for a kind that is not imported yet."""

    def run(self, ctx: Any) -> None: ...


UNKNOWN = make_kind(_Unknown, None, None)


class RemoteAttempt(Attempt):
    """An attempt in a child process. It sends its output to the engine at once."""

    def __init__(self, claimed: Any, number: int, say: Callable[[str], None]) -> None:
        super().__init__(claimed, UNKNOWN, (0, 2), 0.0)
        self.number = number
        self.say = say

    def capture(self, text: str) -> None:
        self.say(text)


class ChildDrafts:
    """Makes specs of tasks that handlers spawn: the payload here, the rest in the engine.

    It names a kind as the type itself does, not as the engine registered it.
    """

    def __init__(self, link: EngineLink) -> None:
        self._link = link

    def draft(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        drafted = getattr(task, "_drafted", None)  # a builder of a Scheduler in this process
        if drafted is not None:
            return drafted()
        kind = self._kind(task if isinstance(task, TaskFunction) else type(task))
        value = bind(kind, args, kwargs) if isinstance(task, TaskFunction) else task
        text = kind.encode(value)
        kind_of = getattr(value, "kind_of", None)
        name = kind.name if kind_of is None else str(kind_of())
        return Draft(name, lambda: msgspec.convert(self._link.ask(0, "spec", name, text).result(), TaskSpec))

    def draft_of_item(self, kind: Any, item: Any) -> Any:
        return self.draft(*parts_of(kind, item))

    def name_of(self, kind: Any) -> str:
        if isinstance(kind, str):
            raise ConfigError("map in a child process takes a Task class or a @task function, not a kind's name")
        return self._kind(kind).name

    @staticmethod
    def _kind(source: Any) -> Kind:
        return make_kind(source, None, None)


class RemoteRuntime:
    """What an attempt needs of its engine, over the link."""

    waits_through_outages = True

    def __init__(self, link: EngineLink) -> None:
        self.link = link
        self.drafts = ChildDrafts(link)
        self.settings: dict[str, Any] = {}
        self.around_run: Callable[[Any], AbstractContextManager[Any]] | None = None
        self.lease_expires_at = float("inf")  # monotonic, as the engine last sent it
        self.offset = 0  # microseconds to the server's clock
        self._state: Any = None
        self._database: Database | None = None
        self._missing = False
        self._random = random.Random()

    def began(self, task_id: int, claim: int) -> None:
        """Does nothing: the engine notes it when the ``start`` message arrives."""

    def make_state(self, function: str | None, parent_has_state: bool) -> None:
        """Set ``ctx.state`` to what ``function`` returns; without one, a parent's state is missing."""
        if function is not None:
            self._state = resolve(function)()
        self._missing = parent_has_state and function is None

    @property
    def state(self) -> Any:
        if self._missing:
            raise ConfigError(
                "ctx.state does not reach child processes as it is: give the Scheduler "
                'child_state="module:function", which each of them calls for its own'
            )
        return self._state

    def extend(self, until: float) -> None:
        """Note that the engine's lease lasts until then."""
        self.lease_expires_at = until if self.lease_expires_at == float("inf") else max(self.lease_expires_at, until)

    def now(self) -> int:
        return time.time_ns() // 1000 + self.offset

    def monotonic(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        return self._random.random()

    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[dict[str, Any]]:
        return self._ask(attempt, "request", what, dict(args))

    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any:
        return self._ask(attempt, "load", what, dict(args)).result()

    def store(self, attempt: Attempt) -> tuple[Database, int, float, Lifetimes]:
        """This process's own database, opened on first use, and the worker's id, lease and default lifetimes."""
        reply = self._ask(attempt, "store").result()
        if self._database is None:
            from scheduler.store.db.database import Database  # most children never need one

            self._database = Database(reply["url"], SystemClock(), auto_migrate=False)
        return self._database, reply["worker"], reply["lease"], Lifetimes(*reply["lifetimes"])

    def settled(self, attempt: Attempt, outcome: Outcome, ready: int) -> None:
        attempt.committed_outcome = outcome
        self._ask(attempt, "settled", ready).result()

    def decided(self, attempt: Attempt, outcome: Outcome) -> None:
        assert isinstance(attempt, RemoteAttempt)
        self.link.put("decided", attempt.number, outcome)

    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> CpuFuture[Any]:
        """Call the function here: this is a child process already."""
        done: CpuFuture[Any] = CpuFuture()
        done.set_result(function(*args))
        return done

    def _ask(self, attempt: Attempt, method: str, *args: Any) -> Future[Any]:
        assert isinstance(attempt, RemoteAttempt)
        return self.link.ask(attempt.number, method, *args)

"""A child process's side of its talk with the engine, and what may interrupt a body there."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from scheduler.engine.frames import Frames, frame
from scheduler.errors import Interrupted
from scheduler.model.checkpoint import revived

CHUNK = 256 * 1024


class Guard:
    """Raises in the main thread what ends a body there, but only inside of the body, and never while it talks."""

    def __init__(self) -> None:
        self.wanted = False
        self._armed = False
        self._shields = 0
        self._main = threading.main_thread().ident

    def arm(self) -> None:
        """The body begins."""
        self._armed = True
        self._look()

    def disarm(self) -> None:
        """The body is over: from here on nothing is raised."""
        self._armed = False

    def shield(self) -> bool:
        """Let nothing be raised here until :meth:`unshield`, which is to be called if this returns True."""
        if threading.get_ident() != self._main:
            return False
        self._shields += 1
        return True

    def unshield(self) -> None:
        self._shields -= 1
        self._look()

    def signalled(self, *_: Any) -> None:
        """The handler of the signal, which Python runs in the main thread, between any two steps of it."""
        self._look()

    def interrupt(self) -> None:
        """End the body. From another thread."""
        self.wanted = True
        assert self._main is not None
        signal.pthread_kill(self._main, signal.SIGTERM)

    def _look(self) -> None:
        if self.wanted and self._armed and not self._shields:
            self._armed = False
            raise Interrupted("the attempt is to end")


class Link:
    """Frames to the engine, from any thread, and answers from it.

    What is put without ``flush`` goes with the next that is flushed, in order.
    """

    def __init__(self, talk: socket.socket, guard: Guard) -> None:
        self._talk = talk
        self._guard = guard
        self._lock = threading.Lock()
        self._out = bytearray()
        self._frames = Frames()
        self._waiting: list[list[Any]] = []  # came with the first message
        self._answers: dict[int, Future[Any]] = {}
        self._asked = 0
        self._bodies: dict[int, Future[list[Any]]] = {}
        self.on_stop: Callable[[int, str], None] = lambda number, why: None
        self.on_lease: Callable[[float], None] = lambda until: None
        self.watch: Callable[[], float | None] = lambda: None  # returns in how many seconds it is to be called again

    def put(self, *message: Any, flush: bool = True) -> None:
        data = frame(*message)
        shielded = self._guard.shield()
        try:
            with self._lock:
                self._out += data
                if flush:
                    self._send()
        finally:
            if shielded:
                self._guard.unshield()

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
            pass  # the engine has gone: the listening thread ends this process

    def ask(self, number: int, method: str, *args: Any) -> Future[Any]:
        """Ask something of the engine on behalf of job ``number``."""
        answer: Future[Any] = Future()
        with self._lock:
            self._asked += 1
            asked = self._asked
            self._answers[asked] = answer
        self.put("ask", number, asked, method, args)
        return answer

    def body(self, number: int) -> list[Any]:
        """A message that was too long for the socket of work. Waits for it."""
        with self._lock:
            waited = self._bodies.setdefault(number, Future())
        body = waited.result()
        del self._bodies[number]
        return body

    def first(self) -> list[Any]:
        """The first message of all. Raises EOFError."""
        while not self._waiting:
            data = self._talk.recv(CHUNK)
            if not data:
                raise EOFError("the engine has gone")
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)

    def listen(self) -> None:
        """What a thread of its own does: take what comes, and end the whole group when the engine has gone."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        for message in self._waiting:
            self._take(message)
        poll = select.poll()
        poll.register(self._talk, select.POLLIN)
        while True:
            pause = self.watch()
            if not poll.poll(None if pause is None else math.ceil(pause * 1000)):
                continue
            try:
                data = self._talk.recv(CHUNK)
            except OSError:
                data = b""
            if not data:
                os.killpg(0, signal.SIGKILL)
            for message in self._frames.feed(data):
                self._take(message)

    def _take(self, message: list[Any]) -> None:
        what, *values = message
        if what == "answer":
            asked, fine, value = values
            with self._lock:
                answer = self._answers.pop(asked, None)
            if answer is None or not answer.set_running_or_notify_cancel():
                return
            if fine:
                answer.set_result(value)
            else:
                answer.set_exception(revived(value))
        elif what == "body":
            with self._lock:
                waited = self._bodies.setdefault(values[0], Future())
            waited.set_result(values[1])
        elif what == "stop":
            self.on_stop(*values)
        elif what == "lease":
            self.on_lease(*values)

    def close_in_fork(self) -> None:
        """What a body forked must not keep the engine's sockets, nor speak in this child's name."""
        self._talk.close()
        self._lock = threading.Lock()

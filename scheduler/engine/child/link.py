"""A child process's socket to the engine, and the interrupt that ends a handler there."""

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

from scheduler.engine.child.protocol import FrameDecoder, frame
from scheduler.errors import Interrupted
from scheduler.model.checkpoint import revived

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


class Link:
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
        elif what == "lease":
            self.on_lease(*values)

    def close_in_fork(self) -> None:
        """Close the socket in a process that a handler forked: it must not send for this child."""
        self._talk.close()
        self._lock = threading.Lock()

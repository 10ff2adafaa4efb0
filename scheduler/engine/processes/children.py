"""Live child processes: starting them through the fork server, their sockets, killing. Used by the pool's thread."""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from scheduler.backoff import Backoff, LogOnce
from scheduler.engine.child import cgroups
from scheduler.engine.processes.child_handle import ChildHandle, describe_exit
from scheduler.engine.processes.fork_client import ForkServerClient, end_session

log = logging.getLogger("scheduler.engine")

START_BACKOFF_S = (1.0, 30.0)  # between tries to start children while none gets ready: first, longest


class Readable(NamedTuple):
    """A child has sent something, takes more, or has closed its socket."""

    child: ChildHandle


class Written(NamedTuple):
    """A child, or a program that it started, has written past Python."""

    child: ChildHandle


class Exited(NamedTuple):
    """A child has ended, with all that it started. ``status``: None if unknown."""

    child: ChildHandle
    status: int | None


Event = Readable | Written | Exited
WAKEUP, FORK_SERVER = "wakeup", "fork server"  # the selector's other keys


class ChildRegistry:
    """See the module. The pool hands the events of :meth:`wait` to the monitor."""

    def __init__(self) -> None:
        self.children: dict[int, ChildHandle] = {}  # by tag
        self.fork_server: ForkServerClient | None = None
        self.groups = cgroups.current
        self.empty_since = 0.0  # monotonic
        self.again_at = 0.0  # monotonic: no child is tried before
        self.silent = False  # the fork server does not answer: no child is tried until it does
        self._by_pid: dict[int, ChildHandle] = {}
        self._selector: selectors.BaseSelector | None = None
        self._tags = 0
        self._backoff = Backoff(*START_BACKOFF_S)
        self._logged = LogOnce()

    # waiting

    def open(self, wakeup: int) -> None:
        """``wakeup``: the eventfd that wakes :meth:`wait`."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ, WAKEUP)

    @property
    def selector(self) -> selectors.BaseSelector:
        assert self._selector is not None, "the pool's thread opens it first"
        return self._selector

    def wait(self, seconds: float | None) -> Iterator[Event]:
        """Wait for events. Each is to be handled before the next one is taken."""
        for key, _ in self.selector.select(seconds):
            if key.data == WAKEUP:
                os.eventfd_read(key.fd)
            elif key.data == FORK_SERVER:
                yield from self.read_fork_server()
            elif self.children.get(key.data.child.tag) is key.data.child:  # it has not exited in this same round
                yield key.data

    def close(self) -> None:
        self.selector.close()
        if self.groups is not None:
            self.groups.remove_pending()

    def close_in_fork(self) -> None:
        """In a forked process: close what must end with the engine's own process."""
        if self.fork_server is not None:
            self.fork_server.close_in_fork()
        for child in self.children.values():
            child.close_in_fork()

    # sending

    def say(self, child: ChildHandle, *message: Any) -> None:
        child.say(*message)
        self.watch(child)

    def watch(self, child: ChildHandle) -> None:
        """Wait for what a child sends and, while output to it is left, until its socket takes more."""
        if child.talk_over:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_output else 0)
        if self.selector.get_key(child.talk).events != events:
            self.selector.modify(child.talk, events, Readable(child))

    def unwatch(self, one: Any) -> None:
        """Wait for a child's ``talk`` or ``output`` no more."""
        try:
            self.selector.unregister(one)
        except KeyError:
            pass

    # starting

    @property
    def backing_off(self) -> bool:
        """Whether no child is started for now: the last ones failed to start, or the fork server is silent."""
        return self.silent or time.monotonic() < self.again_at

    @property
    def expects_event(self) -> bool:
        """Whether the fork server owes a reply, or the start or exit of a child."""
        due = any(child.killed or not child.pid for child in self.children.values())
        return self.fork_server is not None and (self.fork_server.reply_expected or due)

    @property
    def ready_count(self) -> int:
        """How many are ready and take work. Any thread may ask."""
        return sum(1 for child in list(self.children.values()) if child.ready and not child.ending)

    def start(self, only: int | None, spec: dict[str, Any]) -> bool:
        """Start a child. ``only``: the one priority that it serves; ``spec``: its first message.

        False: it cannot be started, and no other one for now.
        """
        self._tags += 1
        try:
            if self.fork_server is None:
                self.fork_server = ForkServerClient()
                self.selector.register(self.fork_server.control, selectors.EVENT_READ, FORK_SERVER)
            child = ChildHandle(self._tags, only)
        except OSError as error:  # no more files or processes: those that there are go on
            self.start_failed(str(error))
            return False
        child.began = time.monotonic()
        child.place = self.groups.make() if self.groups is not None else None
        self.children[child.tag] = child
        self.listen_to(child)
        try:
            self.fork_server.start(child.tag, child.fds, child.place)
        except OSError:  # it has died: the next wait() reads so
            return False
        finally:
            child.close_fds()
        self.say(child, "spec", spec)
        return True

    def listen_to(self, child: ChildHandle) -> None:
        self.selector.register(child.talk, selectors.EVENT_READ, Readable(child))
        self.selector.register(child.output, selectors.EVENT_READ, Written(child))

    def is_ready(self, child: ChildHandle) -> None:
        """It has imported what it needs."""
        child.ready = True
        child.idle_since = time.monotonic()
        self._backoff.reset()
        self._logged.clear()

    # ending

    def kill(self, child: ChildHandle) -> None:
        child.killed = True
        if self.fork_server is not None and child.pid:
            self.fork_server.kill(child.pid)

    def kill_at(self, when: float) -> None:
        """Have the fork server kill all children then (monotonic), unless it gets another time."""
        if self.fork_server is not None and self.fork_server.kills_at != when:
            self.fork_server.kill_at(when)

    def forget(self, child: ChildHandle, status: int | None) -> None:
        """A child has exited, and all that it sent has been handled."""
        child.close()
        if self.groups is not None and child.place is not None:
            self.groups.remove(child.place)
        if not child.ready:
            self.start_failed(child.init_error or describe_exit(status, None, out_of_memory=False))
        if not self.children:
            self.empty_since = time.monotonic()

    def remove(self, child: ChildHandle) -> None:
        """A child has exited: it counts no more."""
        del self.children[child.tag]
        self._by_pid.pop(child.pid, None)
        for one in (child.talk, child.output):
            self.unwatch(one)

    def drop_fork_server(self) -> None:
        """End the fork server, and every child with it."""
        fork_server, self.fork_server = self.fork_server, None
        self.silent = False
        if fork_server is not None:
            self.selector.unregister(fork_server.control)
            fork_server.close()

    def read_fork_server(self) -> Iterator[Event]:
        """Note what the fork server reports; yield the exits."""
        if self.fork_server is None:
            return
        try:
            for what, *values in self.fork_server.events():
                if what == "started":
                    child = self.children[values[0]]
                    child.pid = values[1]
                    self._by_pid[child.pid] = child
                    if child.killed:
                        self.fork_server.kill(child.pid)
                elif what == "lapsed":
                    for child in self._by_pid.values():  # not those that it has forked since
                        child.lease_expired = True
                elif what == "ended":
                    yield Exited(self._by_pid[values[0]], values[1])
                elif what == "failed":
                    child = self.children[values[0]]
                    child.init_error = values[1]
                    yield Exited(child, None)
        except EOFError:
            log.error("the process that forks child processes has died, and they with it")
            self.drop_fork_server()
            for child in list(self.children.values()):
                if child.pid:
                    end_session(child.pid)
                if child.place is not None:
                    cgroups.kill_all(child.place)
                yield Exited(child, None)

    def start_failed(self, why: str) -> None:
        """Start none for a while. Logged once for each reason."""
        self.again_at = time.monotonic() + self._backoff.next()
        if self._logged.is_new(why):
            log.error("no child process could be started, trying again every %g s at most: %s", START_BACKOFF_S[1], why)

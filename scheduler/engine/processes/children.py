"""The children there are: started through a fork server, listened to, killed and forgotten. Used by the pool's thread.

What they say and what becomes of their work is the pool's: it is called when a child talks, writes or ends.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from scheduler.engine.child import cgroups
from scheduler.engine.processes.child_handle import ChildHandle, describe_exit
from scheduler.engine.processes.fork_client import ForkServerClient, end_session

log = logging.getLogger("scheduler.engine")

START_BACKOFF_S = (1.0, 30.0)  # seconds until children are tried again when none got ready: first, most


class ChildRegistry:
    """See the module."""

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
        self._pause = 0.0
        self._last_error = ""

    def set_handlers(
        self,
        talks: Callable[[ChildHandle], None],
        writes: Callable[[ChildHandle], None],
        ends: Callable[[ChildHandle, int | None], None],
    ) -> None:
        """``talks``, ``writes``: called when there is something to read; ``ends``: with the status, None if unknown."""
        self._talks, self._writes, self._ends = talks, writes, ends

    # waiting

    def open(self, bell: int, rung: Callable[[], None]) -> None:
        """``rung`` is called when something can be read from ``bell``."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell, selectors.EVENT_READ, rung)

    @property
    def selector(self) -> selectors.BaseSelector:
        assert self._selector is not None, "the pool's thread opens it first"
        return self._selector

    def wait(self, seconds: float | None) -> None:
        """Until something happens; and deal with it."""
        for key, _ in self.selector.select(seconds):
            key.data()

    def _hear(self, child: ChildHandle, hear: Callable[[ChildHandle], None]) -> None:
        """Not of one that has ended: the fork server may have told of that in the same round."""
        if self.children.get(child.tag) is child:
            hear(child)

    def close(self) -> None:
        self.selector.close()
        if self.groups is not None:
            self.groups.remove_pending()

    def close_in_fork(self) -> None:
        """In a process that the application forked: let go of what must end with the engine's own process."""
        if self.fork_server is not None:
            self.fork_server.close_in_fork()
        for child in self.children.values():
            child.close_in_fork()

    # talking

    def say(self, child: ChildHandle, *message: Any) -> None:
        child.say(*message)
        self.watch(child)

    def watch(self, child: ChildHandle) -> None:
        """Listen to a child, and wait until it can be told more if there is something left to say."""
        if child.talk_over:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_output else 0)
        if self.selector.get_key(child.talk).events != events:
            self.selector.modify(child.talk, events, partial(self._hear, child, self._talks))

    def unwatch(self, one: Any) -> None:
        """Listen to a child's ``talk`` or ``output`` no more."""
        try:
            self.selector.unregister(one)
        except KeyError:
            pass

    # coming

    @property
    def backing_off(self) -> bool:
        """Whether none is tried for a while: the last children could not get ready, or the fork server is silent."""
        return self.silent or time.monotonic() < self.again_at

    @property
    def expects_event(self) -> bool:
        """Whether the fork server has something to tell, or to show that it is there."""
        due = any(child.killed or not child.pid for child in self.children.values())
        return self.fork_server is not None and (self.fork_server.reply_expected or due)

    @property
    def ready_count(self) -> int:
        """How many are ready and stay. From any thread."""
        return sum(1 for child in list(self.children.values()) if child.ready and not child.ending)

    def start(self, only: int | None, spec: dict[str, Any]) -> bool:
        """Have a child started. ``only``: the one level that it serves; ``spec``: what it is told first. False: it
        cannot be, and is not to be tried for a while."""
        self._tags += 1
        try:
            if self.fork_server is None:
                self.fork_server = ForkServerClient()
                self.selector.register(self.fork_server.control, selectors.EVENT_READ, self._read_fork_server)
            child = ChildHandle(self._tags, only)
        except OSError as error:  # no more files or processes: those that there are go on
            self._start_failed(str(error))
            return False
        child.began = time.monotonic()
        child.place = self.groups.make() if self.groups is not None else None
        self.children[child.tag] = child
        try:
            self.fork_server.start(child.tag, child.given, child.place)
        except OSError:
            self._read_fork_server()  # it has died
            return True
        finally:
            child.given_away()
        self.listen_to(child)
        self.say(child, "spec", spec)
        return True

    def listen_to(self, child: ChildHandle) -> None:
        self.selector.register(child.talk, selectors.EVENT_READ, partial(self._hear, child, self._talks))
        self.selector.register(child.output, selectors.EVENT_READ, partial(self._hear, child, self._writes))

    def is_ready(self, child: ChildHandle) -> None:
        """It has imported what it needs."""
        child.ready = True
        child.idle_since = time.monotonic()
        self._pause, self._last_error = 0.0, ""

    # going

    def kill(self, child: ChildHandle) -> None:
        child.killed = True
        if self.fork_server is not None and child.pid:
            self.fork_server.kill(child.pid)

    def kill_at(self, when: float) -> None:
        """Have all children killed then (monotonic), unless something else was said meanwhile."""
        if self.fork_server is not None and self.fork_server.kills_at != when:
            self.fork_server.kill_at(when)

    def forget(self, child: ChildHandle, status: int | None) -> None:
        """A child has ended and all that it said has been heard."""
        child.close()
        if self.groups is not None and child.place is not None:
            self.groups.remove(child.place)
        if not child.ready:
            self._start_failed(child.init_error or describe_exit(status, None, out_of_memory=False))
        if not self.children:
            self.empty_since = time.monotonic()

    def remove(self, child: ChildHandle) -> None:
        """A child has ended: it counts no more."""
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

    def _read_fork_server(self) -> None:
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
                        child.lapsed = True
                elif what == "ended":
                    self._ends(self._by_pid[values[0]], values[1])
                elif what == "failed":
                    child = self.children[values[0]]
                    child.init_error = values[1]
                    self._ends(child, None)
        except EOFError:
            log.error("the process that forks child processes has died, and they with it")
            self.drop_fork_server()
            for child in list(self.children.values()):
                if child.pid:
                    end_session(child.pid)
                if child.place is not None:
                    cgroups.kill_all(child.place)
                self._ends(child, None)

    def _start_failed(self, why: str) -> None:
        self._pause = min(START_BACKOFF_S[1], max(START_BACKOFF_S[0], self._pause * 2))
        self.again_at = time.monotonic() + self._pause
        if self._last_error != why:
            log.error("no child process could be started, trying again every %g s at most: %s", START_BACKOFF_S[1], why)
        self._last_error = why

"""Timeouts of children: start, unresponsive, idle, deadline; and of the fork server. Used by the pool's thread."""

from __future__ import annotations

import logging
import time

from scheduler.engine.processes.child_handle import ChildHandle
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.host import ChildHost
from scheduler.engine.processes.monitor import ChildMonitor
from scheduler.engine.processes.queue import JobQueue
from scheduler.ports import SECOND

log = logging.getLogger("scheduler.engine")

TAKE_BACK_AFTER_S = 0.02  # that a handler may run before the jobs behind it are taken back
STARTUP_TIMEOUT_S = 120.0  # that a child may take to import the tasks' modules
NOT_BEGUN_TIMEOUT_S = 10.0  # that an idle child may take to begin a job
LEASE_CHECK_S = 0.1  # between checks whether the lease was extended, at least
PING_AFTER_S = 1.0  # without a reply, until the fork server is asked for a sign of life
SERVER_SILENT_S = 10.0  # without a reply, until a warning is logged and no child is started
KILL_SERVER_AFTER_S = 60.0  # without a reply, until it is killed, and every child with it
SERVER_CHECK_S = 1.0  # between two checks of that; a longer time between them means that this process stood still
IDLE_TIMEOUT_S = 300.0  # after which an idle child is ended
HOOK_TIMEOUT_S = 60.0  # that a hook may take
MESSAGE_TIMEOUT_S = 4.0  # that a message may take to come on


class ChildTimeouts:
    """See the module."""

    def __init__(self, children: ChildRegistry, queue: JobQueue, monitor: ChildMonitor, host: ChildHost) -> None:
        self._children = children
        self._queue = queue
        self._monitor = monitor
        self._host = host
        self._silence = 0.0  # seconds that the fork server owes a reply, while this process ran
        self._checked_at = 0.0  # monotonic

    def wait(self) -> float | None:
        """Seconds until the next timeout."""
        now = time.monotonic()
        moments = []
        for child in self._children.children.values():
            if child.kill_at is not None:
                moments.append(child.kill_at)
            if child.unfinished_since is not None and not child.talk_over:
                moments.append(child.unfinished_since + MESSAGE_TIMEOUT_S)
            if not child.ready:
                moments.append(now + 0.2)  # waiting attempts are kept fresh: see check()
            elif child.current is None:
                if not child.ending:
                    moments.append(child.idle_since + (NOT_BEGUN_TIMEOUT_S if child.jobs else IDLE_TIMEOUT_S))
            else:
                if child.waiting:
                    moments.append(child.current_since + TAKE_BACK_AFTER_S)
                deadline = _deadline(child)
                if deadline is not None and child.kill_at is None and not child.killed:
                    moments.append(deadline)
        left = self._host.runtime.lease_expires_at - now
        if 0 < left < float("inf") and self._children.children:
            moments.append(now + max(LEASE_CHECK_S, left / 4))
        if self._children.again_at > now:
            moments.append(self._children.again_at)
        if not self._children.children and self._children.fork_server is not None:
            moments.append(self._children.empty_since + IDLE_TIMEOUT_S)
        if self._children.expects_event:
            moments.append(now + SERVER_CHECK_S)
        return max(0.0, min(moments) - now) if moments else None

    def check(self) -> None:
        """Act on every timeout that has passed."""
        now = time.monotonic()
        self._check_fork_server(now)
        ready = any(child.ready for child in self._children.children.values())
        if self._children.children and not ready and not self._children.silent:
            # They are about to start. Importing the tasks' modules may take longer than the engine lets tasks wait.
            for attempt in self._queue.attempts():
                attempt.submitted_at = now
        for child in list(self._children.children.values()):
            job = child.current
            since = child.unfinished_since
            if since is not None and now >= since + MESSAGE_TIMEOUT_S and not child.talk_over:
                log.warning("child process %d is ended: it has begun a message and does not end it", child.pid)
                child.break_off()
            if child.talk_over and not child.killed:
                self._monitor.receive(child)
            if child.kill_at is not None and now >= child.kill_at:
                child.kill_at = None
                self._children.kill(child)
            elif not child.ready:
                if now > child.began + STARTUP_TIMEOUT_S and child.init_error is None:
                    child.init_error = f"not ready after {STARTUP_TIMEOUT_S:g} s"
                    self._children.kill(child)
            elif job is None:
                if child.ending:
                    continue
                if child.jobs and now > child.idle_since + NOT_BEGUN_TIMEOUT_S:
                    self._monitor.receive(child)  # it may have begun while this process stood still
                    if child.jobs and child.current is None and not child.ending:
                        # It was stopped (SIGSTOP), or a handler left code that never lets Python run.
                        log.warning("child process %d does not begin what it was given: it is ended", child.pid)
                        self._queue.take_back(child)
                        self._children.kill(child)
                elif not child.jobs and now > child.idle_since + IDLE_TIMEOUT_S:
                    self._monitor.retire(child, "idle")
            else:
                if child.waiting and now > child.current_since + TAKE_BACK_AFTER_S:
                    self._queue.take_back(child)
                deadline = _deadline(child)
                if deadline is not None and now >= deadline and child.kill_at is None and not child.killed:
                    job.attempt.timed_out = True
                    self._monitor.stop(child, job, "timed_out")
        if (
            not self._children.children
            and self._children.fork_server is not None
            and now > self._children.empty_since + IDLE_TIMEOUT_S
        ):
            self._children.drop_fork_server()

    def _check_fork_server(self, now: float) -> None:
        """Ping, resume, then kill a silent fork server: without it no child starts, and none is killed."""
        fork_server, children = self._children.fork_server, self._children
        passed, self._checked_at = min(now - self._checked_at, SERVER_CHECK_S), now
        if fork_server is None or fork_server.reply_seen or not children.expects_event:
            self._silence, children.silent = 0.0, False
            if fork_server is not None:
                fork_server.reply_seen = False
            return
        before, self._silence = self._silence, self._silence + passed
        if before < PING_AFTER_S <= self._silence:
            fork_server.ping()
        elif before < SERVER_SILENT_S <= self._silence:
            children.silent = True
            log.warning(
                "the process that forks child processes, %d, has not answered for %g s: no child is started until it "
                "does, and it is ended after %g s",
                *(fork_server.pid, SERVER_SILENT_S, KILL_SERVER_AFTER_S),
            )
            fork_server.resume()
        elif before < KILL_SERVER_AFTER_S <= self._silence:
            fork_server.kill_server()

    def send_lease(self) -> None:
        """Tell the children when to end by themselves: this process may stand still when its lease runs out."""
        until = self._host.runtime.lease_expires_at
        if not self._children.children or until <= time.monotonic():
            return
        for child in self._children.children.values():
            if child.lease_sent != until:
                child.lease_sent = until
                self._children.say(child, "lease", until)
        self._children.kill_at(until + self._host.options.grace)


def _deadline(child: ChildHandle) -> float | None:
    """When the job under way times out (monotonic)."""
    job = child.current
    if job is None or job.future is not None:
        return None
    if not job.is_attempt:
        return child.current_since + HOOK_TIMEOUT_S
    timeout = job.attempt.claimed.timeout
    moments = [] if timeout is None or job.attempt.timed_out else [child.current_since + timeout / SECOND]
    if child.decided_at is not None:
        moments.append(child.decided_at + HOOK_TIMEOUT_S)
    return min(moments, default=None)

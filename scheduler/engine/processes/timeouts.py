"""How long children may take, and what becomes of those that take longer. Used by the pool's thread."""

from __future__ import annotations

import logging
import time

from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processes.child_handle import ChildHandle
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.feeding import JobFeeder
from scheduler.engine.processes.monitor import ChildMonitor
from scheduler.engine.processes.parting import ChildStopper
from scheduler.engine.processes.queue import JobQueue
from scheduler.ports import SECOND

log = logging.getLogger("scheduler.engine")

TAKE_BACK_AFTER_S = 0.02  # seconds that a body may run before what waits behind it is taken back
STARTUP_TIMEOUT_S = 120.0  # seconds that a child may take to import the tasks' modules
NOT_BEGUN_TIMEOUT_S = 10.0  # seconds that a child may take to begin what it was given, while it does nothing else
LEASE_CHECK_S = 0.1  # seconds between looks whether the lease was extended, at least
PING_AFTER_S = 1.0  # seconds without an answer after which the fork server is asked for a sign of life
SERVER_SILENT_S = 10.0  # seconds without one until no child is tried any more, and that is told
KILL_SERVER_AFTER_S = 60.0  # seconds until it is ended, and every child with it
SERVER_CHECK_S = 1.0  # seconds between two looks at that; if there were more, this process stood still
IDLE_TIMEOUT_S = 300.0  # seconds after which a child that has nothing to do is ended
HOOK_TIMEOUT_S = 60.0  # seconds that a hook may take
MESSAGE_TIMEOUT_S = 4.0  # seconds that a message may take to come on


class ChildTimeouts:
    """See the module."""

    def __init__(
        self,
        children: ChildRegistry,
        waiting: JobQueue,
        feeder: JobFeeder,
        stopper: ChildStopper,
        monitor: ChildMonitor,
        options: ProcessOptions,
        runtime: Runtime,
    ) -> None:
        self._children = children
        self._waiting = waiting
        self._feeder = feeder
        self._stopper = stopper
        self._monitor = monitor
        self._options = options
        self._runtime = runtime
        self._silence = 0.0  # seconds, of those in which we looked
        self._looked_at = 0.0  # monotonic

    def wait(self) -> float | None:
        """Seconds until there is something to do, if nothing happens."""
        now = time.monotonic()
        moments = []
        for child in self._children.children.values():
            if child.kill_at is not None:
                moments.append(child.kill_at)
            if child.unfinished_since is not None and not child.talk_over:
                moments.append(child.unfinished_since + MESSAGE_TIMEOUT_S)
            if not child.ready:
                moments.append(now + 0.2)  # those who wait for it are told that it goes on
            elif child.current is None:
                if not child.ending:
                    moments.append(child.idle_since + (NOT_BEGUN_TIMEOUT_S if child.jobs else IDLE_TIMEOUT_S))
            else:
                if child.waiting:
                    moments.append(child.current_since + TAKE_BACK_AFTER_S)
                deadline = _deadline(child)
                if deadline is not None and child.kill_at is None and not child.killed:
                    moments.append(deadline)
        left = self._runtime.lease_expires_at - now
        if 0 < left < float("inf") and self._children.children:
            moments.append(now + max(LEASE_CHECK_S, left / 4))
        if self._children.again_at > now:
            moments.append(self._children.again_at)
        if not self._children.children and self._children.fork_server is not None:
            moments.append(self._children.empty_since + IDLE_TIMEOUT_S)
        if self._children.expects_event:
            moments.append(now + SERVER_CHECK_S)
        return max(0.0, min(moments) - now) if moments else None

    def look(self) -> None:
        now = time.monotonic()
        self._look_at_nursery(now)
        ready = any(child.ready for child in self._children.children.values())
        if self._children.children and not ready and not self._children.silent:
            # Importing the tasks' modules may take longer than the engine lets tasks wait: they are about to start.
            for attempt in self._waiting.attempts():
                attempt.submitted_at = now
        for child in list(self._children.children.values()):
            job = child.current
            since = child.unfinished_since
            if since is not None and now >= since + MESSAGE_TIMEOUT_S and not child.talk_over:
                log.warning("child process %d is ended: it has begun a message and does not end it", child.pid)
                child.break_off()
            if child.talk_over and not child.killed:
                self._monitor.hear(child)
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
                    self._monitor.hear(child)  # it may have begun while this process stood still
                    if child.jobs and child.current is None and not child.ending:
                        # Somebody has stopped it, or what a body left there never lets Python run.
                        log.warning("child process %d does not begin what it was given: it is ended", child.pid)
                        self._feeder.take_back(child)
                        self._children.kill(child)
                elif not child.jobs and now > child.idle_since + IDLE_TIMEOUT_S:
                    self._stopper.retire(child, "idle")
            else:
                if child.waiting and now > child.current_since + TAKE_BACK_AFTER_S:
                    self._feeder.take_back(child)
                deadline = _deadline(child)
                if deadline is not None and now >= deadline and child.kill_at is None and not child.killed:
                    job.attempt.timed_out = True
                    self._stopper.stop(child, job, "timed_out")
        if (
            not self._children.children
            and self._children.fork_server is not None
            and now > self._children.empty_since + IDLE_TIMEOUT_S
        ):
            self._children.drop_fork_server()

    def _look_at_nursery(self, now: float) -> None:
        """It may have been stopped, or hang: then no child comes, and none is killed that has to be."""
        fork_server, children = self._children.fork_server, self._children
        passed, self._looked_at = min(now - self._looked_at, SERVER_CHECK_S), now
        if fork_server is None or fork_server.heard or not children.expects_event:
            self._silence, children.silent = 0.0, False
            if fork_server is not None:
                fork_server.heard = False
            return
        before, self._silence = self._silence, self._silence + passed
        if before < PING_AFTER_S <= self._silence:
            fork_server.ask()
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

    def tell_lease(self) -> None:
        """Should this process stand still when its lease runs out, what others may begin then ends without it."""
        until = self._runtime.lease_expires_at
        if not self._children.children or until <= time.monotonic():
            return
        for child in self._children.children.values():
            if child.lease_sent != until:
                child.lease_sent = until
                self._children.say(child, "lease", until)
        self._children.kill_at(until + self._options.grace)


def _deadline(child: ChildHandle) -> float | None:
    """Until when what the child does may take."""
    job = child.current
    if job is None or job.answer is not None:
        return None
    if job.slots is None:
        return child.current_since + HOOK_TIMEOUT_S
    timeout = job.attempt.claimed.timeout
    moments = [] if timeout is None or job.attempt.timed_out else [child.current_since + timeout / SECOND]
    if child.decided_at is not None:
        moments.append(child.decided_at + HOOK_TIMEOUT_S)
    return min(moments, default=None)
